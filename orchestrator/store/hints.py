"""Subscriptions to hints: one connection for any number of channels. A hint may be lost; nothing may depend on one.

Redis pushes what was published, so a connection that is subscribed carries no other commands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
import hiredis
from redis.exceptions import RedisError

from orchestrator.store.failures import translate
from orchestrator.store.links import log_in, make_pool, pack, transport_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio.connection import AbstractConnection as AsyncConnection

    from orchestrator.store.calls import Argument

_NOTHING = object()


class _Wire(asyncio.Protocol):
    """One open connection: sends commands, counts their confirmations, hands on what is published."""

    def __init__(
        self, transport: asyncio.Transport, *, heard: Callable[[str, str], None], ended: Callable[[], None]
    ) -> None:
        self._transport, self._heard, self._ended = transport, heard, ended
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._open: deque[tuple[list[int], asyncio.Future[None]]] = deque()
        self.lost: Exception | None = None

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more: the loop tells of a loss one turn after the transport has closed."""
        return self.lost is not None or self._transport.is_closing()

    def send(self, packed: bytes, owed: int) -> asyncio.Future[None]:
        """Write a command; the future is done when all its `owed` confirmations have come."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.append(([owed], done))
        self._transport.write(packed)
        return done

    def data_received(self, data: bytes) -> None:
        """Tell messages from confirmations."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NOTHING:
                self._take(reply)
        except (hiredis.ProtocolError, IndexError) as garbage:
            self.close(ConnectionError(f"the answer is not Redis' protocol: {garbage}"))

    def _take(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[0] == b"smessage":
            self._heard(reply[1].decode(), reply[2].decode())
            return
        owed, done = self._open[0]
        owed[0] -= 1
        if isinstance(reply, hiredis.ReplyError):
            self._open.popleft()
            if not done.done():
                done.set_exception(reply)
        elif owed[0] == 0:
            self._open.popleft()
            if not done.done():
                done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is still owed, and say that hints may be missing from now on."""
        if self.lost is None:
            self.close(exc or ConnectionError("the server closed the connection"))

    def close(self, why: Exception) -> None:
        """Close the connection; whoever still waits gets `why`."""
        if self.lost is not None:
            return
        self.lost = why
        self._transport.abort()
        while self._open:
            _, done = self._open.popleft()
            if not done.done():
                done.set_exception(why)
        self._ended()


class Hints:
    """One connection, opened on first use and again after a loss.

    Args:
        url: of the server.
        connect_timeout_s: for the connection itself.
        reply_timeout_s: for the confirmation of a command.
        name: shown in the server's client list.
        heard: called with channel and message for each hint.
        ended: called when the connection has ended, also by `close`: all subscriptions are gone with it.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        reply_timeout_s: float,
        name: str,
        heard: Callable[[str, str], None],
        ended: Callable[[], None],
    ) -> None:
        self._pool = make_pool(url, connect_timeout_s=connect_timeout_s, name=name)
        self._reply_timeout_s, self._heard, self._ended = reply_timeout_s, heard, ended
        self._connection: AsyncConnection | None = None
        self._wire: _Wire | None = None
        self._opening = anyio.Lock()

    async def subscribe(self, channels: Sequence[str]) -> None:
        """Hear of these channels from now on.

        Raises:
            ServerRefused: this user may not.
            StoreError: see `failures.translate`.
        """
        await self._send("SSUBSCRIBE", *channels, owed=len(channels))

    async def unsubscribe(self, channels: Sequence[str]) -> None:
        """Hear of them no longer."""
        if self._wire is not None and not self._wire.gone:
            await self._send("SUNSUBSCRIBE", *channels, owed=len(channels))

    async def check(self) -> None:
        """See that the connection still carries something, if there is one; one that does not is closed."""
        if self._wire is not None and not self._wire.gone:
            await self._send("PING", owed=1)

    async def _send(self, *command: Argument, owed: int) -> None:
        what = str(command[0])
        wire = await self._open(what)
        try:
            with anyio.fail_after(self._reply_timeout_s):
                await wire.send(pack(command), owed)
        except TimeoutError as silent:
            why = TimeoutError(f"none after {self._reply_timeout_s:g} s")
            wire.close(why)
            raise translate(why, what=what, sent=True) from silent
        except (OSError, RedisError, hiredis.ReplyError) as error:
            raise translate(error, what=what, sent=True) from error

    async def _open(self, what: str) -> _Wire:
        async with self._opening:
            if self._wire is not None and not self._wire.gone:
                return self._wire
            await self.close()
            try:
                self._connection = await log_in(self._pool)
            except (OSError, RedisError) as error:
                raise translate(error, what=what, sent=False) from error
            transport = transport_of(self._connection)
            self._wire = _Wire(transport, heard=self._heard, ended=self._ended)
            transport.set_protocol(self._wire)
            return self._wire

    async def close(self) -> None:
        """Close the connection; a later `subscribe` opens it again."""
        if self._wire is not None:
            self._wire.close(ConnectionError("the connection was closed"))
        await self._drop()

    async def _drop(self) -> None:
        self._wire = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)
