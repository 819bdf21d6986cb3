"""A provider of HTTP on this machine, which answers 429 with Retry-After for a time."""

from __future__ import annotations

import time
from typing import Self

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener


class Response:
    """The answer, as clients of HTTP give it to their exceptions."""

    def __init__(self, status_code: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status_code, headers


class HttpFailure(Exception):
    """An answer that is none of 2xx."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        super().__init__(f"HTTP {status}")
        self.response = Response(status, headers)


class HttpProvider:
    """Serves while its block lasts.

    Attributes:
        accepted: times of the requests that were served.
        early: requests that came inside a pause, later than those that were under way when it was told.
    """

    UNDER_WAY_S = 0.25

    def __init__(self) -> None:
        self.accepted: list[float] = []
        self.early = 0
        self._pause_s = 0
        self._told_s: float | None = None

    def throttle(self, seconds: int) -> None:
        """Answer 429 to the next request, and to all within this time after it."""
        self._pause_s = seconds

    def _answer(self) -> bytes:
        now_s = time.monotonic()
        if self._pause_s:
            if self._told_s is None:
                self._told_s = now_s
            if now_s < self._told_s + self._pause_s:
                if now_s > self._told_s + self.UNDER_WAY_S:
                    self.early += 1
                return b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: %d\r\nConnection: close\r\n\r\n" % self._pause_s
        self.accepted.append(now_s)
        return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

    async def _serve(self, stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(self._answer())

    async def request(self) -> None:
        """Send a request.

        Raises:
            HttpFailure: the answer has another status than 200.
        """
        async with await anyio.connect_tcp("127.0.0.1", self._port) as stream:
            await stream.send(b"GET / HTTP/1.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += await stream.receive()
        first, *lines = answer.decode().strip().split("\r\n")
        status = int(first.split()[1])
        if status != 200:
            raise HttpFailure(status, dict(line.split(": ", 1) for line in lines))

    async def __aenter__(self) -> Self:
        """Listen."""
        self._listener: SocketListener = await anyio.create_tcp_listener(local_host="127.0.0.1")  # type: ignore[assignment]
        self._port = self._listener.extra(SocketAttribute.local_port)
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._listener.serve, self._serve)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        await self._listener.aclose()
