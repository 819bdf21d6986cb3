"""Scans the pool slowly and repairs the damage of data loss and interrupted scripts.

A scan starts when the supervisor begins to lead, after a restart of Redis, when Redis evicts keys, when another loop
meets data that Redis refuses to work with, and every ten minutes.
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
from orchestrator.repair.scan import KeyLifetimes, PoolScan

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
POLL_EVERY_S: Final = 15.0
"""Interval of the check whether Redis was restarted."""
SHOWN: Final = 5
_log = get_logger(__name__)


class Reconciler:
    """Scans until cancelled; `repair_requested` starts a scan early. Sets `keys_lost` when Redis may have lost keys."""

    def __init__(self, services: Services, repair_requested: Wakeup, *, keys_lost: Wakeup) -> None:
        self._services, self._repair_requested, self._keys_lost = services, repair_requested, keys_lost
        self._pauses = Pauses()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        with self._services.watch_loop("reconciler", waits_s=_longest_wait_s) as turn:
            # The other loops go first, because they correct most leftovers of a failure.
            await self._services.live.sleep(sweep_s)
            while True:
                turn.record()
                try:
                    server = await self._server()
                    await self._scan(turn)
                    self._pauses.reset()
                    await self._rest(server, turn)
                except ServerRefused as refusal:
                    _log.error("reconcile_refused", error=str(refusal))
                    await self._wait_refused(turn)
                except StoreError as failure:
                    _log.warning("reconcile_failed", error=str(failure))
                    await anyio.sleep(self._pauses.next_s())

    async def _wait_refused(self, turn: LoopTurn) -> None:
        until_s = time.monotonic() + SCAN_EVERY_S
        while (left_s := until_s - time.monotonic()) > 0:
            turn.record()
            await anyio.sleep(min(left_s, POLL_EVERY_S))

    async def _rest(self, server: ServerInfo, turn: LoopTurn) -> None:
        """Wait for a reason to scan again."""
        scanned_s = time.monotonic()
        await self._services.live.sleep(sweep_s)
        while time.monotonic() - scanned_s < SCAN_EVERY_S:
            turn.record()
            if await self._repair_requested.wait(POLL_EVERY_S):
                return
            now = await self._server()
            if now.run_id != server.run_id:
                _log.info("server_restarted")
                self._keys_lost.notify(EVERYTHING)
                return
            if now.evicted_keys > server.evicted_keys:
                _log.error("keys_evicted", count=now.evicted_keys - server.evicted_keys, policy=now.eviction)
                self._keys_lost.notify(EVERYTHING)
                return

    async def _server(self) -> ServerInfo:
        return await self._services.store.info()

    async def _scan(self, turn: LoopTurn) -> None:
        scan = PoolScan(self._services.store, KeyLifetimes.of(self._services.settings), repair=True)
        found: list[RepairFinding] = []
        try:
            await take_steps(scan.steps(), turn, found)
        finally:
            report_findings(found)
            _log.debug("reconcile_finished", keys=scan.keys_seen, places=scan.places_seen)


async def take_steps(
    steps: AsyncGenerator[list[RepairFinding], None],
    turn: LoopTurn,
    found: list[RepairFinding],
    *,
    share: float = SHARE,
) -> None:
    """Take the steps of a scan, with a rest after each, and collect what they find.

    Args:
        steps: of the scan.
        turn: of the loop that scans.
        found: gets the findings.
        share: largest share of the time that the scan works.
    """
    async with aclosing(steps) as taken:
        started_s = time.monotonic()
        count = 0
        async for findings in taken:
            turn.record()
            found += findings
            spent_s = time.monotonic() - started_s
            rest_s = min(LONGEST_REST_S, spent_s * (1 / share - 1))
            await anyio.sleep(max(rest_s, QUIET_REST_S) if count < QUIET_STEPS else rest_s)
            count += 1
            started_s = time.monotonic()


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
