"""Lists schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.schedules import queries
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from orchestrator.schedules.model import Schedule
    from orchestrator.services import Services


@dataclass(frozen=True, slots=True)
class ScheduleList:
    """Schedules, the next to fire first, paused ones last.

    Attributes:
        total: how many there are, including those beyond the limit, without damaged ones that were met.
    """

    schedules: tuple[Schedule, ...]
    total: int


async def list_schedules(services: Services, *, limit: int = LIMIT) -> ScheduleList:
    """Read at most `limit` schedules."""
    names = await queries.names(services.store)
    found = await queries.schedules(services.store, names[:limit])
    return ScheduleList(tuple(found), len(found) + len(names[limit:]))
