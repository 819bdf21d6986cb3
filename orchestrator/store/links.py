"""Connections to Redis: asyncio links, a small pool of them, and the synchronous link of a thread.

A link is one redis-py connection with redis-py's own retries off; it sends each command once. A link that was
interrupted (an error, a time-out, a cancellation) between sending and reading is closed, because the reply it still
owes would answer the next command.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import anyio
import hiredis
from redis import Redis
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from orchestrator.core.errors import ConfigError, StoreError
from orchestrator.store.failures import translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from redis.asyncio.connection import AbstractConnection as AsyncConnection

    from orchestrator.store.calls import Argument

_SCHEMES = ("redis://", "rediss://", "unix://")


def check_url(url: str) -> str:
    """Return `url` if it is one we can connect to.

    Raises:
        ConfigError: the scheme is unknown or not built yet.
    """
    if url.startswith(("redis+sentinel://", "redis+cluster://")):
        raise ConfigError(f"{url.partition('://')[0]}:// is not supported yet; use redis://, rediss:// or unix://")
    if not url.startswith(_SCHEMES):
        raise ConfigError("the Redis URL must begin with redis://, rediss:// or unix://")
    return url


def _options(connect_timeout_s: float, read_timeout_s: float, name: str) -> dict[str, Any]:
    return {
        "socket_connect_timeout": connect_timeout_s,
        "socket_timeout": read_timeout_s,
        "client_name": name,
        "protocol": 2,
        "driver_info": None,
        "retry": Retry(NoBackoff(), 0),
    }


class Link:
    """One asyncio connection; one command (or pipeline) at a time."""

    def __init__(self, url: str, *, connect_timeout_s: float, read_timeout_s: float, name: str) -> None:
        options = _options(connect_timeout_s, read_timeout_s, name)
        pool = AsyncConnectionPool.from_url(check_url(url), **options)
        self._connection: AsyncConnection = pool.make_connection()  # type: ignore[no-untyped-call]

    async def execute(self, *command: Argument) -> Any:
        """Send one command and return its raw reply.

        Raises:
            StoreError: see `failures.translate`.
        """
        return (await self._exchange([command], raise_errors=True))[0]

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together and return their replies; an error reply stands in its place as a `StoreError`."""
        return await self._exchange(commands, raise_errors=False) if commands else []

    async def _exchange(self, commands: Sequence[Sequence[Argument]], *, raise_errors: bool) -> list[Any]:
        connection, sent, done = self._connection, False, False
        try:
            if not connection.is_connected:
                await connection.connect()  # type: ignore[no-untyped-call]
            sent = True
            await connection.send_packed_command([_pack(command) for command in commands], check_health=False)
            replies: list[Any] = []
            for command in commands:
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(translate(error, what=_name(command), sent=True))
            done = True
        except (RedisError, OSError) as error:
            raise translate(error, what=_name(commands[0]), sent=sent) from error
        finally:
            if not done:
                # Closing sends nothing, so it may run in a cancelled scope.
                with anyio.CancelScope(shield=True):
                    await connection.disconnect(nowait=True)
        if raise_errors and isinstance(replies[0], StoreError):
            raise replies[0]
        return replies

    async def close(self) -> None:
        """Close the connection; a later command opens it again."""
        with anyio.CancelScope(shield=True):
            await self._connection.disconnect(nowait=True)


class LinkPool:
    """Links for short commands, opened on demand, at most `size` at once; callers wait for a free one."""

    def __init__(self, url: str, *, size: int, connect_timeout_s: float, read_timeout_s: float, name: str) -> None:
        self._url, self._name = url, name
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s
        self._free: list[Link] = []
        self._all: list[Link] = []
        self._slots = anyio.Semaphore(size)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """Borrow a link."""
        async with self._slots:
            link = self._free.pop() if self._free else self._open()
            try:
                yield link
            finally:
                self._free.append(link)

    def _open(self) -> Link:
        link = Link(
            self._url, connect_timeout_s=self._connect_timeout_s, read_timeout_s=self._read_timeout_s, name=self._name
        )
        self._all.append(link)
        return link

    async def execute(self, *command: Argument) -> Any:
        """Send one command over a borrowed link."""
        async with self.link() as link:
            return await link.execute(*command)

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together over one borrowed link."""
        async with self.link() as link:
            return await link.pipeline(commands)

    async def close(self) -> None:
        """Close every link."""
        for link in self._all:
            await link.close()


class SyncLink:
    """One blocking connection for a thread of its own (the pulse) or a process without a loop (the host)."""

    def __init__(self, url: str, *, connect_timeout_s: float, read_timeout_s: float, name: str) -> None:
        self._pool = ConnectionPool.from_url(
            check_url(url), max_connections=1, **_options(connect_timeout_s, read_timeout_s, name)
        )
        self._client = Redis(connection_pool=self._pool)

    def execute(self, *command: Argument) -> Any:
        """Send one command and return its raw reply."""
        connection, sent, done = None, False, False
        try:
            connection = self._pool.get_connection()
            sent = True
            connection.send_packed_command([_pack(command)], check_health=False)  # type: ignore[no-untyped-call]
            reply = connection.read_response()
            done = True
        except ResponseError as error:
            done = True
            raise translate(error, what=_name(command), sent=True) from error
        except (RedisError, OSError) as error:
            raise translate(error, what=_name(command), sent=sent) from error
        finally:
            if connection is not None:
                if not done:
                    connection.disconnect()  # type: ignore[no-untyped-call]
                self._pool.release(connection)
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
        self._pool.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pack(command: Sequence[Argument]) -> bytes:
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub wants one type for all
    return packed


def _name(command: Iterable[Argument]) -> str:
    first = next(iter(command))
    return first if isinstance(first, str) else str(first)
