"""Reads the newest output of a task for a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.ids import check_task_id
from orchestrator.tasks.output import START, as_event, parse_entries

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.tasks.model import TaskEvent
    from orchestrator.tasks.output import StreamEntry

MOST_ENTRIES: Final = 100
MOST_BYTES: Final = 64 * 1024
"""Bytes of the newest entries that a page shows; one that is larger is cut where it is shown."""
_FIRST_READ: Final = 10


@dataclass(frozen=True, slots=True)
class NewestOutput:
    """The newest events of a task, oldest first.

    Attributes:
        after: id of the last one; the stream goes on behind it.
        older: there may be older ones, which are not among these.
    """

    events: tuple[TaskEvent, ...]
    after: str
    older: bool


async def read_newest_output(services: Services, id_: str) -> NewestOutput:
    """Read the newest entries of a task, at most `MOST_ENTRIES` and about `MOST_BYTES`."""
    key = services.keys.out(check_task_id(id_))
    reply: list[Any] = await services.store.execute("XREVRANGE", key, "+", "-", "COUNT", _FIRST_READ)
    newest = parse_entries(reply)
    if len(newest) == _FIRST_READ and sum(len(one.data) for one in newest) < MOST_BYTES // 8:
        more = await services.store.execute(
            "XREVRANGE", key, f"({newest[-1].id}", "-", "COUNT", MOST_ENTRIES + 1 - _FIRST_READ
        )
        newest += parse_entries(more)
    shown: list[StreamEntry] = []
    left = MOST_BYTES
    for entry in newest[:MOST_ENTRIES]:
        left -= len(entry.data)
        if left < 0 and shown:
            break
        shown.append(entry)
    older = len(shown) < len(newest) or len(newest) == _FIRST_READ
    place = newest[0].place if newest else START
    return NewestOutput(tuple(map(as_event, reversed(shown))), f"{place[0]}-{place[1]}", older)
