"""Shares one connection for hints among all listeners of a store."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from orchestrator.core.errors import ServerUnavailable, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orchestrator.store.hints import Hints

IDLE_S: Final = 2.0
"""Time without a listener after which the connection is closed."""
PROBE_EVERY_S: Final = 5.0


class Listener(Protocol):
    """Receives hints."""

    def received(self, channel: str, message: str) -> None:
        """Take a message of a channel."""

    def interrupted(self) -> None:
        """Note that the subscriptions have ended with a connection, and that hints may have been lost."""


class SharedHints:
    """Subscribes listeners to channels, over one connection, or one per server of a cluster.

    Args:
        open_hints: makes the connection, which calls the first function for each message and the second at its end.
    """

    def __init__(self, open_hints: Callable[[Callable[[str, str], None], Callable[[], None]], Hints]) -> None:
        self._hints = open_hints(self._received, self._ended)
        self._listeners: dict[str, Listener] = {}
        self._left: dict[str, None] = {}
        """Channels without a listener, whose subscriptions end with the next command."""
        self._opening = anyio.Lock(fast_acquire=True)
        self._timer: asyncio.TimerHandle | None = None
        self._probed_s = 0.0

    async def subscribe(self, channels: Sequence[str], listener: Listener) -> None:
        """Subscribe a listener to channels that no other has.

        Raises:
            ServerRefused: the ACL user may not subscribe.
            ServerUnavailable: a connection ended meanwhile, and with it this subscription.
            StoreError: see `failures.translate`.
        """
        await self._end_left(keep=channels)
        # Before the command, because a hint may follow its reply at once.
        self._listeners |= dict.fromkeys(channels, listener)
        try:
            # In order, also while the connection opens.
            async with self._opening:
                await self._hints.open()
            await self._hints.subscribe(channels)
        except BaseException:
            self.leave(channels)
            raise
        if any(self._listeners.get(channel) is not listener for channel in channels):
            # The end of a connection, perhaps to another server of a cluster, has removed all listeners.
            self.leave(channels)
            raise ServerUnavailable("SSUBSCRIBE: a connection for hints ended meanwhile; subscribe again")

    async def unsubscribe(self, channels: Iterable[str]) -> None:
        """Unsubscribe from channels now."""
        self.leave(channels)
        await self._end_left()

    def leave(self, channels: Iterable[str]) -> None:
        """Unsubscribe from channels with the next command; a hint until then is dropped."""
        for channel in channels:
            self._listeners.pop(channel, None)
            self._left[channel] = None
        if not self._listeners and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    async def _end_left(self, *, keep: Sequence[str] = ()) -> None:
        for channel in keep:
            self._left.pop(channel, None)
        left, self._left = list(self._left), {}
        if left:
            await self._hints.unsubscribe(left)

    async def check(self) -> None:
        """Ping the server over an open connection; close it if there is no reply."""
        await self._hints.check()

    async def probe(self) -> None:
        """Ping now and then, without a wait for the reply: a connection without one closes later."""
        if time.monotonic() - self._probed_s >= PROBE_EVERY_S:
            self._probed_s = time.monotonic()
            with contextlib.suppress(StoreError):  # it has just ended, and the listeners know
                await self._hints.begin_check()

    def _received(self, channel: str, message: str) -> None:
        if (listener := self._listeners.get(channel)) is not None:
            listener.received(channel, message)

    def _ended(self) -> None:
        listeners, self._listeners = set(self._listeners.values()), {}
        self._left.clear()
        for listener in listeners:
            listener.interrupted()

    def _close_idle(self) -> None:
        self._timer = None
        if not self._listeners:
            self._left.clear()
            self._hints.discard_idle()

    async def close(self) -> None:
        """Close the connection; a later subscription opens it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._hints.close()
