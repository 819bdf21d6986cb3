"""Subscribes to hints: messages that announce a change of stored data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.router import Router


class Hints:
    """Subscribes to hints over one connection, opened on first use and again after a loss. Hints may be lost.

    The server ends subscriptions of a slot that moves away. The connection then ends too, and `ended` is called.

    Args:
        router: whose links report hints and their ends.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self.close, self.discard_idle = router.close, router.discard_idle

    async def open(self) -> None:
        """Connect, unless a connection is open."""
        if not self._router.is_open:
            await self._router.execute("PING")

    async def subscribe(self, channels: Sequence[str]) -> None:
        """Subscribe to channels.

        Raises:
            ServerRefused: the ACL user may not subscribe.
            StoreError: see `failures.translate`.
        """
        await self._send("SSUBSCRIBE", channels)

    async def unsubscribe(self, channels: Sequence[str]) -> None:
        """Unsubscribe from channels."""
        if self._router.is_open:
            await self._send("SUNSUBSCRIBE", channels)

    async def check(self) -> None:
        """Ping each server over its open connection; close it if there is no reply."""
        for link in self._router.open_links:
            await link.execute("PING")

    async def begin_check(self) -> None:
        """Ping each server over its open connection, without a wait for the reply."""
        for link in self._router.open_links:
            reply = await link.begin("PING")
            # Without a reply the connection closes, and `ended` is called.
            reply.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _send(self, command: str, channels: Sequence[str]) -> None:
        # One command per channel, because each command then has one reply.
        for reply in await self._router.pipeline([(command, channel) for channel in channels]):
            if isinstance(reply, Exception):
                raise reply
