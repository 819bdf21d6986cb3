"""The values of workspaces: what changes answer, what reads give, what events tell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, a list of such, or a dict with texts as keys."""


class Delete(Enum):
    """Stands for "nothing" among the changes of a `patch`, where None is the JSON null."""

    DELETE = "delete"

    def __repr__(self) -> str:
        return "DELETE"


DELETE: Final = Delete.DELETE


@dataclass(frozen=True, slots=True)
class Applied:
    """A change that was made.

    Attributes:
        version: of what was changed: path, log, set, state.
        revision: of the whole workspace; it counts shared changes.
        duplicate: True if this very call (its `op_id`) had been made before; nothing was changed a second time.
    """

    version: int
    revision: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Patched(Applied):
    """A change of several paths; `version` is the highest of theirs.

    Attributes:
        versions: of each path; of a deleted one the last it had, 0 if it was not there.
    """

    versions: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Counted(Applied):
    """A change that answers a number.

    Attributes:
        value: of `incr` the new number; of `add` and `remove` how many members changed.
    """

    value: int = 0


@dataclass(frozen=True, slots=True)
class Appended(Applied):
    """Items that a log has taken; `version` is the number of the last one.

    Attributes:
        first: number of the first one.
        dropped: how many old entries went to make room.
    """

    first: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Versioned:
    """What a path holds, and who wrote it (empty: nobody's agent)."""

    value: Json
    version: int
    agent: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log; numbers count up by one, gaps are not possible."""

    number: int
    value: Json
    agent: str
    at: datetime


@dataclass(frozen=True, slots=True)
class StateEntry:
    """Where one state machine stands, and what was given with its last transition."""

    state: str
    value: Json
    version: int
    agent: str


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """An agent that is in the session now; `left` seconds until it must have renewed its lease."""

    agent: str
    info: Json
    left: float


@dataclass(frozen=True, slots=True)
class Directive:
    """What an agent was told, by which agent (empty: a person or a program)."""

    id: str
    kind: str
    value: Json
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """What one event changed.

    Attributes:
        name: the path; of other kinds the log, set, state machine or agent.
        version: after the change.
        value: the new one; None also for what was deleted.
        previous: what was there before; None also for nothing.
        deleted: True for a path that went.
        told: False if a value was too large for the event: `value` or `previous` is None then, and was not null.
    """

    name: str
    version: int
    value: Json
    previous: Json
    deleted: bool = False
    told: bool = True


@dataclass(frozen=True, slots=True)
class WorkspaceEvent:
    """One change of a workspace, in the order in which they were made.

    Attributes:
        id: where it lies; `events(after=id)` goes on behind it.
        kind: patch, append, add, remove, transition, publish, join, direct, acknowledge or clear.
        revision: of the workspace after it; one more than that of the event before, so a jump shows that some are gone.
        agent: who made it; empty: nobody's agent.
        changes: what changed.
        detail: more, by kind: of an append `first` and `dropped`, of a transition `state` and `previous_state`, of a
            publish `target`, of a join `joined`, of a directive its `kind` and `id`.
        at: when.
    """

    id: str
    kind: str
    revision: int
    agent: str
    changes: tuple[Change, ...]
    detail: Mapping[str, Json]
    at: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is shared, at one moment.

    Attributes:
        revision: how many changes led to it.
        paths: the document.
        logs: entries by log, oldest first.
        sets: members by set.
        states: state machines.
        event: id of the last event that it contains; `events(after=snapshot.event)` tells what comes next.
    """

    revision: int
    paths: Mapping[str, Versioned]
    logs: Mapping[str, tuple[LogEntry, ...]]
    sets: Mapping[str, frozenset[str]]
    states: Mapping[str, StateEntry]
    event: str


@dataclass(frozen=True, slots=True)
class Replay:
    """What the events alone make of a workspace.

    Attributes:
        snapshot: what they lead to.
        complete: True if the events reach back to the beginning and tell every value.
        differs: what is stored otherwise, as `path:NAME`, `log:NAME`, `set:NAME`, `state:ID`; empty if all agrees, or
            if the replay ended before the last event.
    """

    snapshot: Snapshot
    complete: bool
    differs: tuple[str, ...]
