"""Walks through the pool, slowly and all the time, and mends what data loss or torn scripts left behind.

It walks when it begins to lead, when the server was restarted (then data is lost, if ever), when another loop meets
something that Redis refuses to work with, and else every ten minutes.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.pauses import Pauses
from orchestrator.repair.walk import Terms, Walk

if TYPE_CHECKING:
    from orchestrator.repair.findings import Finding
    from orchestrator.services import Services
    from orchestrator.supervisor.bell import Bell

SHARE: Final = 0.01
"""A walk takes this much of one core of the server at most: it rests behind each step."""
LONGEST_REST_S: Final = 2.0
QUIET_STEPS: Final = 20
QUIET_REST_S: Final = 0.5
"""The first steps are this far apart: a small pool is looked through without being noticed at all."""
WALK_EVERY_S: Final = 600.0
LOOK_EVERY_S: Final = 15.0
"""How often it asks whether the server is still the same one."""
SHOWN: Final = 5
_log = get_logger(__name__)


class Reconciler:
    """Walks until it is cancelled; `trouble` rings when something could not be done."""

    def __init__(self, services: Services, trouble: Bell) -> None:
        self._services, self._trouble = services, trouble
        self._terms = Terms.of(services.settings)
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
                _log.error("reconcile_refused", error=str(refusal), meaning="`orc doctor` says what is not allowed")
                await anyio.sleep(WALK_EVERY_S)
            except StoreError as failure:
                _log.warning("reconcile_interrupted", error=str(failure), meaning="begins a new walk")
                await anyio.sleep(self._pauses.next_s())

    async def _rest(self, server: str) -> None:
        """Wait until there is a reason to walk again."""
        walked_s = time.monotonic()
        await anyio.sleep(self._services.settings.supervisor.sweep_s)
        while time.monotonic() - walked_s < WALK_EVERY_S:
            if await self._trouble.wait(LOOK_EVERY_S):
                return
            if await self._server() != server:
                _log.info("server_restarted", meaning="looks whether all tasks are in their places")
                return

    async def _server(self) -> str:
        return await self._services.store.run_id()

    async def _walk(self) -> None:
        walk = Walk(self._services.store, self._terms, repair=True)
        found: list[Finding] = []
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


def _report(found: list[Finding], walk: Walk) -> None:
    """A line for each kind of damage, with a few examples."""
    counts = Counter((finding.code, finding.mended) for finding in found)
    for (code, mended), count in sorted(counts.items()):
        alike = [each for each in found if (each.code, each.mended) == (code, mended)]
        examples = [f"{each.subject} {each.place}".rstrip() for each in alike[:SHOWN]]
        trouble = alike[0].trouble
        if not mended:
            note = "not repaired; see `orc keys check`"
            _log.error("damage_found", code=code, count=count, examples=examples, found=trouble.found, meaning=note)
        elif trouble.harmless:
            _log.info("tidied", code=code, count=count, examples=examples, found=trouble.found)
        else:
            _log.warning("mended", code=code, count=count, examples=examples, found=trouble.found, done=trouble.repair)
    _log.debug("walked", keys=walk.keys_seen, places=walk.places_seen)
