"""Answers GET with past states of the workspace of a session as JSON, as the page of the replay shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.dashboard.api.operation import QueryParameter, reading
from orchestrator.dashboard.api.session_reading import SESSION
from orchestrator.dashboard.pages.session_replay import compared_states, shown_names
from orchestrator.dashboard.texts import Texts
from orchestrator.dashboard.workspace_rows import session_of
from orchestrator.views.replays import parse_point, read_past_states

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest
    from orchestrator.dashboard.workspace_rows import DifferenceRow

_POINT: Final = "a revision, or the id of an event"


@dataclass(frozen=True, slots=True)
class PastPath:
    """A path of the document; `text` is the beginning of its value as JSON, with masked secrets."""

    path: str
    version: int
    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class PastMachine:
    """A state machine."""

    name: str
    state: str
    version: int
    agent: str


@dataclass(frozen=True, slots=True)
class PastLog:
    """A log: its length, and the number and the beginning of its last entry."""

    name: str
    entries: int
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class PastSet:
    """A set: its size, and the beginning of its members."""

    name: str
    members: int
    text: str


@dataclass(frozen=True, slots=True)
class PastWorkspace:
    """A workspace after one of its events: the first 40 names of each kind.

    Attributes:
        revision: of the event.
        event: its id.
        first: the lowest revision that the stored events reach.
        last: the newest revision.
        reached: False if one request reads too few events to come to the point; `revision` is how far it came, and the
            same request goes on from there.
        complete: False if events before the first stored one are missing.
        totals: number of names of each kind.
        differences: from the point `from`, the first ones; None if the query has none.
        more_differences: number of those that are left out.
    """

    revision: int
    event: str
    first: int
    last: int
    reached: bool
    complete: bool
    paths: tuple[PastPath, ...]
    states: tuple[PastMachine, ...]
    logs: tuple[PastLog, ...]
    sets: tuple[PastSet, ...]
    totals: Mapping[str, int]
    differences: tuple[DifferenceRow, ...] | None
    more_differences: int


@reading(
    "/sessions/replay",
    PastWorkspace,
    SESSION,
    QueryParameter("at", f"The point: {_POINT}; by default the newest event."),
    QueryParameter("from", f"A point to compare with: {_POINT}."),
    QueryParameter("contains", "Only names that contain this text."),
    checks_scope=True,
)
async def replay(asked: PageRequest) -> PastWorkspace:
    """Rebuild the workspace of a session at a point, and say what differs from another one."""
    id_, texts = session_of(asked), Texts()
    at, compared = asked.text("at"), asked.text("from")
    points = [None if at is None else parse_point(at), *([] if compared is None else [parse_point(compared)])]
    log, states = await read_past_states(asked.services, id_, points)
    now, snapshot = states[0].state, states[0].state.snapshot()
    shown = shown_names(texts, snapshot, now.untold, asked.text("contains"))
    found = compared_states(texts, None if compared is None else states[1].state, now)
    return PastWorkspace(
        revision=snapshot.revision,
        event=snapshot.event,
        first=max(0, log.first.revision - 1),
        last=log.last.revision,
        reached=all(one.reached for one in states),
        complete=now.complete,
        paths=tuple(PastPath(*row) for row in shown["paths"]),
        states=tuple(PastMachine(*row) for row in shown["states"]),
        logs=tuple(PastLog(*row) for row in shown["logs"]),
        sets=tuple(PastSet(*row) for row in shown["sets"]),
        totals=shown["totals"],
        differences=None if found["differences"] is None else tuple(found["differences"]),
        more_differences=found["more_differences"],
    )
