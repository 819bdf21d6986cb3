"""Reads the counters of attempts per agent and skill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agents import stats
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from orchestrator.agents.stats import AttemptStats, By
    from orchestrator.core.durations import Duration
    from orchestrator.services import Services


@dataclass(frozen=True, slots=True)
class StatsList:
    """Counters, most attempts first.

    Attributes:
        total: how many there are, including those beyond the limit.
    """

    stats: tuple[AttemptStats, ...]
    total: int


async def list_stats(services: Services, *, within: Duration = 3600, by: By = "both", limit: int = LIMIT) -> StatsList:
    """Sum the attempts that ended in the last minutes.

    Args:
        services: of the pool.
        within: how far back; at most a day.
        by: `agent`, `skill` or `both`.
        limit: at most this many.

    Raises:
        InvalidInput: `within` or `by` is invalid.
    """
    found = await stats.read_stats(services.store, within=within, by=by)
    return StatsList(tuple(found[:limit]), len(found))
