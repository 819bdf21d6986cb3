"""Limits the length of lists, and cuts lists of names into pages."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.reading import readable
from orchestrator.store.failures import GroupMissing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

    from orchestrator.services import Services
    from orchestrator.store.calls import Argument

LIMIT: Final = 1000
"""Agents, workers, queues, tasks or sessions that a view returns unless the caller asks for more."""
MOST_NAMES: Final = 5000
"""Names that a page is cut from. Heartbeats move agents and workers all the time, so that pages go by name."""


@dataclass(frozen=True, slots=True)
class NamePage:
    """A page of a list by name.

    Attributes:
        names: of this page.
        cursor: the last of them if more follow, else None.
        looked: number of names that the page was cut from.
        more: there are perhaps more names than these.
    """

    names: tuple[str, ...]
    cursor: str | None
    looked: int
    more: bool


def cut(names: Collection[str], *, after: str | None, limit: int, most: int = MOST_NAMES) -> NamePage:
    """Return the names behind a cursor, in their order."""
    known = sorted(names)
    first = 0 if after is None else bisect_right(known, after)
    page = tuple(known[first : first + limit])
    return NamePage(page, page[-1] if first + limit < len(known) else None, len(known), len(known) >= most)


async def read_together(services: Services, commands: Sequence[Sequence[Argument]]) -> list[Any]:
    """Send commands in one round trip; the reply about a key of another type, or about no group, is None.

    Raises:
        StoreError: Redis did not answer.
    """
    replies = await services.store.pipeline(commands) if commands else []
    return [None if isinstance(reply, GroupMissing) else readable(reply, None) for reply in replies]
