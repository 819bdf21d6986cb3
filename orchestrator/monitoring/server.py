"""Serves /livez, /readyz and /metrics over HTTP/1.1, one request per connection.

The server answers GET and HEAD, and ignores the Host header. A connection has a time limit, and when all places are
taken the oldest connection gives way, so that a slow client keeps no place.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
import socket
import stat
from collections import deque
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from orchestrator.core.errors import ConfigError
from orchestrator.core.health_address import parse_health_address
from orchestrator.core.log import get_logger
from orchestrator.monitoring.checks import render_checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import h11

    from orchestrator.monitoring.checks import Check

CONNECTIONS: Final = 32
REQUEST_TIMEOUT_S: Final = 5.0
REPLY_TIMEOUT_S: Final = 10.0
LINGER_S: Final = 1.0
MAX_HEADER_BYTES: Final = 8192
RETRY_S: Final = 10.0
"""Time between two tries to listen, as when the address belongs to a process that stops."""
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"

_log = get_logger(__name__)


class HealthSource(Protocol):
    """Answers for a process."""

    def live(self) -> Sequence[Check]:
        """Check the process itself, without Redis."""

    async def ready(self) -> Sequence[Check]:
        """Check whether the process can work."""

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""


def check_installed(setting: str) -> None:
    """Import the libraries of the server.

    Raises:
        ConfigError: they are not installed.
    """
    try:
        for name in ("h11", "prometheus_client"):
            importlib.import_module(name)  # now, because a request must not block the event loop
    except ImportError:
        raise ConfigError(
            f"{setting} needs the libraries h11 and prometheus-client; "
            "run `pip install 'redis-orchestrator[monitoring]'`"
        ) from None


async def serve_health(address: str, health: HealthSource) -> None:
    """Serve until cancelled. An address that is not free is logged once, and tried again."""
    target, failed = parse_health_address(address), False
    while True:
        try:
            listening = _listen(target)
        except OSError as failure:
            if not failed:
                _log.warning("health_server_unavailable", listen=address, error=failure.strerror or str(failure))
            failed = True
            await anyio.sleep(RETRY_S)
            continue
        try:
            _log.info("health_server_started", listen=address)
            await _Server(health).serve(listening)
        finally:
            listening.close()
            remove_socket(address)


def remove_socket(address: str) -> None:
    """Remove the file of a socket that no process listens at any longer."""
    target = parse_health_address(address)
    if isinstance(target, str):
        # Another process with the same address may listen there.
        with suppress(OSError):
            _remove_stale(target)


def _listen(target: str | tuple[str, int]) -> socket.socket:
    if not isinstance(target, str):
        family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
        return socket.create_server(target, family=family, backlog=CONNECTIONS)
    _remove_stale(target)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(target)
        os.chmod(target, 0o660)  # noqa: PTH101 - the group may connect too, as a probe of the operator does
        listening.listen(CONNECTIONS)
    except OSError:
        listening.close()
        raise
    return listening


def _remove_stale(path: str) -> None:
    """Remove a socket that no process listens at.

    Raises:
        OSError: a process listens there, or the file is no socket.
    """
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):  # noqa: PTH116
            raise OSError(errno.EEXIST, f"{path} exists and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)  # noqa: FBT003 - it takes no keywords
        try:
            caller.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108
            return
        except BlockingIOError:
            pass  # it listens, and its queue is full
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


class _Server:
    def __init__(self, health: HealthSource) -> None:
        self._health = health
        self._open: deque[anyio.CancelScope] = deque()

    async def serve(self, listening: socket.socket) -> None:
        # Not the sockets of anyio: reading a unix socket whose other end closes raises InvalidStateError in the loop.
        async with anyio.create_task_group() as group:
            server = await asyncio.start_server(
                lambda reader, writer: group.start_soon(self._handle, reader, writer), sock=listening
            )
            try:
                await anyio.sleep_forever()
            finally:
                server.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS:
            self._open.popleft().cancel()
        scope = anyio.CancelScope()
        self._open.append(scope)
        try:
            with scope, suppress(OSError):
                await self._answer(reader, writer)
        except Exception as failure:  # noqa: BLE001 - a defect of one answer must not end the process
            _log.error("health_request_failed", error=f"{type(failure).__name__}: {failure}", exc_info=True)
        finally:
            with suppress(ValueError):
                self._open.remove(scope)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        request = None
        try:
            with anyio.move_on_after(REQUEST_TIMEOUT_S):
                request = await _read_request(reader, connection)
        except h11.RemoteProtocolError as invalid:
            reply, sent_body = (invalid.error_status_hint, TEXT, b"invalid request\n"), True
        else:
            if request is None:
                return
            reply, sent_body = await self._respond(request), request.method != b"HEAD"
        with anyio.move_on_after(REPLY_TIMEOUT_S):
            await _send(writer, *reply, with_body=sent_body)
            # A close with unread bytes would reset the connection before the client has read the answer.
            with anyio.move_on_after(LINGER_S):
                while await reader.read(4096):
                    pass

    async def _respond(self, request: h11.Request) -> tuple[int, str, bytes]:
        if request.method not in {b"GET", b"HEAD"}:
            return 405, TEXT, b"only GET and HEAD\n"
        path = request.target.partition(b"?")[0]
        if path == b"/metrics":
            return 200, EXPOSITION, await self._health.metrics()
        if path == b"/livez":
            checks = self._health.live()
        elif path == b"/readyz":
            checks = await self._health.ready()
        else:
            return 404, TEXT, b"/livez /readyz /metrics\n"
        accepts = b",".join(value for name, value in request.headers if name == b"accept")
        healthy, as_json = all(check.failure is None for check in checks), b"application/json" in accepts
        return 200 if healthy else 503, JSON if as_json else TEXT, render_checks(checks, as_json=as_json)


async def _read_request(reader: asyncio.StreamReader, connection: h11.Connection) -> h11.Request | None:
    """Read the head of a request; None if the client closes the connection before its end.

    Raises:
        RemoteProtocolError: it is not HTTP, or too long.
    """
    import h11

    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await reader.read(4096))


async def _send(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes, *, with_body: bool) -> None:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
        *(["allow: GET, HEAD"] if status == HTTPStatus.METHOD_NOT_ALLOWED else []),
    ]
    head = "".join(f"{line}\r\n" for line in [*lines, ""]).encode()
    writer.transport.set_write_buffer_limits(0)  # so that `drain` returns when all is sent
    writer.write(head + body if with_body else head)
    await writer.drain()
    writer.write_eof()
