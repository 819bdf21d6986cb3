"""Reads the inboxes of all agents of one worker process over one connection, with one blocking read.

The read covers the inboxes of the agents with free slots. When another agent gets a free slot meanwhile, the reader
ends the read with CLIENT UNBLOCK and sends one that covers it too. Redis works for each inbox of a read, so reads of
many inboxes have a pause between them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.lowlevel import checkpoint

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, ServerUnavailable, StoreError
from orchestrator.core.log import get_logger
from orchestrator.tasks.inbox import GroupMissing, find_filled, parse_entries, read_inboxes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.workers.runtime.fetcher import Fetcher
    from orchestrator.workers.runtime.parts import WorkerParts

ADOPTIONS_AT_ONCE: Final = 16
"""Inboxes that are checked between two reads, so that a check of many inboxes delays no task for long."""
ENTRIES_AT_ONCE: Final = 1000
"""Most entries of one reply, unless it has more inboxes."""
PAUSE_PER_INBOX_S: Final = 5e-6
"""Pause after a read, for each inbox: a blocked read costs Redis 1 µs for each."""
CHECK_PAUSE_S: Final = 20e-6
"""Pause between two looks for agents whose inboxes are due, for each agent: such a look takes some 0.5 µs for each."""
UNPAUSED: Final = 50
"""Inboxes of a read without a pause, because it costs as much as one of a single inbox."""
SHORT_BLOCK_S: Final = 0.02
"""Longest read without the right to end it, while agents that it does not cover may get a free slot."""
UNBLOCK_TRIES: Final = 20
UNBLOCK_AGAIN_S: Final = 0.001
"""Pause between two tries: Redis may read CLIENT UNBLOCK before the read that it shall end."""

_log = get_logger(__name__)


class InboxReader:
    """Reads the inboxes of a worker's agents, and lets their fetchers adopt in between.

    Args:
        parts: of the worker.
        fetchers: of all agents.
    """

    def __init__(self, parts: WorkerParts, fetchers: Sequence[Fetcher]) -> None:
        self._parts, self._fetchers = parts, fetchers
        self._by_key = {fetcher.key.encode(): fetcher for fetcher in fetchers}
        self._poll_every_s = min(fetcher.poll_every_s for fetcher in fetchers)
        name = f"inbox:{fetchers[0].name}" if len(fetchers) == 1 else "inboxes"
        self._link = parts.services.store.blocking_link(self._poll_every_s, name=name, opened=self._forget_id)
        self._woken, self._wanted = anyio.Event(), anyio.Event()
        self._reading: frozenset[Fetcher] = frozenset()
        self._link_id: int | None = None
        """Of the connection, unless the link has opened another one since."""
        self._client_id: int | None = None
        """Of the connection, while a read blocks that does not cover all agents."""
        self._may_unblock = True
        self._next_read_s = self._next_look_s = self._due_s = 0.0
        self._pauses = Pauses()
        for fetcher in fetchers:
            fetcher.on_readable, fetcher.on_due = self._note_readable, self._look_soon

    async def run(self) -> None:
        """Read until cancelled."""
        services = self._parts.services
        stuck_after_s = services.settings.worker.stuck_after_s
        turn = services.watch_loop("fetcher", waits_s=stuck_after_s + self._poll_every_s)
        try:
            async with anyio.create_task_group() as beside:
                beside.start_soon(self._unblock_when_wanted)
                beside.start_soon(self._watch_commands)
                beside.start_soon(self._watch_suspects)
                while True:
                    turn.record()
                    try:
                        await self._turn()
                    except StoreError as failure:
                        self._look_soon()
                        _log.failure("inboxes_unread", error=failure)
                        await anyio.sleep(self._pauses.next_s(failure))
        finally:
            turn.close()
            await self._link.close()

    async def _turn(self) -> None:
        # Before it looks, so that it misses no change while it adopts.
        self._woken = anyio.Event()
        now_s = time.monotonic()
        may_start = not self._parts.commands.outdated and self._parts.suspects.closed_s == 0
        due: list[Fetcher] = []
        if now_s >= self._next_look_s:
            due = [
                fetcher
                for fetcher in self._fetchers
                if fetcher.is_due(now_s, may_start=may_start) and fetcher.paused_until_s <= now_s
            ]
        if due:
            due = await self._without_empty(due)
        if due:
            # In turns, also when checks fail.
            due.sort(key=lambda fetcher: fetcher.due_s())
            await self._adopt(due[:ADOPTIONS_AT_ONCE], may_start=may_start)
        if len(due) > ADOPTIONS_AT_ONCE:
            if now_s >= self._next_read_s and (ready := self._ready(may_start=may_start)):
                await self._read(ready, block_s=None)
            return
        if now_s >= self._next_look_s:
            self._due_s = min(max(fetcher.due_s(), fetcher.paused_until_s) for fetcher in self._fetchers)
            self._next_look_s = time.monotonic() + CHECK_PAUSE_S * len(self._fetchers)
        if (pause_s := self._next_read_s - time.monotonic()) > 0:
            await anyio.sleep(pause_s)
        if ready := self._ready(may_start=may_start):
            await self._read(ready, block_s=self._until_due_s())
        else:
            await self._wait()

    def _ready(self, *, may_start: bool = True) -> dict[Fetcher, int]:
        """Return the agents whose inboxes may be read, with the number of entries."""
        if not may_start:
            return {}
        fetchers: Iterable[Fetcher] = self._fetchers
        if self._parts.commands.desired.active:
            fetchers = (fetcher for fetcher in fetchers if not fetcher.stopped)
        return {fetcher: free for fetcher in fetchers if not fetcher.adopts and (free := fetcher.slots.readable) > 0}

    def _until_due_s(self) -> float:
        due_s = max(self._due_s, self._next_look_s)
        return min(self._poll_every_s, max(0.001, due_s - time.monotonic()))

    async def _wait(self) -> None:
        """Wait until an inbox may be read, or must be checked."""
        wait_s = self._until_due_s()
        if (closed_s := self._parts.suspects.closed_s) > 0:
            wait_s = min(wait_s, closed_s)
        with anyio.move_on_after(wait_s):
            await self._woken.wait()

    # ----------------------------------------------------------------------------------------------------- adoptions

    async def _without_empty(self, due: list[Fetcher]) -> list[Fetcher]:
        """Search the inboxes that may be empty all at once, and return the agents whose inboxes must be checked.

        Raises:
            ServerUnavailable: Redis did not answer.
        """
        if not any(fetcher.may_be_empty for fetcher in due):
            return due
        # With those that are not due yet, so that one search does for all.
        searched, searched_s = [fetcher for fetcher in self._fetchers if fetcher.may_be_empty], time.monotonic()
        filled, suspects = await find_filled(self._parts.services.store, [fetcher.key for fetcher in searched])
        empty = {fetcher for fetcher in searched if fetcher.key not in filled}
        for fetcher in empty:
            fetcher.note_empty(searched_s)
            if suspects:
                fetcher.on_suspects()
        return [fetcher for fetcher in due if fetcher not in empty]

    async def _adopt(self, due: Sequence[Fetcher], *, may_start: bool) -> None:
        """Check inboxes, of which no read is under way.

        Raises:
            ServerUnavailable: Redis did not answer.
        """
        failures: list[StoreError] = []

        async def adopt(fetcher: Fetcher) -> None:
            try:
                await fetcher.adopt(may_start=may_start)
            except ServerUnavailable as failure:
                failures.append(failure)
            except StoreError as failure:
                await fetcher.recover(failure)

        if len(due) == 1:
            await adopt(due[0])
        else:
            async with anyio.create_task_group() as group:
                for fetcher in due:
                    group.start_soon(adopt, fetcher)
        if failures:
            raise failures[0]

    # --------------------------------------------------------------------------------------------------------- reads

    async def _read(self, ready: dict[Fetcher, int], *, block_s: float | None) -> None:
        """Read inboxes, at most as many entries of each as the fullest agent has free slots.

        Raises:
            StoreError: no answer.
        """
        partial = len(ready) < len(self._fetchers)
        if block_s is not None and partial:
            if await self._prepare_unblock():
                # More agents may have got free slots meanwhile.
                ready = self._ready() or ready
            if not self._may_unblock:
                block_s = min(block_s, SHORT_BLOCK_S)
        count = max(1, min(*ready.values(), ENTRIES_AT_ONCE // len(ready), ENTRIES_AT_ONCE))
        asked_s = time.monotonic()
        if len(ready) > UNPAUSED:
            self._next_read_s = asked_s + len(ready) * PAUSE_PER_INBOX_S
        self._reading = frozenset(ready)
        answered = False
        try:
            found = await read_inboxes(
                self._link,
                [fetcher.key for fetcher in ready],
                worker=self._parts.worker,
                count=count,
                block_ms=None if block_s is None else max(1, int(block_s * 1000)),
            )
            answered = True
        except (GroupMissing, ServerRefused) as failure:
            # Redis has read nothing, because one inbox cannot be read.
            answered = True
            await self._read_each(list(ready), failure)
            return
        finally:
            self._reading, self._client_id = frozenset(), None
            if not answered:
                for fetcher in ready:
                    fetcher.check_for_lost()
        self._pauses.reset()
        for key, entries in found:
            await self._take(self._by_key[key], entries, asked_s=asked_s)
        if len(found) == 1 and len(found[0][1]) == 1:
            # A handler that never waits runs in the first turn, and its verdict is sent in the second: before the next
            # read, which would delay it.
            await checkpoint()
            await checkpoint()

    async def _take(self, fetcher: Fetcher, entries: list[Any], *, asked_s: float) -> None:
        self._parts.task_log.entries_read(fetcher.name, len(entries))
        try:
            await fetcher.take(parse_entries(fetcher.name, entries), asked_s=asked_s)
        except StoreError as failure:
            # It asks for these entries before its next read. The entries of other agents start now.
            await fetcher.recover(failure)

    async def _read_each(self, ready: Sequence[Fetcher], failure: StoreError) -> None:
        """Read each inbox alone, so that one that cannot be read, such as one without its group, affects no other."""
        if len(ready) == 1:
            await ready[0].recover(failure)
            return
        for fetcher in ready:
            if (free := fetcher.readable) == 0:
                continue
            asked_s, answered = time.monotonic(), False
            try:
                found = await read_inboxes(
                    self._link, [fetcher.key], worker=self._parts.worker, count=free, block_ms=None
                )
                answered = True
            except (GroupMissing, ServerRefused) as refusal:
                answered = True
                await fetcher.recover(refusal)
                continue
            finally:
                if not answered:
                    fetcher.check_for_lost()
            for _, entries in found:
                await self._take(fetcher, entries, asked_s=asked_s)

    # ---------------------------------------------------------------------------------------------- ends of a read

    async def _prepare_unblock(self) -> bool:
        """Learn the id of the connection; return whether that took a round trip."""
        if not self._may_unblock:
            return False
        asks = self._link_id is None or not self._link.is_open
        try:
            if asks:
                self._link_id = int(await self._link.execute("CLIENT", "ID"))
            self._client_id = self._link_id
        except ServerRefused as refusal:
            self._forbid(refusal)
        return asks

    def _forget_id(self) -> None:
        self._link_id = self._client_id = None

    def _forbid(self, refusal: ServerRefused) -> None:
        self._may_unblock, self._client_id = False, None
        _log.warning("unblock_refused", error=str(refusal))

    def _look_soon(self) -> None:
        self._next_look_s = self._due_s = 0.0

    def _note_readable(self, fetcher: Fetcher) -> None:
        self._woken.set()
        if fetcher.is_due(time.monotonic(), may_start=True):
            self._look_soon()
        if self._client_id is not None and fetcher not in self._reading:
            self._wanted.set()

    def _note_change(self) -> None:
        self._woken.set()
        if any(fetcher not in self._reading for fetcher in self._ready()):
            self._wanted.set()

    async def _watch_commands(self) -> None:
        while True:
            await self._parts.commands.wait_changed()
            self._note_change()

    async def _watch_suspects(self) -> None:
        while True:
            await self._parts.suspects.wait_left()
            self._note_change()

    async def _unblock_when_wanted(self) -> None:
        """End a read that does not cover an agent which has a free slot now."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            if (pause_s := self._next_read_s - time.monotonic()) > 0:
                await anyio.sleep(pause_s)
            under_way, client_id = self._reading, self._client_id
            for _ in range(UNBLOCK_TRIES):
                if client_id is None or not under_way or self._reading is not under_way:
                    break
                try:
                    ended = await self._parts.services.store.execute("CLIENT", "UNBLOCK", client_id)
                except ServerRefused as refusal:
                    self._forbid(refusal)
                    break
                except StoreError:
                    break
                if ended:
                    break
                await anyio.sleep(UNBLOCK_AGAIN_S)
