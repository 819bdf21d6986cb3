"""A proxy between one actor and a real Redis that can lose, double, delay and cut what passes, and counts what it did.

Give each actor its own proxy: then a fault hits that actor only, and the log is that actor's trace.
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
    """Run a method in the proxy's own thread, wherever it is called from."""

    @functools.wraps(method)
    def call(self: FaultProxy, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._token is None or threading.get_ident() == self._thread:
            return method(self, *args, **kwargs)
        return anyio.from_thread.run_sync(functools.partial(method, self, *args, **kwargs), token=self._token)

    return call


class FaultProxy:
    """Listens on a port of its own and relays to a Redis server; faults are switched at run time, from any thread.

    `applied` counts effects under the name of the method that caused them; each fault also has its own `fired`.

    Args:
        upstream: `redis://host:port`, `unix:///path`, a socket path, or `(host, port)`.
        log_size: how many commands the log keeps.
    """

    def __init__(self, upstream: Upstream, *, log_size: int = 10_000) -> None:
        self._upstream = _parse_upstream(upstream)
        self._registry = FaultRegistry(log_size=log_size)
        self._socket = _bind()
        self.port: int = self._socket.getsockname()[1]
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
            return None  # the body's own failure comes out as it is, not inside a group
        finally:
            self._socket.close()

    @property
    def url(self) -> str:
        """Where clients connect instead of to the server."""
        return f"redis://{_HOST}:{self.port}/0"

    @property
    def applied(self) -> Counter[str]:
        """How often each kind of fault had its effect."""
        return self._registry.applied

    @property
    def open_connections(self) -> int:
        """Connections relayed at this moment."""
        return len(self._relays)

    @_in_loop
    def commands(self, *names: str) -> list[CommandRecord]:
        """Return the logged commands, oldest first: all, or those with one of these names."""
        wanted = {name.upper() for name in names}
        return [record for record in self._registry.log if not wanted or record.name in wanted]

    # ------------------------------------------------------------------------------------------- single commands

    @_in_loop
    def fail_reply(self, match: Match, *, nth: Turn = 1, how: Loss = "cut") -> Fault:
        """Let the command run, read its whole reply, and lose it.

        Args:
            match: a command name or a predicate.
            nth: which matching command from now on.
            how: `cut` (orderly end), `reset`, `truncate` (half of the reply, then the end), or `swallow` (the
                connection stays open and carries nothing to the client any more).
        """
        return self._set(ReplyLoss(matcher(match), nth, how=how))

    @_in_loop
    def fail_command(self, match: Match, *, nth: Turn = 1, how: Loss = "cut") -> Fault:
        """Lose the command before the server sees it, after the replies to all earlier ones have arrived.

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
        """Send the command twice, back to back, and let the client see one reply.

        Never doubled: what is inside MULTI, and commands that would change the connection's own state a second time.

        Args:
            match: a command name or a predicate.
            nth: which matching command from now on; `"every"` for the every-call-twice test.
            answer: which of the two replies the client gets. `second` is what a client gets that repeats a call
                after a lost reply.
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
        """Await a hook before the server sees the command, or after it ran and before the client gets the reply.

        The hook runs in the proxy's thread and holds up this connection only (a plain function holds up the proxy).
        An error in it ends the proxy and is raised at its end.
        """
        return self._set(Watch(matcher(match), nth, hook=hook, where=where))

    # ------------------------------------------------------------------------------------------- whole connections

    @_in_loop
    def cut(self, *, reset: bool = False) -> int:
        """End all present connections and return how many there were."""
        for relay in self._relays:
            relay.end(reset=reset)
        self._registry.applied["cut"] += len(self._relays)
        return len(self._relays)

    @_in_loop
    def refuse(self) -> None:
        """Reset each new connection as soon as it is made."""
        self._refusing = True

    @_in_loop
    def close_port(self) -> None:
        """Let the system refuse new connections, as when no server runs. Nothing can count those."""
        if self._port_open.is_set():
            self._port_open = anyio.Event()
            self._socket.shutdown(socket.SHUT_RDWR)

    @_in_loop
    def blackhole(self, *, up: bool = True, down: bool = True) -> None:
        """Hold back everything in one or both directions; connections stay open, and `heal()` lets it all go on."""
        directions: dict[Direction, bool] = {"up": up, "down": down}
        self._registry.conditions.silence(frozenset(direction for direction, chosen in directions.items() if chosen))

    @_in_loop
    def latency(self, latency_ms: float, *, jitter_ms: float = 0, seed: int = 0) -> None:
        """Delay each chunk, in each direction, by `latency_ms` plus a random part of `jitter_ms`."""
        self._registry.conditions.slow(latency_ms, jitter_ms=jitter_ms, seed=seed)

    @_in_loop
    def drip(self, chunk_bytes: int, *, pause_ms: float = 1) -> None:
        """Pass on at most `chunk_bytes` at a time, with a pause after each."""
        self._registry.conditions.drip(chunk_bytes, pause_ms=pause_ms)

    @_in_loop
    def heal(self) -> None:
        """End all faults. A connection that swallowed something stays mute; `cut()` ends it."""
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
    """Runs a `FaultProxy` in a thread with an event loop of its own, for synchronous clients and other processes.

    `with ThreadedProxy(upstream) as proxy:` gives the `FaultProxy` itself; all its methods may be called from here.
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
    # Read through a transport: a stream of `anyio.connect_unix` whose read is cancelled in the turn in which data comes
    # ends in an InvalidStateError of the loop (anyio 4.16).
    with ExitStack() as stack:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX))
        connection.setblocking(False)  # noqa: FBT003 - its only argument
        while True:
            try:
                connection.connect(path)
            except BlockingIOError:
                await anyio.sleep(_BUSY_PAUSE_S)  # the server has too many connections to accept
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
    """Take a free port by its number: one chosen by bind() itself would be given away while nothing listens on it."""
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
