"""Speaks the Redis protocol over one open connection, with hiredis on both sides.

Callers share the connection, and replies are matched in order. The reply for a cancelled caller is dropped when it
arrives, so that no other caller gets it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import hiredis

from orchestrator.core.reading import read_text
from orchestrator.store.failures import is_from_replica
from orchestrator.store.outage import ClosedHere

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.store.calls import Argument

_NOTHING = object()

LATE_S: Final = 1.0
"""Time without a reply after which the server may have been replaced."""
REPLICA_PAUSE_S: Final = 0.5
"""Time for which a new connection to a replica stays open, so that retries during a failover do not connect each."""


def pack(command: Sequence[Argument]) -> bytes:
    """Encode one command."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub wants one type for all
    return packed


class _Exchange:
    """Commands that were sent together, and their replies."""

    __slots__ = ("expected", "future", "replies", "sent_s")

    def __init__(self, expected: int, sent_s: float, future: asyncio.Future[list[Any]]) -> None:
        self.expected, self.sent_s, self.future = expected, sent_s, future
        self.replies: list[Any] = []


class Wire(asyncio.Protocol):
    """One open connection.

    Args:
        transport: of the connection, after the login.
        reply_timeout_s: the connection is closed when a reply takes longer.
        published: called with channel and message of each published message (sharded channels).
        ended: called once when the connection has ended.
        demoted: called when an error reply shows that the server is a replica. The connection then closes as soon as
            the replies to all commands sent so far have arrived.
        late: called every `LATE_S` while a reply is outstanding.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        reply_timeout_s: float,
        published: Callable[[str, str], None] | None = None,
        ended: Callable[[], None] | None = None,
        demoted: Callable[[], None] | None = None,
        late: Callable[[], None] | None = None,
    ) -> None:
        self._transport, self._reply_timeout_s, self._late = transport, reply_timeout_s, late
        self._watch_every_s = reply_timeout_s if late is None else min(reply_timeout_s, LATE_S)
        self._published, self._ended, self._demoted = published, ended, demoted
        self._loop = asyncio.get_running_loop()
        self._opened_s = self._loop.time()
        self._closing = False
        self._closed = asyncio.Event()
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._open: deque[_Exchange] = deque()
        self._watchdog: asyncio.TimerHandle | None = None
        self.lost: Exception | None = None

    @property
    def is_closed(self) -> bool:
        """True when the connection is closed; the event loop reports a loss one turn after the transport closes."""
        return self.lost is not None or self._closing or self._transport.is_closing()

    @property
    def is_busy(self) -> bool:
        """True while a reply is outstanding."""
        return bool(self._open)

    async def wait_closed(self) -> None:
        """Wait until a connection to a replica has delivered its last replies."""
        if self._closing and not self._transport.is_closing():
            await self._closed.wait()

    def leave(self, why: Exception) -> None:
        """Close the connection to a replica, unless it is so new that the address may still lead there."""
        if self._is_old:
            self.close(why)

    @property
    def _is_old(self) -> bool:
        return self._loop.time() - self._opened_s >= REPLICA_PAUSE_S

    def send(self, packed: bytes, expected: int) -> asyncio.Future[list[Any]]:
        """Write packed commands; the future gets their `expected` replies."""
        exchange = _Exchange(expected, self._loop.time(), self._loop.create_future())
        self._open.append(exchange)
        self._transport.write(packed)
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._watch_every_s, self._watch)
        return exchange.future

    def _watch(self) -> None:
        # One timer for the oldest exchange instead of one per exchange.
        self._watchdog = None
        if not self._open:
            return
        waited_s = self._loop.time() - self._open[0].sent_s
        left_s = self._reply_timeout_s - waited_s
        if left_s <= 0:
            self.close(TimeoutError(f"none after {self._reply_timeout_s:g} s"))
        else:
            if self._late is not None and waited_s >= LATE_S:
                self._late()
            next_s = self._watch_every_s - waited_s if waited_s < self._watch_every_s else self._watch_every_s
            self._watchdog = self._loop.call_later(min(left_s, next_s), self._watch)

    def data_received(self, data: bytes) -> None:
        """Match replies to exchanges and pass published messages on."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NOTHING:
                if self._published is not None and isinstance(reply, list) and self._is_push(reply, self._published):
                    continue
                if type(reply) is hiredis.ReplyError and is_from_replica(reply) and self._is_old:
                    self._closing = True
                exchange = self._open[0]
                exchange.replies.append(reply)
                if len(exchange.replies) == exchange.expected:
                    self._open.popleft()
                    if not exchange.future.done():
                        exchange.future.set_result(exchange.replies)
        except (hiredis.ProtocolError, IndexError) as malformed:
            self.close(ConnectionError(f"the answer is not Redis' protocol: {malformed}"))
        if self._closing and not self._open:
            self.close(ClosedHere("the server is a replica"))
            if self._demoted is not None:
                self._demoted()

    def _is_push(self, reply: list[Any], published: Callable[[str, str], None]) -> bool:
        """Handle a message that answers no command; returns False for a reply."""
        if reply[0] == b"smessage":
            published(read_text(reply[1]), read_text(reply[2]))
            return True
        if reply[0] == b"sunsubscribe" and not self._open:
            self.close(ClosedHere("the slot of a subscription has moved"))
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open exchanges."""
        self.close(exc or ConnectionError("the server closed the connection"))

    def close(self, why: Exception) -> None:
        """Close the connection; open exchanges fail with `why`."""
        if self.lost is not None:
            return
        self.lost = why
        self._transport.abort()
        self._closed.set()
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        while self._open:
            future = self._open.popleft().future
            if not future.done():
                future.set_exception(why)
        if self._ended is not None:
            self._ended()
