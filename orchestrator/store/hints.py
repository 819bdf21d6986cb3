"""Subscribes to hints over one connection, however many channels. A hint may be lost; nothing may depend on one.

Redis pushes published messages, so a subscribed connection carries no other commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.store.links import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Hints:
    """One connection, opened on first use and again after a loss.

    Args:
        url: of the server.
        connect_timeout_s: for the connection itself.
        reply_timeout_s: for the confirmation of a command.
        name: shown in the server's client list.
        received: called with channel and message of each hint.
        ended: called when the connection has ended, also by `close`: its subscriptions end with it.
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
        self._link = Link(
            url,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=reply_timeout_s,
            name=name,
            published=received,
            ended=ended,
        )
        self.close = self._link.close

    async def subscribe(self, channels: Sequence[str]) -> None:
        """Receive hints from these channels.

        Raises:
            ServerRefused: the ACL user may not subscribe.
            StoreError: see `failures.translate`.
        """
        await self._send("SSUBSCRIBE", channels)

    async def unsubscribe(self, channels: Sequence[str]) -> None:
        """Stop receiving hints from these channels."""
        if self._link.is_open:
            await self._send("SUNSUBSCRIBE", channels)

    async def check(self) -> None:
        """Ping the server over an open connection; a connection without an answer is closed."""
        if self._link.is_open:
            await self._link.execute("PING")

    async def _send(self, command: str, channels: Sequence[str]) -> None:
        # A command for each channel: so each has one reply.
        for reply in await self._link.pipeline([(command, channel) for channel in channels]):
            if isinstance(reply, Exception):
                raise reply
