"""Finds keys of the pool that have another type, because no script that uses such a key works.

Each sweep looks at the keys without a name and at those of a few agents and their skills, a refused assignment at those
of its agent or skill. The reconciler looks at all.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text
from orchestrator.repair.scan import KeyLifetimes, PoolScan
from orchestrator.supervisor.reconciler import report_findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services

IN_TURN: Final = 5
"""Agents, and skills of each, whose keys a sweep looks at beside those of refused queues."""
MOST_REFUSED: Final = 20
"""Refused queues that a sweep looks at; the scan of the reconciler finds the others."""
LONGEST_NAME: Final = 200
"""No program of the project writes longer names."""
_log = get_logger(__name__)


class KeyTypes:
    """Checks and renames until cancelled.

    Args:
        services: of the pool.
        refused: tells the queues whose assignment Redis refused.
        repair_requested: is told after a key was renamed, and of the refused queues.
    """

    def __init__(self, services: Services, refused: Wakeup, *, repair_requested: Wakeup) -> None:
        self._services, self._refused, self._repair_requested = services, refused, repair_requested
        self._known: set[str] = set()
        """Keys that stay and were logged."""

    async def run(self) -> None:
        """Check until cancelled."""
        with self._services.watch_loop("key_types", waits_s=sweep_s) as turn:
            while True:
                turn.record()
                queues = await self._refused.wait(sweep_s(self._services.settings))
                turn.record()
                try:
                    await self._check(queues)
                except StoreError as failure:
                    _log.failure("key_types_failed", error=failure)
                if queues:
                    # It finds what is damaged in another way.
                    self._repair_requested.notify(*queues)

    async def _check(self, queues: Iterable[str]) -> None:
        found = await self._scan().check_types(await self._names([QueueName.parse(queue) for queue in sorted(queues)]))
        report_findings([one for one in found if one.repaired or one.subject not in self._known])
        self._known = {one.subject for one in found if not one.repaired}
        if renamed := [one.subject for one in found if one.code == "wrong-type" and one.repaired]:
            self._repair_requested.notify(*renamed)

    def _scan(self) -> PoolScan:
        return PoolScan(self._services.store, KeyLifetimes.of(self._services.settings), repair=True)

    async def _names(self, refused: Sequence[QueueName]) -> list[str]:
        """Return the keys without a name, and those of refused agents and skills and of a few other agents."""
        store, keys = self._services.store, self._services.keys
        (several,) = await store.pipeline([("ZRANDMEMBER", keys.agents, IN_TURN)])
        agents = [queue.agent for queue in refused[:MOST_REFUSED] if queue.agent]
        # Without a list of agents, its key is of another type.
        agents += [read_text(name) for name in several] if isinstance(several, list) else []
        agents = [agent for agent in agents if len(agent) <= LONGEST_NAME]
        records = await store.pipeline([("HMGET", keys.agent(agent), "skills", "limits") for agent in agents])
        names = keys.fixed
        skills = [queue.skill for queue in refused[:MOST_REFUSED] if queue.skill]
        for agent, record in zip(agents, records, strict=True):
            of_agent, limits = (read_text(one).split() for one in record) if isinstance(record, list) else ([], [])
            skills += random.sample(of_agent, min(IN_TURN, len(of_agent)))
            limits = [limit for limit in limits[:MOST_REFUSED] if len(limit) <= LONGEST_NAME]
            names += keys.of_agent(agent)
            names += [key for limit in (*limits, f"@{agent}") for key in keys.of_limit(limit)]
        for skill in (skill for skill in skills if len(skill) <= LONGEST_NAME):
            names += keys.of_skill(skill)
        return list(dict.fromkeys(names))
