"""Sends each command to the server that has its slot: one link per address, opened at first use, closed when idle.

A reply MOVED, ASK, READONLY or MASTERDOWN says that the command did not run. The router learns the address from MOVED
and sends the command there at once. It follows ASK with plain commands only: while a slot moves, no server has all of
its keys, and a script would take a missing key for an empty one. So scripts wait until the slot has arrived
(docs/internals/adr/0023 and 0024).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.store.failures import Redirected
from orchestrator.store.locator import key_of, runs_script, slot_of
from orchestrator.store.outage import ClosedHere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.links import Link, SyncLink
    from orchestrator.store.locator import Address, Locator

_log = get_logger(__name__)

MOST_REDIRECTS: Final = 5
"""Redirects that one command follows; servers that disagree about a slot answer MOVED in a circle for a moment."""

IDLE_S: Final = 60.0
"""Time without a command after which a link to one of several addresses is closed."""


class Router:
    """The asyncio links of one kind.

    Args:
        locator: answers the address of a slot.
        slot: of commands without a key.
        open_link: makes a link to an address; it connects at its first command.
        shared: many callers share the links. Else one caller sends blocking reads, and only the link in use stays.
        keep: links stay open without commands.
        learned: called with a slot whose address has changed.
    """

    def __init__(
        self,
        locator: Locator,
        *,
        slot: int,
        open_link: Callable[[Address], Link],
        shared: bool = True,
        keep: bool = False,
        learned: Callable[[int], None],
    ) -> None:
        self._locator, self._slot, self._open_link, self._shared = locator, slot, open_link, shared
        self._learned, self._keep = learned, keep
        self._links: dict[Address, Link] = {}
        self._link: Link | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """True while a connection is open."""
        return any(link.is_open for link in self._links.values())

    @property
    def open_links(self) -> list[Link]:
        """The links with an open connection."""
        return [link for link in self._links.values() if link.is_open]

    def link(self, command: Sequence[Argument]) -> Link:
        """Return the link for a command."""
        link = self._link
        # The usual case costs no more than this: one address for all slots, and its link.
        if link is not None and link.address is self._locator.single:
            return link
        link = self._link_of(command)
        self._close_idle()
        return link

    def link_to(self, address: Address) -> Link:
        """Return the link to one of several servers, for commands that concern this server."""
        link = self._choose(address)
        self._close_idle()
        return link

    def _link_of(self, command: Sequence[Argument]) -> Link:
        return self._choose(self._locator.single or self._locator.address(_slot_of(command, self._slot)))

    def _choose(self, address: Address) -> Link:
        link, now_s = self._links.get(address), time.monotonic()
        if link is None:
            link = self._links[address] = self._open_link(address)
        if self._link is not None:
            # `link` returns the last link again without a look at the clock.
            self._link.used_s = now_s
        # The very object of the locator, because `link` compares identities.
        link.address = address
        self._link, link.used_s = link, now_s
        return link

    def _close_idle(self) -> None:
        # The timer closes shared links, because a command must not look at all of them.
        if len(self._links) == 1 or self._keep or (self._shared and self._timer is not None):
            return
        now_s, idle_s = time.monotonic(), IDLE_S if self._shared else 0.0
        for address, link in list(self._links.items()):
            if link is not self._link and not link.is_busy and now_s - link.used_s >= idle_s:
                del self._links[address]
                link.discard()
        if self._timer is None and len(self._links) > 1:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._close_idle()

    async def execute(self, *command: Argument) -> Any:
        """Send one command and return its raw reply.

        Raises:
            StoreError: see `failures.translate`.
        """
        try:
            return await self.link(command).execute(*command)
        except Redirected as redirect:
            return await self.follow(command, redirect)

    async def follow(self, command: Sequence[Argument], redirect: Redirected) -> Any:
        """Send a command that was redirected where it belongs, and return its raw reply.

        Raises:
            StoreError: see `failures.translate`.
        """
        for _ in range(MOST_REDIRECTS):
            assert redirect.address is not None
            try:
                if not redirect.asking:
                    self.learn(redirect)
                    return await self.link(command).execute(*command)
                if runs_script(command):
                    break
                link = self._choose(redirect.address)
                self._close_idle()
                reply = (await link.pipeline([("ASKING",), command]))[1]
                if isinstance(reply, StoreError):
                    raise reply
            except Redirected as again:
                redirect = again
            else:
                return reply
        raise redirect

    def learn(self, redirect: Redirected) -> None:
        """Note where MOVED points to, for the next commands."""
        learn(self._locator, redirect)
        self._learned(redirect.slot)

    async def begin(self, *command: Argument) -> asyncio.Future[list[Any]]:
        """Send one blocking command; see `Link.begin`. A redirect in its reply is learned, and is for the next one.

        Raises:
            StoreError: the command could not be sent.
        """
        link = self.link(command)
        reply = await link.begin(*command)
        reply.add_done_callback(lambda done: self._learn_from(link, done))
        return reply

    def _learn_from(self, link: Link, reply: asyncio.Future[list[Any]]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            error = link.to_error("", reply.result()[0])
            if isinstance(error, Redirected) and not error.asking:
                self.learn(error)

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together and return their replies; an error reply becomes a `StoreError` in the list.

        Commands of one address stay together and in order, and MULTI … EXEC stays whole.

        Raises:
            StoreError: the first connection failed. A later failure is the reply of each command that it concerns,
                because others have run.
        """
        replies: list[Any] = [None] * len(commands)
        await self._send(commands, replies, range(len(commands)), has_run=False)
        for _ in range(MOST_REDIRECTS):
            again = _redirected(commands, replies)
            if not again:
                break
            for index in again:
                if isinstance(reply := replies[index], Redirected):
                    self.learn(reply)
            await self._send(commands, replies, again, has_run=True)
        for index in _asked(commands, replies):
            try:
                replies[index] = await self.follow(commands[index], replies[index])
            except StoreError as failure:
                replies[index] = failure
        return replies

    async def _send(
        self, commands: Sequence[Sequence[Argument]], replies: list[Any], which: Iterable[int], *, has_run: bool
    ) -> None:
        for link, indexes in _by_link(commands, which, self._link_of, single=self._locator.single is not None):
            try:
                found = await link.pipeline([commands[index] for index in indexes])
            except StoreError as failure:
                if not has_run:
                    raise
                found = [failure] * len(indexes)
            has_run = True
            for index, reply in zip(indexes, found, strict=True):
                replies[index] = reply
        self._close_idle()

    def leave_replica(self, address: Address) -> None:
        """Close the connection to an address where another one found a replica."""
        if (link := self._links.get(address)) is not None:
            link.leave_replica()

    def leave(self, address: Address) -> None:
        """Close the connection to an address that another server has replaced; replies under way fail."""
        if (link := self._links.pop(address, None)) is not None:
            if link is self._link:
                self._link = None
            link.leave()

    def leave_moved(self, slot: int) -> None:
        """End a blocking read at a server that no longer has the slot."""
        link = self._link
        if not self._shared and slot == self._slot and link is not None and link.address != self._locator.address(slot):
            link.discard(ClosedHere("the slot is at another server"))

    def discard_idle(self) -> None:
        """Close the connections without an outstanding reply; a later command opens them again."""
        for address, link in list(self._links.items()):
            if not link.is_busy:
                del self._links[address]
                link.discard()
                if link is self._link:
                    self._link = None

    async def close(self) -> None:
        """Close all connections; a later command opens them again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        links, self._links, self._link = list(self._links.values()), {}, None
        for link in links:
            await link.close()


class SyncRouter:
    """The blocking links of one thread.

    Args:
        locator: answers the address of a slot.
        slot: of commands without a key.
        open_link: makes a link to an address; it connects at its first command.
    """

    def __init__(self, locator: Locator, *, slot: int, open_link: Callable[[Address], SyncLink]) -> None:
        self._locator, self._slot, self._open_link = locator, slot, open_link
        self._links: dict[Address, SyncLink] = {}
        self._is_prepared = False

    def _link(self, command: Sequence[Argument]) -> SyncLink:
        address = self._locator.single or self._locator.address(_slot_of(command, self._slot))
        return self._choose(address)

    def _choose(self, address: Address) -> SyncLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._open_link(address)
        link.used_s = time.monotonic()
        return link

    def leave(self, address: Address) -> None:
        """End the connection to an address that another server has replaced. Any thread may call it."""
        if (link := self._links.pop(address, None)) is not None:
            link.leave()

    def _close_idle(self) -> None:
        if len(self._links) == 1:
            return
        now_s = time.monotonic()
        for address, link in list(self._links.items()):
            if now_s - link.used_s >= IDLE_S:
                self._links.pop(address, None)
                link.close()

    def execute(self, *command: Argument) -> Any:
        """Send one command and return its raw reply.

        Raises:
            StoreError: see `failures.translate`.
        """
        reply = self.pipeline([command])[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def execute_beside(self, other: Sequence[Argument], *command: Argument) -> Any:
        """Send one command to the server that has the slot of another one."""
        reply = self._link(other).pipeline([command])[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together and return their replies; see `Router.pipeline`."""
        if not self._is_prepared:
            self._locator.prepare()
            self._is_prepared = True
        replies: list[Any] = [None] * len(commands)
        self._send(commands, replies, range(len(commands)), has_run=False)
        for _ in range(MOST_REDIRECTS):
            again = _redirected(commands, replies)
            if not again:
                break
            for index in again:
                if isinstance(reply := replies[index], Redirected):
                    learn(self._locator, reply)
            self._send(commands, replies, again, has_run=True)
        for index in _asked(commands, replies):
            try:
                replies[index] = self._choose(replies[index].address).pipeline([("ASKING",), commands[index]])[1]
            except StoreError as failure:
                replies[index] = failure
        return replies

    def _send(
        self, commands: Sequence[Sequence[Argument]], replies: list[Any], which: Iterable[int], *, has_run: bool
    ) -> None:
        for link, indexes in _by_link(commands, which, self._link, single=self._locator.single is not None):
            try:
                found = link.pipeline([commands[index] for index in indexes])
            except StoreError as failure:
                if not has_run:
                    raise
                found = [failure] * len(indexes)
            has_run = True
            for index, reply in zip(indexes, found, strict=True):
                replies[index] = reply
        self._close_idle()

    def close(self) -> None:
        """Close all connections."""
        while self._links:
            self._links.popitem()[1].close()


def learn(locator: Locator, redirect: Redirected) -> None:
    """Tell the locator what MOVED said."""
    assert redirect.address is not None
    if locator.address(redirect.slot) != redirect.address:
        _log.info("slot_moved", hash_slot=redirect.slot, address=str(redirect.address))
    # Also a known address, because the reply shows that the command went elsewhere.
    locator.moved(redirect.slot, redirect.address)


def _slot_of(command: Sequence[Argument], otherwise: int) -> int:
    key = key_of(command)
    return otherwise if key is None else slot_of(key)


def _units(commands: Sequence[Sequence[Argument]], which: Iterable[int]) -> Iterator[list[int]]:
    """Yield the indexes of single commands, and of transactions as a whole."""
    unit: list[int] = []
    for index in which:
        unit.append(index)
        if commands[unit[0]][0] != "MULTI" or commands[index][0] in {"EXEC", "DISCARD"}:
            yield unit
            unit = []
    if unit:
        yield unit


_AnyLink = TypeVar("_AnyLink", "Link", "SyncLink")


def _by_link(
    commands: Sequence[Sequence[Argument]],
    which: Iterable[int],
    link_of: Callable[[Sequence[Argument]], _AnyLink],
    *,
    single: bool,
) -> list[tuple[_AnyLink, list[int]]]:
    """Group commands by the link that they go to; `single` if all go to one."""
    if single:
        indexes = list(which)
        return [(link_of(commands[indexes[0]]), indexes)] if indexes else []
    groups: dict[_AnyLink, list[int]] = {}
    for unit in _units(commands, which):
        keyed = next((index for index in unit if key_of(commands[index]) is not None), unit[0])
        groups.setdefault(link_of(commands[keyed]), []).extend(unit)
    return list(groups.items())


def _redirected(commands: Sequence[Sequence[Argument]], replies: Sequence[Any]) -> list[int]:
    """Return the indexes of commands to send again after MOVED."""
    if not any(type(reply) is Redirected and not reply.asking for reply in replies):
        return []
    return [
        index
        for unit in _units(commands, range(len(commands)))
        if any(type(replies[one]) is Redirected and not replies[one].asking for one in unit)
        for index in unit
    ]


def _asked(commands: Sequence[Sequence[Argument]], replies: Sequence[Any]) -> list[int]:
    """Return the indexes of plain commands to send again after ASK, each alone."""
    if not any(type(reply) is Redirected for reply in replies):
        return []
    return [
        unit[0]
        for unit in _units(commands, range(len(commands)))
        if len(unit) == 1 and type(replies[unit[0]]) is Redirected and not runs_script(commands[unit[0]])
        if replies[unit[0]].asking
    ]
