"""Reads the output stream of a task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_json, read_text, read_whole
from orchestrator.tasks.model import OutputChunk, TaskEvent, TaskState
from orchestrator.tasks.questions import unpack_question
from orchestrator.tasks.records import read_progress, read_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from orchestrator.store.store import Store

Place: TypeAlias = tuple[int, int]
"""Position of an entry: the server's time in ms, and a number within it."""

START: Final[Place] = (0, 0)
_PLACE: Final = re.compile(r"(\d{1,20})-(\d{1,20})", re.ASCII)
_LAST: Final = 2**64 - 1
_FINAL: Final = frozenset(state.value for state in TaskState if state.final)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One stored entry; `data` is JSON for output and progress, else text."""

    place: Place
    kind: str
    generation: int
    attempt: int
    number: int
    data: bytes

    @property
    def id(self) -> str:
        """The position as text."""
        return f"{self.place[0]}-{self.place[1]}"

    @property
    def at(self) -> datetime:
        """When the server stored it."""
        return from_instant_ms(self.place[0])

    @property
    def final(self) -> bool:
        """True when the task ended with it."""
        return self.kind in _FINAL


def check_place(after: str | None) -> Place:
    """Parse the id of an entry; None is the start.

    Raises:
        InvalidInput: not the id of an entry.
    """
    if after is None:
        return START
    found = _PLACE.fullmatch(after) if isinstance(after, str) else None
    if found and (place := (int(found[1]), int(found[2]))) < (_LAST, _LAST) and place[1] <= _LAST:
        return place
    raise InvalidInput(f"after {ascii(after)[:80]} is not the id of an event; give one as it was read, such as 1789-0")


def read_place(text: str) -> Place:
    """Parse an id from the server."""
    ms, _, number = text.partition("-")
    return read_whole(ms), read_whole(number)


async def read_page(store: Store, task_id: str, after: Place, *, limit: int) -> list[StreamEntry]:
    """Read up to `limit` entries behind a position, oldest first."""
    reply = await store.execute("XRANGE", store.keys.out(task_id), f"({after[0]}-{after[1]}", "+", "COUNT", limit)
    return parse_entries(reply)


def parse_entries(reply: Sequence[Any]) -> list[StreamEntry]:
    """Decode the entries of a stream."""
    return [_entry(read_text(raw_id), dict(zip(flat[::2], flat[1::2], strict=True))) for raw_id, flat in reply]


def _entry(id_: str, fields: Mapping[bytes, bytes]) -> StreamEntry:
    return StreamEntry(
        place=read_place(id_),
        kind=read_text(fields[b"k"]),
        generation=read_whole(fields[b"g"]),
        attempt=read_whole(fields[b"a"]),
        number=read_whole(fields.get(b"n", 0)),
        data=fields[b"d"],
    )


async def final_entry(store: Store, task_id: str) -> StreamEntry | None:
    """Return the final entry of a task without a stream, from its record, or None if it has not ended."""
    record = await read_record(store, task_id, "state", "gen", "ended", "reason", "fails", "deaths")
    if record.ended_ms is None:
        return None
    # The last attempt of a dead letter is already counted as a failure or a death.
    attempt = record.attempts if record.state is TaskState.DEAD else record.attempts + 1
    reason = b"" if record.state is TaskState.SUCCEEDED else record.field("reason") or b""
    return StreamEntry((record.ended_ms, 0), record.state, record.generation, attempt, 0, reason)


def as_chunk(entry: StreamEntry) -> OutputChunk:
    """Convert an entry of the kind `output`."""
    return OutputChunk(entry.id, entry.attempt, entry.number, entry.at, read_json(entry.data))


def as_event(entry: StreamEntry) -> TaskEvent:
    """Convert an entry of any kind."""
    more: dict[str, Any]
    match entry.kind:
        case "output":
            more = {"number": entry.number, "data": read_json(entry.data)}
        case "progress":
            more = {"progress": read_progress(entry.data)}
        case "asked" | "answered" | "unanswered":
            more = _about_question(entry)
        case "assigned" | "ready" | "scheduled" | "awaiting_tasks" | "awaiting_input":
            more = {"agent": read_text(entry.data) or None}
        case _:
            more = {"reason": read_text(entry.data)}
    return TaskEvent(entry.id, entry.kind, entry.attempt, entry.at, **more)


def _about_question(entry: StreamEntry) -> dict[str, Any]:
    """Decode the number of the question, then the question, or the answer as JSON and its actor."""
    number, _, rest = entry.data.partition(b" ")
    more: dict[str, Any] = {"number": read_whole(number)}
    if entry.kind == "asked":
        asked = unpack_question(rest)
        more["reason"] = asked.question
        if asked.options:
            more["data"] = [read_json(option.encode()) for option in asked.options]
    elif entry.kind == "answered":
        value, _, actor = rest.partition(b"\n")
        more |= {"data": read_json(value), "reason": read_text(actor)}
    return more
