"""Fetches tasks for one agent: starts the entries that the inbox reader brings, and adopts entries.

After a read or an adoption whose reply was lost, the worker asks for its own lost entries before it reads again
(protocol rule 9). It starts an entry only if the reply is fresh (protocol rule 13).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_whole
from orchestrator.tasks import scripts
from orchestrator.tasks.death_log import log_dead
from orchestrator.tasks.inbox import GroupMissing
from orchestrator.tasks.model import Delivery, LeaseStatus, Verdict, VerdictKind
from orchestrator.tasks.queries import server_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.workers.agent import Agent
    from orchestrator.workers.runtime.parts import WorkerParts
    from orchestrator.workers.runtime.slots import Slots

POLLS_PER_LEASE: Final = 5
"""Checks of an inbox per lease, also when nothing arrives (protocol rule 10). A blocking read lasts at most as long."""
FRESH_SHARE: Final = 1 / 3
"""Share of a lease for which the worker starts the entries of a reply without asking whether they are still its own. A
blocking read takes less. The heartbeat returns entries that were not seen later than that (`UNSEEN_SHARE`)."""
LIMITED_MAX_AGE_MS: Final = 1000
"""Oldest grant of a rate limit that a start may use; older entries are returned (protocol rule 14)."""

_log = get_logger(__name__)


class Fetcher:
    """Fetches tasks for the slots of one agent.

    Attributes:
        name: of the agent.
        key: of its inbox.
        slots: of the agent.
        poll_every_s: longest time between two checks of the inbox.
        on_suspects: called when suspects wait in the pool.
        on_readable: called when an entry may be read, after a time when none was.
        on_due: called when the inbox must be checked earlier than `due_s` said.
        adopts: entries may be lost or expired, so that the worker adopts before it reads.
        paused_until_s: by the monotonic clock; until then its inbox is left alone, after a failure.
    """

    def __init__(
        self, agent: Agent, parts: WorkerParts, slots: Slots, *, register: Callable[[], Awaitable[object]]
    ) -> None:
        self._agent, self._parts, self.slots, self._register = agent, parts, slots, register
        self._services, self._in_flight, self._completer = parts.services, parts.in_flight, parts.completer
        self._lease_s = agent.lease_ms / 1000
        self.name, self.key = agent.name, parts.services.keys.inbox(agent.name)
        self.poll_every_s = self._lease_s / POLLS_PER_LEASE
        self.on_suspects: Callable[[], None] = lambda: None
        self.on_readable: Callable[[Fetcher], None] = lambda _: None
        self.on_due: Callable[[], None] = lambda: None
        slots.on_readable = lambda: self.on_readable(self)
        self.adopts = True
        self.paused_until_s = 0.0
        self._adopted_s = 0.0
        """Time of the last check that could adopt entries."""
        self._checked_s = 0.0
        """Time of the last check, also without a free slot."""
        self._filled = False
        """The inbox held entries at the last check."""
        self._pauses = Pauses()
        self._server_ahead_ms = 0.0

    @property
    def readable(self) -> int:
        """Number of entries that may be read now, unless the whole worker starts nothing."""
        return 0 if self.stopped else self.slots.readable

    @property
    def stopped(self) -> bool:
        """True while an operator has stopped the agent."""
        commands = self._parts.commands
        return bool(commands.desired.active) and commands.stop_of(self._agent.name) is not None

    def is_due(self, now_s: float, *, may_start: bool) -> bool:
        """Return whether the inbox must be checked before its next read."""
        if self.adopts or now_s - self._checked_s >= self.poll_every_s:
            return True
        # A check without a free slot adopted nothing, so the next free slot adopts expired entries at once.
        return may_start and now_s - self._adopted_s >= self.poll_every_s and self.readable > 0

    def due_s(self) -> float:
        """Return when the inbox must be checked, by the monotonic clock."""
        return 0.0 if self.adopts else self._checked_s + self.poll_every_s

    @property
    def may_be_empty(self) -> bool:
        """True if the worker knows of no entry in the inbox, so that a search of many inboxes may replace the check."""
        return not (self.adopts or self._filled or self._in_flight.of(self.name))

    def note_empty(self, searched_s: float) -> None:
        """Note that a search found no entry at this time, so that a check of the inbox would have found none."""
        self._checked_s = self._adopted_s = searched_s

    async def adopt(self, *, may_start: bool) -> None:
        """Check the inbox: adopt lost and expired entries, none unless this worker may start them.

        A stopped agent adopts too: the script requeues its lost and expired entries instead of handing them out.

        Raises:
            StoreError: no answer, or a refusal.
        """
        limit = self.slots.readable if may_start else 0
        if limit and self._agent.limited:
            await self._read_server_clock()
        asked_s = time.monotonic()
        self.adopts = True
        deliveries = await self._lost_and_expired(limit)
        self._checked_s = time.monotonic()
        if limit:
            self._adopted_s = self._checked_s
        if deliveries:
            _log.info("entries_adopted", agent=self.name, count=len(deliveries))
            await self.start(deliveries, asked_s=asked_s)
        self.adopts = False
        self._pauses.reset()

    async def recover(self, failure: StoreError) -> None:
        """Leave the inbox alone for a while, after a failure that concerns this agent alone."""
        self.check_for_lost()
        pause_s = self._pauses.next_s(failure)
        if isinstance(failure, GroupMissing):
            _log.warning("inbox_missing", agent=self.name)
            await self._register()
        else:
            _log.failure("fetch_failed", agent=self.name, error=failure)
        self.paused_until_s = time.monotonic() + pause_s

    async def take(self, deliveries: list[Delivery], *, asked_s: float) -> None:
        """Start the entries of a read that was sent at `asked_s`, by the monotonic clock.

        Raises:
            StoreError: the reply came late, and Redis did not say whether the entries are still this worker's.
        """
        self.adopts = True
        if deliveries and self._agent.limited:
            deliveries = await self._fresh(deliveries)
        await self.start(deliveries, asked_s=asked_s)
        self.adopts = False

    async def _lost_and_expired(self, limit: int, *, retry_for_s: float = 0.0) -> list[Delivery]:
        # Every check asks for own lost entries. Redis may deliver an entry to a connection that broke long ago, and no
        # other worker may adopt it (protocol rule 9). No read is under way here, so an entry that Redis lists for this
        # worker, and that it does not hold, never arrived.
        call = scripts.adopt(
            self._services.keys,
            worker=self._parts.worker,
            agent=self.name,
            lease_ms=self._agent.lease_ms,
            held=[attempt.delivery.entry for attempt in self._in_flight.of(self.name)],
            limit=limit,
            own=True,
            max_deaths={name: skill.options.max_deaths for name, skill in self._agent.skills.items()},
            dead_ttl_s=round(self._services.settings.results.dead_ttl_s),
        )
        adopted = await self._services.store.call(call, retry_for_s=retry_for_s)
        self._filled = adopted.filled
        log_dead(self.name, adopted.dead)
        if adopted.suspects:
            self.on_suspects()
        return adopted.deliveries

    async def start(self, deliveries: list[Delivery], *, asked_s: float) -> None:
        """Start entries that a call returned which was sent at `asked_s`, by the monotonic clock.

        Raises:
            StoreError: the reply came late, and Redis did not say whether the entries are still this worker's.
        """
        self._start(*await self._still_ours(deliveries, asked_s))

    def _start(self, deliveries: list[Delivery], leased_s: float) -> None:
        for delivery in deliveries:
            attempt = self._in_flight.add(delivery)
            if attempt is None:
                continue
            attempt.leased_until_s = leased_s + self._lease_s
            if self.slots.free > 0:
                self.slots.start(attempt)
            else:
                # A suspect, or a parent that goes on, took the slot while the read was under way.
                self._completer.put(delivery, Verdict(VerdictKind.RELEASED, reason="its worker has no free slot"))

    async def _still_ours(self, deliveries: list[Delivery], asked_s: float) -> tuple[list[Delivery], float]:
        """Drop entries of a late reply that another worker has adopted (protocol rule 13).

        Returns:
            The entries of this worker, and the time from which their leases count.
        """
        # The answer to `renew` may come late too.
        while deliveries and time.monotonic() - asked_s > self._lease_s * FRESH_SHARE:
            asked_s = time.monotonic()
            rows = [(one.entry, one.task_id, one.generation) for one in deliveries]
            call = scripts.renew(self._services.keys, worker=self._parts.worker, agent=self.name, rows=rows)
            _, statuses = await self._services.store.call(call)
            kept = zip(deliveries, statuses, strict=True)
            deliveries = [one for one, status in kept if status is not LeaseStatus.LOST]
        return deliveries, asked_s

    async def _fresh(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return limited entries whose rate-limit grant is too old (protocol rule 14)."""
        now_ms = time.monotonic() * 1000 + self._server_ahead_ms
        if now_ms - _granted_ms(deliveries[0]) > LIMITED_MAX_AGE_MS / 2:
            # The clock offset may be stale, so ask the server before an entry is returned.
            now_ms = await self._read_server_clock()
        fresh: list[Delivery] = []
        for one in deliveries:
            if now_ms - _granted_ms(one) <= LIMITED_MAX_AGE_MS:
                fresh.append(one)
            elif self._in_flight.add(one) is not None:
                self._completer.put(
                    one, Verdict(VerdictKind.RELEASED, reason="waited too long for its rate-limit grant")
                )
        return fresh

    async def _read_server_clock(self) -> float:
        now_ms = float(await server_ms(self._services.store))
        self._server_ahead_ms = now_ms - time.monotonic() * 1000
        return now_ms

    def check_for_lost(self) -> None:
        """Ask for own lost entries before the next read."""
        self.adopts = True
        self.on_due()

    async def release_lost(self, deadline_s: float) -> None:
        """Release the entries of a last read whose reply was lost; for a worker that stops."""
        retry_for_s = self._services.settings.redis.command_timeout_s
        deliveries: list[Delivery] = []
        with anyio.CancelScope(deadline=deadline_s) as limit:
            try:
                deliveries = await self._lost_and_expired(self._agent.concurrency, retry_for_s=retry_for_s)
            except StoreError as failure:
                _log.warning("unread_entries_release_failed", agent=self.name, error=str(failure))
        if limit.cancelled_caught:
            _log.warning("unread_entries_release_failed", agent=self.name, error="no answer in time")
        for delivery in deliveries:
            if self._in_flight.add(delivery) is not None:
                self._completer.put(delivery, Verdict(VerdictKind.RELEASED, reason="its worker stopped"))


def _granted_ms(delivery: Delivery) -> int:
    """Return when the entry was appended, by the server's clock: its id begins with that time."""
    return read_whole(delivery.entry.partition("-")[0])
