"""Reads the stream of ended tasks. An entry has ids and final states; the rest comes from the records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput, StoreError
from orchestrator.core.reading import read_text, read_whole
from orchestrator.store.following import BEGINNING, END, follow_stream
from orchestrator.tasks.model import STATE_OF_LETTER, TaskState
from orchestrator.tasks.records import TaskRecord, read_each

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Sequence

    from orchestrator.store.store import Store

_PAGE: Final = 100
_PLACE: Final = re.compile(r"(\d{1,20})-(\d{1,20})(?::(\d{1,4}))?")
_LAST_NUMBER: Final = 2**64 - 1
_FIELDS: Final = ("state", "env", "queue", "at", "gen", "reason", "ended")


@dataclass(frozen=True, slots=True)
class EndedTask:
    """The end of a task.

    Attributes:
        id: id of the task.
        outcome: final state.
        ended_at: when it ended.
        place: place of the end in the stream; `watch_ends(after=place)` continues behind it.
        skill: requested skill; None, like the other fields, if the record of the task is gone.
        agent: agent that had it last.
        session: as submitted.
        parent: task that submitted it.
        submitted_at: when it was submitted.
        assigned_at: when its last attempt was assigned; None if it ended without an attempt.
        error: reason of an end without a result; empty if the task was requeued since.
    """

    id: str
    outcome: TaskState
    ended_at: datetime
    place: str
    skill: str | None = None
    agent: str | None = None
    session: str | None = None
    parent: str | None = None
    submitted_at: datetime | None = None
    assigned_at: datetime | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFilter:
    """A filter for ends. All given conditions must hold."""

    outcomes: Collection[TaskState] = ()
    agent: str | None = None
    skill: str | None = None
    session: str | None = None

    def __post_init__(self) -> None:
        if wrong := [state for state in self.outcomes if not state.final]:
            ends = ", ".join(state for state in TaskState if state.final)
            raise InvalidInput(f"no task ends as {wrong[0]}; there are {ends}")

    def accepts(self, end: EndedTask) -> bool:
        """Return whether an end meets the conditions."""
        return (
            (not self.outcomes or end.outcome in self.outcomes)
            and self.agent in {None, end.agent}
            and self.skill in {None, end.skill}
            and self.session in {None, end.session}
        )


async def ended_tasks(store: Store, only: EndFilter, *, limit: int) -> list[EndedTask]:
    """List the ends that the stream keeps, newest first; at most `limit`."""
    found: list[EndedTask] = []
    before = "+"
    while len(found) < limit:
        entries = await store.execute("XREVRANGE", store.keys.events, before, "-", "COUNT", _PAGE)
        if not entries:
            break
        before = f"({read_text(entries[-1][0])}"
        ends = [end for entry, flat in entries for end in reversed(_ends(entry, flat))]
        for first in range(0, len(ends), _PAGE):
            if len(found) < limit:
                found += await _filled(store, ends[first : first + _PAGE], only)
    return found[:limit]


async def watch_ended(
    store: Store, only: EndFilter, *, after: str = END, idle_s: float | None = None
) -> AsyncGenerator[EndedTask]:
    """Yield the ends behind `after` as tasks end, over a dedicated connection; see `follow_stream`."""
    entry, index = parse_place(after)
    entries = follow_stream(
        store, store.keys.events, after=_before(entry) if index >= 0 else entry, idle_s=idle_s, name="ends"
    )
    try:
        async for id_, flat in entries:
            ends = _ends(id_, flat)
            if read_text(id_) == entry:
                ends = ends[index + 1 :]
            for end in await _filled(store, ends, only):
                yield end
    finally:
        await entries.aclose()


def parse_place(place: str) -> tuple[str, int]:
    """Return the entry of a place, and the number of the end in it; -1 for the end or the beginning of the stream.

    Raises:
        InvalidInput: that is no place.
    """
    if place in {END, BEGINNING}:
        return place, -1
    found = _PLACE.fullmatch(place)
    if found is None or found[3] is None:
        raise InvalidInput(f"{place!r} is no place of an end; take one from an end, 0-0 or $")
    return f"{found[1]}-{found[2]}", int(found[3])


async def oldest_kept(store: Store, tasks: int) -> str | None:
    """Return the newest entry of the stream from which on it has at least so many tasks; None if it has fewer."""
    before, count = "+", 0
    while entries := await store.execute("XREVRANGE", store.keys.events, before, "-", "COUNT", _PAGE):
        for entry, flat in entries:
            count += len(flat) // 2
            if count >= tasks:
                return str(read_text(entry))
        before = f"({read_text(entries[-1][0])}"
    return None


def _before(entry: str) -> str:
    ms, number = map(int, entry.split("-"))
    return f"{ms}-{number - 1}" if number else f"{ms - 1}-{_LAST_NUMBER}"


def _ends(entry: bytes, flat: Sequence[bytes]) -> list[EndedTask]:
    text = read_text(entry)
    at = from_instant_ms(read_whole(text.partition("-")[0]))
    pairs: Iterable[tuple[bytes, bytes]] = zip(flat[::2], flat[1::2], strict=True)
    return [
        EndedTask(read_text(id_), STATE_OF_LETTER[read_text(letter)], at, f"{text}:{number}")
        for number, (id_, letter) in enumerate(pairs)
        if read_text(letter) in STATE_OF_LETTER  # otherwise no script wrote it
    ]


async def _filled(store: Store, ends: Sequence[EndedTask], only: EndFilter) -> list[EndedTask]:
    """Add what the records tell, and keep the ends that the filter accepts."""
    wanted = [end for end in ends if not only.outcomes or end.outcome in only.outcomes]
    records = await read_each(store, dict.fromkeys(end.id for end in wanted), *_FIELDS)
    filled = [_with_record(end, records[end.id]) for end in wanted]
    return [end for end in filled if only.accepts(end)]


def _with_record(end: EndedTask, record: TaskRecord | StoreError) -> EndedTask:
    if isinstance(record, StoreError) or not record.exists:
        return end
    # A requeued task has the reason and the times of a later attempt.
    same = record.state is end.outcome
    return EndedTask(
        id=end.id,
        outcome=end.outcome,
        ended_at=end.ended_at,
        place=end.place,
        skill=record.skill,
        agent=record.holder,
        session=record.session,
        parent=record.envelope.parent,
        submitted_at=record.submitted_at,
        assigned_at=from_instant_ms(record.entered_ms) if same and record.holder else None,
        error=record.reason if same and end.outcome is not TaskState.SUCCEEDED else "",
    )
