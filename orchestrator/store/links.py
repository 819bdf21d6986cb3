"""Connects to one address: an asyncio link that many callers share, and a blocking link for a thread.

redis-py opens the connection (URL, TLS, login) with its retries off; `Wire` takes over the transport. A link sends each
command once. A link whose server turns out to be a replica closes the connection, and its next command resolves the
address again. docs/internals/adr/0002 has the measurements. `router` chooses the link of a command.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import hiredis
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from redis.retry import Retry

from orchestrator.store.failures import CutOff, Redirected, is_from_replica, translate
from orchestrator.store.outage import ClosedHere, Outage
from orchestrator.store.wire import LATE_S, Wire, pack

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from redis.asyncio.connection import AbstractConnection as AsyncConnection
    from redis.connection import Connection, ConnectionInterface

    from orchestrator.core.errors import StoreError
    from orchestrator.store.calls import Argument
    from orchestrator.store.locator import Address


def _options(connect_timeout_s: float, read_timeout_s: float, name: str, check: Any = None) -> dict[str, Any]:
    return {
        "redis_connect_func": check,
        "socket_connect_timeout": connect_timeout_s,
        "socket_timeout": read_timeout_s,
        "client_name": name,
        "protocol": 2,
        "driver_info": None,
        "retry": Retry(NoBackoff(), 0),
    }


def make_pool(address: Address, *, connect_timeout_s: float, name: str) -> AsyncConnectionPool:
    """Return a factory of asyncio connections to `address`."""
    check = _log_in_to_master if address.is_master else None
    return AsyncConnectionPool.from_url(address.url, **_options(connect_timeout_s, connect_timeout_s, name, check))


async def _log_in_to_master(connection: AsyncConnection) -> None:
    await connection.on_connect()
    await connection.send_command("ROLE")
    _check_role(await connection.read_response())


def _log_in_to_master_sync(connection: Connection) -> None:
    connection.on_connect()  # type: ignore[no-untyped-call]
    connection.send_command("ROLE")  # type: ignore[no-untyped-call]
    _check_role(connection.read_response())


def _check_role(role: Sequence[Any]) -> None:
    if role[0] not in {b"master", "master"}:
        raise ReadOnlyError("READONLY the server is a replica")


async def log_in(pool: AsyncConnectionPool, *, reads_replica: bool = False) -> AsyncConnection:
    """Open a connection; the caller owns it and takes over its transport (`transport_of`).

    Args:
        pool: makes the connection.
        reads_replica: let a replica of a cluster answer what it would send to its primary.

    Raises:
        OSError, RedisError: the connection or the login failed.
    """
    connection: AsyncConnection = pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        if reads_replica:
            await connection.send_command("READONLY")
            with contextlib.suppress(ResponseError):  # a server that is in no cluster
                await connection.read_response()
        _check_open(connection)
    except BaseException as failure:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)
        if isinstance(failure, RuntimeError):
            # uvloop raises RuntimeError for a write to a connection that has just ended.
            raise ConnectionError(str(failure)) from failure
        raise
    return connection


def _check_open(connection: AsyncConnection) -> None:
    if transport_of(connection).is_closing():
        raise ConnectionError("the connection ended right after the login")


def transport_of(connection: AsyncConnection) -> asyncio.Transport:
    """Return the transport of an open connection."""
    writer = connection._writer  # noqa: SLF001 - there is no other way to it
    assert writer is not None
    return writer.transport  # type: ignore[return-value]


class _Reconnects:
    """Counts the connections of this process that were opened again after a loss."""

    count = 0


def count_reconnects() -> int:
    """Return how many connections of this process were opened again after a loss."""
    return _Reconnects.count


class Link:
    """One asyncio connection, opened on first use and again after a loss. Many callers may share it.

    Args:
        address: of the server.
        connect_timeout_s: for the connection.
        read_timeout_s: for a reply.
        name: shown in CLIENT LIST.
        published: called with channel and message of each published message.
        ended: called when a connection has ended.
        demoted: called with the address when the server turned out to be a replica.
        doubted: called with the address when no connection could be opened, or the server is cut off from its cluster.
        opened: called when a connection has been opened, before anything is sent.
        late: called with the address every `LATE_S` while a reply is outstanding.
        reads_replica: it sends only what reads, and the server may be a replica.
        outage: told of failures and answers.

    Attributes:
        used_s: time at which the router last chose the link, or left it for another one.
        connections: number of connections that it has opened.
    """

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
        name: str,
        published: Callable[[str, str], None] | None = None,
        ended: Callable[[], None] | None = None,
        demoted: Callable[[Address], None] | None = None,
        doubted: Callable[[Address], None] | None = None,
        opened: Callable[[], None] | None = None,
        late: Callable[[Address], None] | None = None,
        reads_replica: bool = False,
        outage: Outage | None = None,
    ) -> None:
        self.address, self.used_s = address, -math.inf
        self._reads_replica, self._outage = reads_replica, outage or Outage()
        self._pool = make_pool(address, connect_timeout_s=connect_timeout_s, name=name)
        self._reply_timeout_s, self._published, self._ended = read_timeout_s, published, ended
        self._demoted, self._doubted, self._opened = demoted, doubted, opened
        self._late = None if late is None else partial(late, address)
        self._connection: AsyncConnection | None = None
        self._wire: Wire | None = None
        self._opening = anyio.Lock(fast_acquire=True)
        self._attempts = 0
        self._was_open = False
        self.connections = 0
        self._refusal: Exception | None = None
        self._left = False

    @property
    def is_open(self) -> bool:
        """True while a connection is open."""
        return self._wire is not None and not self._wire.is_closed

    @property
    def is_busy(self) -> bool:
        """True while a reply is outstanding, or a connection is being opened."""
        return self._opening.locked() or (self._wire is not None and self._wire.is_busy)

    async def execute(self, *command: Argument) -> Any:
        """Send one command and return its raw reply.

        Raises:
            StoreError: see `failures.translate`.
        """
        reply = (await self._exchange(pack(command), 1, what=command[0]))[0]
        if isinstance(reply, hiredis.ReplyError):
            raise self.to_error(str(command[0]), reply)
        return reply

    async def begin(self, *command: Argument) -> asyncio.Future[list[Any]]:
        """Send one blocking command; the future gets its raw reply in a list, or the connection error.

        The caller must close the link if it abandons the future, because the reply may still arrive.

        Raises:
            StoreError: the command could not be sent.
        """
        wire = self._wire
        if wire is None or wire.is_closed:
            wire = await self._open(command[0])
        return wire.send(pack(command), 1)

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together and return their replies; an error reply becomes a `StoreError` in the list."""
        if not commands:
            return []
        packed = b"".join(pack(command) for command in commands)
        replies = await self._exchange(packed, len(commands), what=commands[0][0])
        return [self.to_error(str(command[0]), reply) for command, reply in zip(commands, replies, strict=True)]

    def to_error(self, what: str, reply: Any) -> Any:
        """Return a reply, with a `StoreError` in the place of an error reply, also inside the reply of EXEC."""
        if isinstance(reply, hiredis.ReplyError):
            error = with_address(translate(reply, what=what, sent=True, at=self.address), self.address)
            if isinstance(error, CutOff):
                self._doubt()
            return error
        if what == "EXEC" and isinstance(reply, list):
            # The replies to the commands, not what they hold: that may be hundreds of messages.
            return [self.to_error("", part) for part in reply]
        return reply

    async def _exchange(self, packed: bytes, expected: int, *, what: Argument) -> list[Any]:
        wire = self._wire
        if wire is None or wire.is_closed:
            wire = await self._open(what)
        losses = self._outage.losses
        try:
            replies = await wire.send(packed, expected)
        except (OSError, RedisError) as error:
            failure = translate(error, what=str(what), sent=True, at=self.address)
            raise self._outage.note_failure(failure, error, self.address) from error
        # A server that loads its data answers with errors.
        if self._outage.expects_answer and not isinstance(replies[0], hiredis.ReplyError):
            self._outage.note_answer(self.address, losses=losses)
        return replies

    async def _open(self, what: Argument) -> Wire:
        attempt = self._attempts
        async with self._opening:
            if self._wire is not None and not self._wire.is_closed:
                return self._wire
            if self._attempts > attempt and self._refusal is not None:
                # Another caller failed while this one waited: a crowd must not wait for one connection time-out each.
                raise translate(self._refusal, what=str(what), sent=False, at=self.address) from self._refusal
            self._attempts, self._refusal = self._attempts + 1, None
            if self._wire is not None:
                await self._wire.wait_closed()
            await self.close()
            try:
                self._check_left()
                connection = await log_in(self._pool, reads_replica=self._reads_replica)
                if self._left:
                    await connection.disconnect(nowait=True)
                self._check_left()
            except (OSError, RedisError) as error:
                self._refusal = error
                self._doubt()
                failure = translate(error, what=str(what), sent=False, at=self.address)
                raise self._outage.note_failure(failure, error, self.address) from error
            if self._opened is not None:
                self._opened()
            _Reconnects.count += self._was_open
            self._was_open = True
            transport = transport_of(connection)
            self._connection, self.connections = connection, self.connections + 1
            self._wire = Wire(
                transport,
                reply_timeout_s=self._reply_timeout_s,
                published=self._published,
                ended=self._ended,
                demoted=self._tell_demoted,
                late=self._late,
            )
            transport.set_protocol(self._wire)
            return self._wire

    def _check_left(self) -> None:
        if self._left:
            raise ClosedHere("another server is the master now")

    def leave(self) -> None:
        """Close the connection at once and for good, because another server is the master."""
        self._left = True
        self.discard(ClosedHere("another server is the master now"))

    def _doubt(self) -> None:
        if self._doubted is not None:
            self._doubted(self.address)

    def _tell_demoted(self) -> None:
        if self._demoted is not None:
            self._demoted(self.address)

    def leave_replica(self) -> None:
        """Close the connection, because another one to the same address found a replica there."""
        if self._wire is not None:
            self._wire.leave(ClosedHere("the server is a replica"))

    def discard(self, why: Exception | None = None) -> None:
        """Close the connection at once; a reply that is outstanding fails with `why`."""
        if self._wire is not None:
            self._wire.close(why or ClosedHere("the connection was closed"))
            self._wire = None
        if self._connection is not None:
            self._connection._close()  # type: ignore[no-untyped-call]  # noqa: SLF001 - no other way without a wait
            self._connection = None

    async def close(self) -> None:
        """Close the connection; a later command opens it again."""
        if self._wire is not None:
            self._wire.close(ClosedHere("the connection was closed"))
            self._wire = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)


def make_sync_pool(address: Address, *, connect_timeout_s: float, read_timeout_s: float, name: str) -> ConnectionPool:
    """Return a pool of one blocking connection."""
    check = _log_in_to_master_sync if address.is_master else None
    options = _options(connect_timeout_s, read_timeout_s, name, check)
    return ConnectionPool.from_url(address.url, max_connections=1, **options)


class SyncLink:
    """One blocking connection, for a thread (the heartbeat) or a process without an event loop (the host).

    Args:
        address: of the server.
        connect_timeout_s: for the connection.
        read_timeout_s: for a reply.
        name: shown in CLIENT LIST.
        demoted: called with the address when the server turned out to be a replica.
        doubted: called with the address when no connection could be opened, or the server is cut off from its cluster.
        late: called with the address every `LATE_S` while a reply is outstanding.
        outage: told of failures and answers.

    Attributes:
        used_s: time at which the router last chose the link.
    """

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
        name: str,
        demoted: Callable[[Address], None],
        doubted: Callable[[Address], None],
        late: Callable[[Address], None] | None,
        outage: Outage,
    ) -> None:
        self.address, self.used_s = address, -math.inf
        self._demoted, self._doubted, self._late, self._outage = demoted, doubted, late, outage
        self._read_timeout_s = read_timeout_s
        self._connection: ConnectionInterface | None = None
        self._left = False
        self._pool = make_sync_pool(
            address, connect_timeout_s=connect_timeout_s, read_timeout_s=read_timeout_s, name=name
        )

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together and return their replies; an error reply becomes a `StoreError` in the list.

        Raises:
            StoreError: the connection failed.
        """
        if not commands:
            return []
        connection, sent, done, replica = None, False, False, False
        losses = self._outage.losses
        replies: list[Any] = []
        try:
            connection = self._connection = self._pool.get_connection()
            self._check_left()
            sent = True
            connection.send_packed_command([pack(command) for command in commands], check_health=False)  # type: ignore[no-untyped-call]
            if self._late is not None:
                self._await_reply(connection, self._late)
            for command in commands:
                try:
                    replies.append(connection.read_response())
                except ResponseError as error:
                    replica = replica or is_from_replica(error)
                    replies.append(self._to_error(str(command[0]), error))
            done = True
        except (RedisError, OSError) as error:
            if not sent:
                self._doubted(self.address)
            failure = translate(error, what=str(commands[len(replies)][0]), sent=sent, at=self.address)
            raise self._outage.note_failure(failure, error, self.address) from error
        finally:
            if connection is not None:
                if replica or not done:
                    connection.disconnect()  # type: ignore[no-untyped-call]
                self._pool.release(connection)
        self._note_answer(replies, losses, replica=replica)
        return replies

    def _note_answer(self, replies: Sequence[Any], losses: int, *, replica: bool) -> None:
        if replica:
            self._demoted(self.address)
        if self._outage.expects_answer and not isinstance(replies[0], Exception):
            self._outage.note_answer(self.address, losses=losses)

    def _to_error(self, what: str, reply: ResponseError) -> StoreError:
        error = with_address(translate(reply, what=what, sent=True, at=self.address), self.address)
        if isinstance(error, CutOff):
            self._doubted(self.address)
        return error

    def _await_reply(self, connection: ConnectionInterface, late: Callable[[Address], None]) -> None:
        until_s = time.monotonic() + self._read_timeout_s
        while (left_s := until_s - time.monotonic()) > 0:
            if connection.can_read(min(LATE_S, left_s)):
                return
            late(self.address)
        raise TimeoutError(f"none after {self._read_timeout_s:g} s")

    def close(self) -> None:
        """Close the connection."""
        self._pool.disconnect()

    def _check_left(self) -> None:
        if self._left:
            raise ClosedHere("another server is the master now")

    def leave(self) -> None:
        """End the connection for good, because another server is the master. For any thread."""
        self._left = True
        end_connection(getattr(self._connection, "_sock", None))


def end_connection(connection: socket.socket | None) -> None:
    """End a connection that another thread may be reading from."""
    if connection is not None:
        with contextlib.suppress(OSError):
            # Not the method of a TLS socket: it lets the other thread go on reading, and sending, without decryption.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


def with_address(error: StoreError, answering: Address) -> StoreError:
    """Complete a redirect: the reply may leave the host out, and never has the login."""
    if isinstance(error, Redirected):
        error.address = answering.at(error.host, error.port)
    return error
