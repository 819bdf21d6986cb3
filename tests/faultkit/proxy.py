"""A proxy between one actor and a real Redis that loses, doubles, delays and cuts traffic, and counts its effects.

Give each actor its own proxy: then a fault hits that actor only, and the log is the trace of that actor.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Concatenate, Final, Literal, ParamSpec, Self, TypeVar
from urllib.parse import unquote, urlsplit

import anyio
import anyio.from_thread
from anyio.abc import ByteStream, SocketStream, TaskGroup
from anyio.lowlevel import EventLoopToken, current_token

from tests.faultkit.commands import CommandRecord, Match, matcher
from tests.faultkit.connection_relay import ConnectionRelay, reset_stream
from tests.faultkit.fault_registry import FaultRegistry
from tests.faultkit.faults import CommandLoss, Doubling, Fault, Hook, Loss, ReplyLoss, Turn, Watch

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from types import TracebackType

    from tests.faultkit.network_conditions import Direction

P = ParamSpec("P")
R = TypeVar("R")

Upstream = str | os.PathLike[str] | tuple[str, int]

_HOST: Final = "127.0.0.1"
_BUSY_PAUSE_S: Final = 0.01
_FaultT = TypeVar("_FaultT", bound=Fault)


def _in_loop(
    method: Callable[Concatenate[FaultProxy, P], R],
) -> Callable[Concatenate[FaultProxy, P], R]:
    """Run a method in the thread of the proxy."""

    @functools.wraps(method)
    def call(self: FaultProxy, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._token is None or threading.get_ident() == self._thread:
            return method(self, *args, **kwargs)
        return anyio.from_thread.run_sync(functools.partial(method, self, *args, **kwargs), token=self._token)

    return call


UPSTREAMS: Final[dict[int, str | tuple[str, int]]] = {}
"""Where the proxies of this process relay to, by port."""


class FaultProxy:
    """Listens on a port and relays to a Redis server; any thread may switch faults.

    `applied` counts effects by the name of the method that caused them; each fault also has its own `fired`.

    Args:
        upstream: `redis://host:port`, `unix:///path`, a socket path, or `(host, port)`.
        log_size: limit of logged commands.
    """

    def __init__(self, upstream: Upstream, *, log_size: int = 10_000) -> None:
        self._upstream = _parse_upstream(upstream)
        self._registry = FaultRegistry(log_size=log_size)
        self._socket = _bind()
        self.port: int = self._socket.getsockname()[1]
        UPSTREAMS[self.port] = self._upstream
        self._relays: set[ConnectionRelay] = set()
        self._connections = 0
        self._refusing = False
        self._port_open = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._token: EventLoopToken | None = None
        self._thread = 0

    async def __aenter__(self) -> Self:
        self._token, self._thread = current_token(), threading.get_ident()
        self._socket.listen()
        self._port_open.set()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._accept)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        try:
            if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
                return await self._tasks.__aexit__(kind, error, traceback)
            await self._tasks.__aexit__(None, None, None)
            return None  # raise the body's own failure, not a group
        finally:
            self._socket.close()

    @property
    def url(self) -> str:
        """URL of the proxy, in place of the server's."""
        return f"redis://{_HOST}:{self.port}/0"

    @property
    def applied(self) -> Counter[str]:
        """Number of effects by kind of fault."""
        return self._registry.applied

    @property
    def open_connections(self) -> int:
        """Number of relayed connections."""
        return len(self._relays)

    @_in_loop
    def commands(self, *names: str) -> list[CommandRecord]:
        """Return the logged commands, oldest first: all, or those with these names."""
        wanted = {name.upper() for name in names}
        return [record for record in self._registry.log if not wanted or record.name in wanted]

    # ------------------------------------------------------------------------------------------- single commands

    @_in_loop
    def fail_reply(self, match: Match, *, nth: Turn = 1, how: Loss = "cut") -> Fault:
        """Let the command run, read its whole reply, and drop it.

        Args:
            match: a command name or a predicate.
            nth: which matching command from now on.
            how: `cut` (orderly end), `reset`, `truncate` (half of the reply, then the end), or `swallow` (the
                connection stays open and delivers nothing more to the client).
        """
        return self._set(ReplyLoss(matcher(match), nth, how=how))

    @_in_loop
    def fail_command(self, match: Match, *, nth: Turn = 1, how: Loss = "cut") -> Fault:
        """Drop the command before the server receives it, after the replies to all earlier ones.

        Args:
            match: a command name or a predicate.
            nth: which matching command from now on.
            how: as for `fail_reply`; with `truncate` the server gets half of the command, with `swallow` nothing more
                on this connection.
        """
        return self._set(CommandLoss(matcher(match), nth, how=how))

    @_in_loop
    def double(
        self,
        match: Match,
        *,
        nth: Turn = 1,
        answer: Literal["first", "second"] = "first",
        blocking: bool = False,
    ) -> Fault:
        """Send the command twice, back to back, and one reply to the client.

        Never doubles commands inside MULTI, and commands that change the state of the connection.

        Args:
            match: a command name or a predicate.
            nth: which matching command from now on; `"every"` doubles every call.
            answer: which reply the client gets; `second` is what a client that repeats a call after a lost reply gets.
            blocking: also double commands that may block.
        """
        wanted = matcher(match)
        if not blocking:
            return self._set(Doubling(lambda command: not command.blocks and wanted(command), nth, answer=answer))
        return self._set(Doubling(wanted, nth, answer=answer))

    @_in_loop
    def watch(
        self, match: Match, hook: Hook, *, nth: Turn = "every", where: Literal["request", "reply"] = "request"
    ) -> Fault:
        """Await a hook before the server receives the command, or before the client gets the reply.

        The hook runs in the proxy's thread and blocks this connection only (a plain function blocks the proxy). Its
        error ends the proxy and is raised at the end.
        """
        return self._set(Watch(matcher(match), nth, hook=hook, where=where))

    # ------------------------------------------------------------------------------------------- whole connections

    @_in_loop
    def cut(self, *, reset: bool = False) -> int:
        """End all open connections and return their number."""
        for relay in self._relays:
            relay.end(reset=reset)
        self._registry.applied["cut"] += len(self._relays)
        return len(self._relays)

    @_in_loop
    def redirect(self, upstream: Upstream) -> None:
        """Relay new connections to another server, as a name that resolves anew; open connections stay."""
        self._upstream = _parse_upstream(upstream)

    @_in_loop
    def refuse(self) -> None:
        """Reset each new connection."""
        self._refusing = True

    @_in_loop
    def close_port(self) -> None:
        """Close the port, so that the system refuses connections, as without a server. These are not counted."""
        if self._port_open.is_set():
            self._port_open = anyio.Event()
            self._socket.shutdown(socket.SHUT_RDWR)

    @_in_loop
    def blackhole(self, *, up: bool = True, down: bool = True) -> None:
        """Hold back all traffic in one or both directions until `heal()`; connections stay open."""
        directions: dict[Direction, bool] = {"up": up, "down": down}
        self._registry.conditions.silence(frozenset(direction for direction, chosen in directions.items() if chosen))

    @_in_loop
    def latency(self, latency_ms: float, *, jitter_ms: float = 0, seed: int = 0) -> None:
        """Delay each chunk, in each direction, by `latency_ms` plus a random part of `jitter_ms`."""
        self._registry.conditions.slow(latency_ms, jitter_ms=jitter_ms, seed=seed)

    @_in_loop
    def drip(self, chunk_bytes: int, *, pause_ms: float = 1) -> None:
        """Relay at most `chunk_bytes` at a time, with a pause after each."""
        self._registry.conditions.drip(chunk_bytes, pause_ms=pause_ms)

    @_in_loop
    def heal(self) -> None:
        """End all faults. A connection that swallowed traffic stays silent; `cut()` ends it."""
        for fault in self._registry.faults:
            fault.stop()
        self._registry.faults.clear()
        self._registry.conditions.clear()
        self._refusing = False
        if not self._port_open.is_set():
            self._socket.listen()
            self._port_open.set()

    # ---------------------------------------------------------------------------------------------------- inside

    def _set(self, fault: _FaultT) -> _FaultT:
        self._registry.faults.append(fault)
        return fault

    async def _accept(self) -> None:
        assert self._tasks is not None
        while True:
            await self._port_open.wait()
            await anyio.wait_readable(self._socket)
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                continue
            except OSError:
                if self._port_open.is_set():
                    raise
                continue
            connection.setblocking(False)  # noqa: FBT003 - its only argument
            self._tasks.start_soon(self._serve, connection)

    async def _serve(self, connection: socket.socket) -> None:
        client = await SocketStream.from_socket(connection)
        if self._refusing:
            self._registry.applied["refuse"] += 1
            await reset_stream(client)
            return
        try:
            upstream = await self._connect()
        except OSError:
            self._registry.applied["unreachable"] += 1
            await reset_stream(client)
            return
        self._connections += 1
        relay = ConnectionRelay(number=self._connections, client=client, upstream=upstream, registry=self._registry)
        self._relays.add(relay)
        try:
            await relay.run()
        finally:
            self._relays.discard(relay)

    async def _connect(self) -> ByteStream:
        if isinstance(self._upstream, str):
            return await _connect_unix(self._upstream)
        host, port = self._upstream
        return await anyio.connect_tcp(host, port)


class ThreadedProxy:
    """Runs a `FaultProxy` in a thread with its own event loop, for synchronous clients and other processes.

    `with ThreadedProxy(upstream) as proxy:` returns the `FaultProxy`; all its methods are thread-safe.
    """

    def __init__(self, upstream: Upstream, *, log_size: int = 10_000) -> None:
        self._proxy = FaultProxy(upstream, log_size=log_size)
        self._stack = ExitStack()

    def __enter__(self) -> FaultProxy:
        with ExitStack() as stack:
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal(name="fault-proxy"))
            proxy = stack.enter_context(portal.wrap_async_context_manager(self._proxy))
            self._stack = stack.pop_all()
            return proxy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, error, traceback)


async def _connect_unix(path: str) -> SocketStream:
    # Read through a transport, because a cancelled read of an `anyio.connect_unix` stream can end in an
    # InvalidStateError of the loop if data arrives in the same turn (anyio 4.16).
    with ExitStack() as stack:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX))
        connection.setblocking(False)  # noqa: FBT003 - its only argument
        while True:
            try:
                connection.connect(path)
            except BlockingIOError:
                await anyio.sleep(_BUSY_PAUSE_S)  # the server has too many connections
            else:
                break
        stream = await SocketStream.from_socket(connection)
        stack.pop_all()
        return stream


def _parse_upstream(upstream: Upstream) -> str | tuple[str, int]:
    if isinstance(upstream, tuple):
        return upstream
    if isinstance(upstream, str) and "://" in upstream:
        parts = urlsplit(upstream)
        if parts.scheme == "unix":
            return unquote(parts.path)
        if parts.scheme != "redis":
            raise ValueError(f"upstream {parts.scheme}:// is not supported; use redis://host:port or unix:///path")
        return parts.hostname or _HOST, parts.port or 6379
    return os.fspath(upstream)


def _bind() -> socket.socket:
    """Take a free port by number, because the system may reuse a port that bind() chose while nothing listens on it."""
    while True:
        with socket.socket() as probe:
            probe.bind((_HOST, 0))
            port = probe.getsockname()[1]
        listener = socket.socket()
        listener.setblocking(False)  # noqa: FBT003 - its only argument
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return listener
