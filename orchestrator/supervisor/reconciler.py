"""Walks through the pool, slowly and all the time, and repairs what data loss or torn scripts left behind.

It walks when it begins to lead, when the server was restarted (then data is lost, if ever), when another loop meets
something that Redis refuses to work with, and else every ten minutes.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.log import get_logger
from orchestrator.repair.scan import KeyLifetimes, PoolScan

if TYPE_CHECKING:
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.repair.findings import RepairFinding
    from orchestrator.services import Services

SHARE: Final = 0.01
"""A walk takes this much of one core of the server at most: it rests behind each step."""
LONGEST_REST_S: Final = 2.0
QUIET_STEPS: Final = 20
QUIET_REST_S: Final = 0.5
"""The first steps are this far apart: a small pool is looked through without being noticed at all."""
WALK_EVERY_S: Final = 600.0
POLL_EVERY_S: Final = 15.0
"""How often it asks whether the server is still the same one."""
SHOWN: Final = 5
_log = get_logger(__name__)


class Reconciler:
    """Walks until it is cancelled; `repair_requested` is notified when something could not be done."""

    def __init__(self, services: Services, repair_requested: Wakeup) -> None:
        self._services, self._repair_requested = services, repair_requested
        self._terms = KeyLifetimes.of(services.settings)
        self._pauses = Pauses()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        # The quick loops go first: most of what a failure left behind they put right themselves.
        await anyio.sleep(self._services.settings.supervisor.sweep_s)
        while True:
            try:
                server = await self._server()
                await self._walk()
                self._pauses.reset()
                await self._rest(server)
            except ServerRefused as refusal:
                _log.error("reconcile_refused", error=str(refusal))
                await anyio.sleep(WALK_EVERY_S)
            except StoreError as failure:
                _log.warning("reconcile_interrupted", error=str(failure))
                await anyio.sleep(self._pauses.next_s())

    async def _rest(self, server: str) -> None:
        """Wait until there is a reason to walk again."""
        walked_s = time.monotonic()
        await anyio.sleep(self._services.settings.supervisor.sweep_s)
        while time.monotonic() - walked_s < WALK_EVERY_S:
            if await self._repair_requested.wait(POLL_EVERY_S):
                return
            if await self._server() != server:
                _log.info("server_restarted")
                return

    async def _server(self) -> str:
        return await self._services.store.run_id()

    async def _walk(self) -> None:
        walk = PoolScan(self._services.store, self._terms, repair=True)
        found: list[RepairFinding] = []
        try:
            async with aclosing(walk.steps()) as steps:
                started_s = time.monotonic()
                taken = 0
                async for findings in steps:
                    found += findings
                    spent_s = time.monotonic() - started_s
                    rest_s = min(LONGEST_REST_S, spent_s * (1 / SHARE - 1))
                    await anyio.sleep(max(rest_s, QUIET_REST_S) if taken < QUIET_STEPS else rest_s)
                    taken += 1
                    started_s = time.monotonic()
        finally:
            _report(found, walk)


def _report(found: list[RepairFinding], walk: PoolScan) -> None:
    """A line for each kind of damage, with a few examples."""
    counts = Counter((finding.code, finding.repaired) for finding in found)
    for (code, repaired), count in sorted(counts.items()):
        alike = [each for each in found if (each.code, each.repaired) == (code, repaired)]
        examples = [f"{each.subject} {each.place}".rstrip() for each in alike[:SHOWN]]
        damage = alike[0].damage
        if not repaired:
            _log.error("damage_found", code=code, count=count, examples=examples, found=damage.found)
        elif damage.harmless:
            _log.info("cleaned", code=code, count=count, examples=examples, found=damage.found)
        else:
            _log.warning("repaired", code=code, count=count, examples=examples, found=damage.found, done=damage.repair)
    _log.debug("reconcile_finished", keys=walk.keys_seen, places=walk.places_seen)
