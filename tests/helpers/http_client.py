"""A plain HTTP client for health servers, which sends exactly what a test says."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from orchestrator.core.health_address import parse_health_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import ByteStream


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: status, headers by lower-case name, body."""

    status: int
    headers: dict[str, str]
    body: str


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[ByteStream]:
    """Open a connection to a health server."""
    target = parse_health_address(address)
    stream: ByteStream
    stream = await (anyio.connect_unix(target) if isinstance(target, str) else anyio.connect_tcp(*target))
    async with stream:
        yield stream


async def request(address: str, path: str, *, method: str = "GET", headers: str = "") -> Reply:
    """Send one request and read the answer."""
    async with connect(address) as stream:
        return await send(stream, f"{method} {path} HTTP/1.1\r\nHost: evil.example\r\n{headers}\r\n".encode())


async def send(stream: ByteStream, data: bytes) -> Reply:
    """Send bytes and read the answer up to the end of the connection."""
    await stream.send(data)
    received = b""
    while True:
        try:
            received += await stream.receive()
        except anyio.EndOfStream:
            break
    if not received:
        raise ConnectionResetError("the server closed the connection without an answer")
    head, _, body = received.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Reply(int(first.split(" ")[1]), headers, body)
