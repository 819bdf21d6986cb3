"""Reads the doorbell stream of the pool and notifies the loops of changes.

A notification is a hint (protocol rule 5): at the start, after every gap in reading, and in every sweep the loops are
told to check everything. While notifications are about the same queue, Redis assigns its tasks at the end of the read
(docs/internals/adr/0062).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
from anyio.lowlevel import checkpoint

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text
from orchestrator.core.wakeups import BUDGETS, EVERYTHING, PROVIDERS, REGISTRY, SCHEDULES, changed_queue
from orchestrator.tasks.assigning import AGENTS_AT_ONCE, read_then_assign
from orchestrator.tasks.model import Assigned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services
    from orchestrator.supervisor.assigner import Assigner
    from orchestrator.tasks.model import Dispatched

READ_COUNT: Final = 1000
"""The length that the stream keeps at least. After a full read, older entries may have been trimmed unread."""
LONGEST_BLOCK_S: Final = 30.0
"""Longest blocking read, so that a shorter `supervisor.sweep_s` soon applies to a lost connection too."""
LONGEST_ID: Final = 15
"""Digits of the milliseconds in an id; more would be in 30,000 years."""
_log = get_logger(__name__)


def is_beyond(entry_id: str) -> bool:
    """Return whether a client chose this id: entries with the time of Redis would not come behind it."""
    return len(entry_id.partition("-")[0]) >= LONGEST_ID


class Doorbell:
    """Notifies assigner, promoter, scheduler, check of registrations, and keepers of budgets and providers.

    Args:
        calls: takes the replies of calls that assign tasks.
    """

    def __init__(
        self,
        services: Services,
        *,
        assigner: Wakeup,
        promoter: Wakeup,
        scheduler: Wakeup,
        registrations: Wakeup,
        budgets: Wakeup,
        providers: Wakeup,
        calls: Assigner,
    ) -> None:
        self._services, self._assigner, self._promoter = services, assigner, promoter
        self._wakeups = {"scheduled": promoter, SCHEDULES: scheduler, BUDGETS: budgets, PROVIDERS: providers}
        self._scheduler, self._registrations, self._calls = scheduler, registrations, calls
        self._last_names: set[str] = set()
        self._ahead: tuple[str, ...] = ()

    async def run(self) -> None:
        """Read notifications until cancelled."""
        doorbell_key = self._services.keys.doorbell
        block_s = self._block_s()
        link = self._services.store.blocking_link(block_s, name="doorbell")
        cursor: str | None = None
        pauses = Pauses()
        turn = self._services.watch_loop("doorbell", waits_s=LONGEST_BLOCK_S)
        try:
            while True:
                turn.record()
                if block_s != self._block_s():
                    await link.close()
                    block_s = self._block_s()
                    link = self._services.store.blocking_link(block_s, name="doorbell")
                try:
                    if cursor is None:
                        # The position is read before the full check, so that no notification in between is lost.
                        cursor = await self._read_position()
                        self._assigner.notify(REGISTRY)
                        self._registrations.notify(REGISTRY)
                        self._scheduler.notify(SCHEDULES)
                        self._notify_all()
                    read = ("XREAD", "COUNT", READ_COUNT, "BLOCK", int(block_s * 1000), "STREAMS", doorbell_key, cursor)
                    covered: set[str] = set()
                    if ahead := self._ahead:
                        store, queues = self._services.store, [changed_queue(name) for name in ahead]
                        reply, done = await read_then_assign(store, link, read, queues, limit=self._calls.batch)
                        covered = self._covered(ahead, done)
                    else:
                        reply = await link.execute(*read)
                except StoreError as failure:
                    _log.failure("doorbell_read_failed", error=failure)
                    cursor, self._ahead = None, ()
                    await anyio.sleep(pauses.next_s(failure))
                    continue
                pauses.reset()
                entries = reply[0][1] if reply else ()
                if len(entries) == READ_COUNT:
                    self._assigner.notify(REGISTRY)
                    self._registrations.notify(REGISTRY)
                    self._scheduler.notify(SCHEDULES)
                    self._notify_all()
                if entries and is_beyond(cursor := read_text(entries[-1][0])):
                    cursor = None
                named = [self._names(*fields[1::2]) for _, fields in entries]
                if self._pass_on(set[str]().union(*named), covered):
                    # A notified loop sends its call before the next read.
                    await checkpoint()
        finally:
            turn.close()
            await link.close()

    async def _read_position(self) -> str:
        """Return the id of the last entry. A stream that would show no later one begins anew."""
        store, doorbell_key = self._services.store, self._services.keys.doorbell
        last = await store.execute("XREVRANGE", doorbell_key, "+", "-", "COUNT", 1)
        position = read_text(last[0][0]) if last else "0-0"
        if not is_beyond(position):
            return position
        await store.execute("UNLINK", doorbell_key)
        return "0-0"

    def _covered(self, names: Sequence[str], done: Assigned | Dispatched | None) -> set[str]:
        """Record what the call behind a read did; return the notifications that need no further call."""
        if done is None:
            # The assigner calls again if they were named, and deals with the failure.
            return set()
        if self._calls.record([changed_queue(name) for name in names], done):
            # It waits for an opening that it does not know yet.
            self._assigner.notify()
        if not isinstance(done, Assigned):
            left = set(names) if done.left else set()
        else:
            left = {str(QueueName.of_agent(agent)) for agent in done.left}
        if left:
            self._assigner.notify(*left)
        return set(names) - left

    def _pass_on(self, names: set[str], covered: set[str]) -> bool:
        """Notify the loops, except of `covered`, and choose what the next read assigns; return whether it notified."""
        if names:
            _log.debug("doorbell_read", names=sorted(names))
        if REGISTRY in names:
            self._registrations.notify(REGISTRY)
        for name in names - covered:
            self._wakeups.get(name, self._assigner).notify(name)
        # All other names are of queues.
        again = (names & self._last_names) - {REGISTRY} - self._wakeups.keys()
        skills = {name for name in again if changed_queue(name).skill is not None}
        # One call serves one skill or several agents.
        self._ahead = (min(skills),) if skills else tuple(sorted(again)[:AGENTS_AT_ONCE])
        self._last_names = names
        return not names <= covered or not names

    def _block_s(self) -> float:
        return min(LONGEST_BLOCK_S, self._services.settings.supervisor.sweep_s)

    async def sweep(self) -> None:
        """Notify every loop every few seconds, because notifications may be lost or trimmed."""
        with self._services.watch_loop("sweep", waits_s=sweep_s) as turn:
            while True:
                await self._services.live.sleep(sweep_s)
                turn.record()
                self._notify_all()

    @staticmethod
    def _names(what: bytes, agents: bytes = b"", *_: bytes) -> set[str]:
        # An entry that names agents is about these only. No program of the project writes further fields.
        named = read_text(agents).split()
        return {str(QueueName.of_agent(agent)) for agent in named} or {read_text(what)}

    def _notify_all(self) -> None:
        self._assigner.notify(EVERYTHING)
        self._promoter.notify(EVERYTHING)
        self._scheduler.notify(EVERYTHING)
