"""Scans the scopes of the prefix slowly: repairs what lost keys left behind, and takes the steps of their upkeep.

A scan starts when the supervisor begins to lead, after a restart of Redis, when Redis evicts keys, and ten minutes
after the last one. The first one and every sixth compare all entries of memories; the others those of memories that
have lost a key. Most of its time is the supervisor's own: of a tenth of the time, the server works about 1/20.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.repair.scope_scan import ScopeScan
from orchestrator.supervisor.reconciler import POLL_EVERY_S, SCAN_EVERY_S, report_findings, take_steps

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings
    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.repair.findings import RepairFinding
    from orchestrator.services import Services

SHARE: Final = 0.1
"""Largest share of its time that a scan works; it rests after each step."""
DEEP_EVERY: Final = 6
"""Every sixth scan, and the first, compares each entry of the indices of memories with its record."""
_log = get_logger(__name__)


class Housekeeper:
    """Scans until cancelled; `keys_lost` starts a scan early."""

    def __init__(self, services: Services, keys_lost: Wakeup) -> None:
        self._services, self._keys_lost = services, keys_lost
        self._pauses = Pauses()
        self._scans = 0

    async def run(self) -> None:
        """Scan until cancelled."""
        with self._services.watch_loop("housekeeper", waits_s=_longest_wait_s) as turn:
            await self._services.live.sleep(sweep_s)
            while True:
                turn.record()
                try:
                    await self._scan(turn)
                    self._pauses.reset()
                except ServerRefused as refusal:
                    _log.error("housekeeping_refused", error=str(refusal))
                except StoreError as failure:
                    _log.failure("housekeeping_failed", error=failure)
                    await anyio.sleep(self._pauses.next_s(failure))
                    continue
                scanned_s = time.monotonic()
                while time.monotonic() - scanned_s < SCAN_EVERY_S:
                    turn.record()
                    if await self._keys_lost.wait(POLL_EVERY_S):
                        break

    async def _scan(self, turn: LoopTurn) -> None:
        scan = ScopeScan(self._services, repair=True, upkeep=True, deep=self._scans % DEEP_EVERY == 0)
        found: list[RepairFinding] = []
        try:
            await take_steps(scan.steps(), turn, found, share=SHARE)
            self._scans += 1
        finally:
            report_findings(found)
            if scan.kept:
                _log.info("scopes_kept", upkeep=dict(scan.kept))
            _log.debug("housekeeping_finished", keys=scan.keys_seen)


def _longest_wait_s(settings: Settings) -> float:
    return max(sweep_s(settings), POLL_EVERY_S)
