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


class _PubSubProtocol(asyncio.Protocol):
    """One open connection: sends commands, counts their confirmations, hands on what is published."""

    def __init__(
        self, transport: asyncio.Transport, *, received: Callable[[str, str], None], ended: Callable[[], None]
    ) -> None:
        self._transport, self._received, self._ended = transport, received, ended
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._open: deque[tuple[list[int], asyncio.Future[None]]] = deque()
        self.lost: Exception | None = None

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more: the loop tells of a loss one turn after the transport has closed."""
        return self.lost is not None or self._transport.is_closing()

    def send(self, packed: bytes, expected: int) -> asyncio.Future[None]:
        """Write a command; the future is done when all its `expected` confirmations have come."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.append(([expected], done))
        self._transport.write(packed)
        return done

    def data_received(self, data: bytes) -> None:
        """Tell messages from confirmations."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NOTHING:
                self._take(reply)
        except (hiredis.ProtocolError, IndexError) as malformed:
            self.close(ConnectionError(f"the answer is not Redis' protocol: {malformed}"))

    def _take(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[0] == b"smessage":
            self._received(reply[1].decode(), reply[2].decode())
            return
        expected, done = self._open[0]
        expected[0] -= 1
        if isinstance(reply, hiredis.ReplyError):
            self._open.popleft()
            if not done.done():
                done.set_exception(reply)
        elif expected[0] == 0:
            self._open.popleft()
            if not done.done():
                done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is still expected, and say that hints may be missing from now on."""
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
        received: called with channel and message for each hint.
        ended: called when the connection has ended, also by `close`: all subscriptions are gone with it.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        reply_timeout_s: float,
        name: str,
        received: Callable[[str, str], None],
        ended: Callable[[], None],
    ) -> None:
        self._pool = make_pool(url, connect_timeout_s=connect_timeout_s, name=name)
        self._reply_timeout_s, self._received, self._ended = reply_timeout_s, received, ended
        self._connection: AsyncConnection | None = None
        self._protocol: _PubSubProtocol | None = None
        self._opening = anyio.Lock()

    async def subscribe(self, channels: Sequence[str]) -> None:
        """Hear of these channels from now on.

        Raises:
            ServerRefused: this user may not.
            StoreError: see `failures.translate`.
        """
        await self._send("SSUBSCRIBE", *channels, expected=len(channels))

    async def unsubscribe(self, channels: Sequence[str]) -> None:
        """Hear of them no longer."""
        if self._protocol is not None and not self._protocol.is_closed:
            await self._send("SUNSUBSCRIBE", *channels, expected=len(channels))

    async def check(self) -> None:
        """See that the connection still carries something, if there is one; one that does not is closed."""
        if self._protocol is not None and not self._protocol.is_closed:
            await self._send("PING", expected=1)

    async def _send(self, *command: Argument, expected: int) -> None:
        what = str(command[0])
        protocol = await self._open(what)
        try:
            with anyio.fail_after(self._reply_timeout_s):
                await protocol.send(pack(command), expected)
        except TimeoutError as silent:
            why = TimeoutError(f"none after {self._reply_timeout_s:g} s")
            protocol.close(why)
            raise translate(why, what=what, sent=True) from silent
        except (OSError, RedisError, hiredis.ReplyError) as error:
            raise translate(error, what=what, sent=True) from error

    async def _open(self, what: str) -> _PubSubProtocol:
        async with self._opening:
            if self._protocol is not None and not self._protocol.is_closed:
                return self._protocol
            await self.close()
            try:
                self._connection = await log_in(self._pool)
            except (OSError, RedisError) as error:
                raise translate(error, what=what, sent=False) from error
            transport = transport_of(self._connection)
            self._protocol = _PubSubProtocol(transport, received=self._received, ended=self._ended)
            transport.set_protocol(self._protocol)
            return self._protocol

    async def close(self) -> None:
        """Close the connection; a later `subscribe` opens it again."""
        if self._protocol is not None:
            self._protocol.close(ConnectionError("the connection was closed"))
        await self._drop()

    async def _drop(self) -> None:
        self._protocol = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)
