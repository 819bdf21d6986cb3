"""Scans the pool slowly and repairs the damage of data loss and interrupted scripts.

A scan of everything starts when the supervisor begins to lead, after a restart of Redis, when Redis evicts keys, and
when another loop meets data that Redis refuses to work with. Meanwhile the reconciler scans again and again, each scan
spread over ten minutes. Of many agents such a scan checks a part, all in turns.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.core.wakeups import EVERYTHING
from orchestrator.repair.scan import ALL_AGENTS, AgentTurn, KeyLifetimes, PoolScan

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.repair.findings import RepairFinding
    from orchestrator.services import ServerInfo, Services

SHARE: Final = 0.01
"""Largest share of one core of the server that a scan uses; it rests after each step."""
LONGEST_REST_S: Final = 2.0
QUIET_STEPS: Final = 20
QUIET_REST_S: Final = 0.5
"""Rest after each of the first steps, so that the scan of a small pool does not show in its latencies."""
SCAN_EVERY_S: Final = 600.0
AGENTS_IN_TURN: Final = 50
"""Fewest agents that a scan without a reason checks, if there are as many."""
MOST_TURNS: Final = 12
"""Scans after which each agent was checked: in two hours, as by the heartbeats of its workers."""
POLL_EVERY_S: Final = 15.0
"""Interval of the check whether Redis was restarted."""
SHOWN: Final = 5
_log = get_logger(__name__)


class Reconciler:
    """Scans until cancelled; `repair_requested` starts a scan early. Sets `keys_lost` when Redis may have lost keys."""

    def __init__(self, services: Services, repair_requested: Wakeup, *, keys_lost: Wakeup) -> None:
        self._services, self._repair_requested, self._keys_lost = services, repair_requested, keys_lost
        self._pauses = Pauses()
        self._polled_s = 0.0

    async def run(self) -> None:
        """Reconcile until cancelled."""
        with self._services.watch_loop("reconciler", waits_s=_longest_wait_s) as turn:
            # The other loops go first, because they correct most leftovers of a failure.
            await self._services.live.sleep(sweep_s)
            while True:
                turn.record()
                try:
                    server = await self._server()
                    steps, agents = await self._scan(turn)
                    self._pauses.reset()
                    await self._scan_slowly(server, steps, agents, turn)
                except ServerRefused as refusal:
                    _log.error("reconcile_refused", error=str(refusal))
                    await self._wait_refused(turn)
                except StoreError as failure:
                    _log.failure("reconcile_failed", error=failure)
                    await anyio.sleep(self._pauses.next_s())

    async def _wait_refused(self, turn: LoopTurn) -> None:
        until_s = time.monotonic() + SCAN_EVERY_S
        while (left_s := until_s - time.monotonic()) > 0:
            turn.record()
            await anyio.sleep(min(left_s, POLL_EVERY_S))

    async def _scan_slowly(self, server: ServerInfo, steps: int, agents: int, turn: LoopTurn) -> None:
        """Scan with long rests, until there is a reason to scan everything at once.

        Args:
            server: before the last scan.
            steps: of the last scan.
            agents: that it saw.
            turn: of the loop.
        """
        await self._services.live.sleep(sweep_s)
        last_turns = 1
        while True:
            turns = max(1, min(MOST_TURNS, agents // AGENTS_IN_TURN))
            for number in range(turns):
                # The turns divide the agents, which are most of the steps if there are many.
                rest_s = SCAN_EVERY_S * turns / last_turns / max(1, steps)
                ends_s = time.monotonic() + SCAN_EVERY_S
                scan = self._new_scan(AgentTurn(number, turns))
                if (taken := await self._scan_with_rests(scan, server, rest_s, ends_s, turn)) is None:
                    return
                steps, agents, last_turns = taken, scan.agents_seen, turns
                if await self._wait_reason(server, ends_s - time.monotonic(), turn):
                    return

    async def _scan_with_rests(
        self, scan: PoolScan, server: ServerInfo, rest_s: float, ends_s: float, turn: LoopTurn
    ) -> int | None:
        """Scan with a rest before each step; return the number of steps, None if there is a reason to scan at once.

        After `ends_s` the scan goes on at its largest share of the server: the pool has grown since the last one.
        """
        found: list[RepairFinding] = []
        steps, spent_s = 0, 0.0
        try:
            async with aclosing(scan.steps()) as taken:
                while True:
                    least_s = rest_s if time.monotonic() < ends_s else 0.0
                    if await self._wait_reason(
                        server, max(least_s, min(LONGEST_REST_S, spent_s * (1 / SHARE - 1))), turn
                    ):
                        return None
                    started_s = time.monotonic()
                    findings = await anext(taken, None)
                    if findings is None:
                        return steps
                    found += findings
                    steps += 1
                    spent_s = time.monotonic() - started_s
        finally:
            self._report(scan, found)

    async def _wait_reason(self, server: ServerInfo, for_s: float, turn: LoopTurn) -> bool:
        """Wait for a reason to scan everything at once; return whether there is one."""
        until_s = time.monotonic() + for_s
        while True:
            turn.record()
            left_s = max(0.0, until_s - time.monotonic())
            if await self._repair_requested.wait(min(left_s, POLL_EVERY_S)):
                return True
            if time.monotonic() - self._polled_s >= POLL_EVERY_S and await self._has_lost_keys(server):
                self._keys_lost.notify(EVERYTHING)
                return True
            if left_s <= POLL_EVERY_S:
                return False

    async def _has_lost_keys(self, server: ServerInfo) -> bool:
        now = await self._server()
        if now.run_id != server.run_id:
            _log.info("server_restarted")
            return True
        if now.evicted_keys > server.evicted_keys:
            _log.error("keys_evicted", count=now.evicted_keys - server.evicted_keys, policy=now.eviction)
            return True
        return False

    async def _server(self) -> ServerInfo:
        self._polled_s = time.monotonic()
        return await self._services.store.info()

    async def _scan(self, turn: LoopTurn) -> tuple[int, int]:
        """Scan everything, and return the numbers of steps and of agents."""
        scan = self._new_scan()
        found: list[RepairFinding] = []
        try:
            steps = await take_steps(scan.steps(), turn, found)
        finally:
            self._report(scan, found)
        return steps, scan.agents_seen

    def _new_scan(self, agent_turn: AgentTurn = ALL_AGENTS) -> PoolScan:
        lifetimes = KeyLifetimes.of(self._services.settings)
        return PoolScan(self._services.store, lifetimes, repair=True, agent_turn=agent_turn)

    def _report(self, scan: PoolScan, found: Sequence[RepairFinding]) -> None:
        report_findings(found)
        if any(finding.code == "wrong-type" and finding.repaired for finding in found):
            # The scan may have passed what belongs into the key.
            self._repair_requested.notify(EVERYTHING)
        _log.debug("reconcile_finished", keys=scan.keys_seen, places=scan.places_seen)


async def take_steps(
    steps: AsyncGenerator[list[RepairFinding], None],
    turn: LoopTurn,
    found: list[RepairFinding],
    *,
    share: float = SHARE,
) -> int:
    """Take the steps of a scan, with a rest after each, and collect what they find; return their number.

    Args:
        steps: of the scan.
        turn: of the loop that scans.
        found: gets the findings.
        share: largest share of the time that the scan works.
    """
    count = 0
    async with aclosing(steps) as taken:
        started_s = time.monotonic()
        async for findings in taken:
            turn.record()
            found += findings
            spent_s = time.monotonic() - started_s
            rest_s = min(LONGEST_REST_S, spent_s * (1 / share - 1))
            await anyio.sleep(max(rest_s, QUIET_REST_S) if count < QUIET_STEPS else rest_s)
            count += 1
            started_s = time.monotonic()
    return count


def _longest_wait_s(settings: Settings) -> float:
    return max(sweep_s(settings), POLL_EVERY_S)


def report_findings(found: Sequence[RepairFinding]) -> None:
    """Log each kind of damage with a few examples."""
    counts = Counter((finding.code, finding.repaired) for finding in found)
    for (code, repaired), count in sorted(counts.items()):
        alike = [each for each in found if (each.code, each.repaired) == (code, repaired)]
        examples = [f"{each.subject} {each.place}".rstrip() for each in alike[:SHOWN]]
        damage = alike[0].damage
        if not repaired:
            _log.error("damage_found", code=code, count=count, examples=examples, found=damage.found)
        elif damage.harmless:
            _log.info("leftovers_removed", code=code, count=count, examples=examples, found=damage.found)
        else:
            _log.warning(
                "damage_repaired", code=code, count=count, examples=examples, found=damage.found, done=damage.repair
            )
