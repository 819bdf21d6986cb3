"""Fetches tasks: reads the inbox for as many entries as there are free slots, and adopts entries in between.

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
from orchestrator.tasks import scripts
from orchestrator.tasks.inbox import GroupMissing, read_inbox
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
        poll_every_s: longest time between two checks of the inbox.
        on_suspects: called when suspects wait in the pool.
    """

    def __init__(
        self, agent: Agent, parts: WorkerParts, slots: Slots, *, register: Callable[[], Awaitable[object]]
    ) -> None:
        self._agent, self._parts, self._slots, self._register = agent, parts, slots, register
        self._services, self._in_flight, self._completer = parts.services, parts.in_flight, parts.completer
        self._lease_s = agent.lease_ms / 1000
        self.poll_every_s = self._lease_s / POLLS_PER_LEASE
        self.on_suspects: Callable[[], None] = lambda: None
        self._adopted_s = 0.0
        """Time of the last check that could adopt entries."""
        self._checked_s = 0.0
        """Time of the last check, also without a free slot."""
        self._reply_lost = False
        self._pauses = Pauses()
        self._server_ahead_ms = 0.0
        self._link = parts.services.store.blocking_link(self.poll_every_s, name=f"inbox:{agent.name}")

    async def run(self) -> None:
        """Fetch until cancelled."""
        stuck_after_s = self._services.settings.worker.stuck_after_s
        turn = self._services.watch_loop(f"fetcher:{self._agent.name}", waits_s=stuck_after_s + self.poll_every_s)
        try:
            while True:
                turn.record()
                try:
                    await self._turn()
                except StoreError as failure:
                    await self._recover(failure)
        finally:
            turn.close()
            await self._link.close()

    async def _recover(self, failure: StoreError) -> None:
        pause_s = self._pauses.next_s(failure)
        if isinstance(failure, GroupMissing):
            _log.warning("inbox_missing", agent=self._agent.name)
            await self._register()
        else:
            _log.warning("fetch_failed", agent=self._agent.name, error=str(failure))
        await anyio.sleep(pause_s)

    async def _turn(self) -> None:
        free = self._slots.readable
        if free == 0:
            await self._wait_while_full()
        elif self._parts.commands.outdated:
            await self._wait_for_commands()
        elif self._stopped():
            await self._wait_while_stopped(free)
        elif self._parts.suspects.closed_s > 0:
            await self._wait_while_closed()
        elif self._reply_lost or time.monotonic() - self._adopted_s >= self.poll_every_s:
            await self._adopt(free)
        else:
            await self._read(free)
            self._pauses.reset()

    async def _wait_while_full(self) -> None:
        # A busy worker checks the inbox too. If all workers are busy and none did, the gap would look like an outage
        # and delay adoption. `_adopted_s` stays, so that the next free slot adopts expired entries at once.
        with anyio.move_on_after(max(0.0, self._checked_s + self.poll_every_s - time.monotonic())):
            await self._slots.wait_readable()
            return
        await self._lost_and_expired(0)
        self._checked_s = time.monotonic()

    def _stopped(self) -> bool:
        return self._parts.commands.stop_of(self._agent.name) is not None

    async def _wait_while_stopped(self, free: int) -> None:
        # It goes on checking, for the reason above, and because the script requeues lost and expired entries of a
        # stopped agent instead of handing them out.
        with anyio.move_on_after(max(0.0, self._adopted_s + self.poll_every_s - time.monotonic())):
            await self._parts.commands.until(lambda: not self._stopped())
            return
        await self._adopt(free)

    async def _wait_for_commands(self) -> None:
        # Redis may deliver tasks that a stop covers which this worker has not read.
        with anyio.move_on_after(max(0.0, self._checked_s + self.poll_every_s - time.monotonic())):
            await self._parts.commands.until(lambda: not self._parts.commands.outdated)
            return
        await self._lost_and_expired(0)
        self._checked_s = time.monotonic()

    async def _wait_while_closed(self) -> None:
        # A task runs alone in this process: others wait for other processes.
        until_s = min(self._checked_s + self.poll_every_s - time.monotonic(), self._parts.suspects.closed_s)
        with anyio.move_on_after(max(0.0, until_s)):
            await self._parts.suspects.wait_left()
            return
        await self._lost_and_expired(0)
        self._checked_s = time.monotonic()

    async def _read(self, free: int) -> None:
        block_s = max(0.001, self.poll_every_s - (time.monotonic() - self._adopted_s))
        asked_s = time.monotonic()
        self._reply_lost = True
        deliveries = await read_inbox(
            self._link,
            inbox_key=self._services.keys.inbox(self._agent.name),
            agent=self._agent.name,
            worker=self._parts.worker,
            count=free,
            block_ms=max(1, int(block_s * 1000)),
        )
        if deliveries:
            if self._agent.limited:
                deliveries = await self._fresh(deliveries)
            await self.start(deliveries, asked_s=asked_s)
        self._reply_lost = False

    async def _adopt(self, free: int) -> None:
        if self._agent.limited:
            await self._read_server_clock()
        asked_s = time.monotonic()
        self._reply_lost = True
        deliveries = await self._lost_and_expired(free)
        self._adopted_s = self._checked_s = time.monotonic()
        if deliveries:
            _log.info("entries_adopted", agent=self._agent.name, count=len(deliveries))
            await self.start(deliveries, asked_s=asked_s)
        self._reply_lost = False

    async def _lost_and_expired(self, limit: int, *, retry_for_s: float = 0.0) -> list[Delivery]:
        # Every check asks for own lost entries. Redis may deliver an entry to a connection that broke long ago, and no
        # other worker may adopt it (protocol rule 9). No read is under way here, so an entry that Redis lists for this
        # worker, and that it does not hold, never arrived.
        call = scripts.adopt(
            self._services.keys,
            worker=self._parts.worker,
            agent=self._agent.name,
            lease_ms=self._agent.lease_ms,
            held=[attempt.delivery.entry for attempt in self._in_flight.of(self._agent.name)],
            limit=limit,
            own=True,
            max_deaths={name: skill.options.max_deaths for name, skill in self._agent.skills.items()},
            dead_ttl_s=round(self._services.settings.results.dead_ttl_s),
        )
        adopted = await self._services.store.call(call, retry_for_s=retry_for_s)
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
            if self._slots.free > 0:
                self._slots.start(attempt)
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
            call = scripts.renew(self._services.keys, worker=self._parts.worker, agent=self._agent.name, rows=rows)
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
        self._reply_lost = True

    async def release_lost(self, deadline_s: float) -> None:
        """Release the entries of a last read whose reply was lost; for a worker that stops."""
        retry_for_s = self._services.settings.redis.command_timeout_s
        deliveries: list[Delivery] = []
        with anyio.CancelScope(deadline=deadline_s) as limit:
            try:
                deliveries = await self._lost_and_expired(self._agent.concurrency, retry_for_s=retry_for_s)
            except StoreError as failure:
                _log.warning("unread_entries_release_failed", agent=self._agent.name, error=str(failure))
        if limit.cancelled_caught:
            _log.warning("unread_entries_release_failed", agent=self._agent.name, error="no answer in time")
        for delivery in deliveries:
            if self._in_flight.add(delivery) is not None:
                self._completer.put(delivery, Verdict(VerdictKind.RELEASED, reason="its worker stopped"))


def _granted_ms(delivery: Delivery) -> int:
    """Return when the entry was appended, by the server's clock: its id begins with that time."""
    return int(delivery.entry.partition("-")[0])
