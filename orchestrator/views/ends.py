"""Reads ended tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.store.following import END
from orchestrator.tasks import ends
from orchestrator.tasks.ends import EndFilter
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from orchestrator.services import Services
    from orchestrator.tasks.ends import EndedTask

ALL = EndFilter()


async def list_ended(services: Services, only: EndFilter = ALL, *, limit: int = LIMIT) -> tuple[EndedTask, ...]:
    """Read the tasks that ended last, newest first, at most `limit`."""
    return tuple(await ends.ended_tasks(services.store, only, limit=limit))


def watch_ended(services: Services, only: EndFilter = ALL, *, after: str | None = None) -> AsyncGenerator[EndedTask]:
    """Yield tasks as they end: those behind the place `after`, or those from now on.

    Raises:
        InvalidInput: `after` is no place.
    """
    place = END if after is None else after
    ends.parse_place(place)
    return ends.watch_ended(services.store, only, after=place)
