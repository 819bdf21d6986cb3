"""Values that workspaces return: results of changes, stored entries, events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, a list of JSON values, or a dict with str keys."""


class Delete(Enum):
    """Deletes a path in a `patch`, where None means the JSON null."""

    DELETE = "delete"

    def __repr__(self) -> str:
        return "DELETE"


DELETE: Final = Delete.DELETE


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of a change.

    Attributes:
        version: new version of the changed path, log, set or state.
        revision: number of shared changes of the workspace so far.
        duplicate: whether a call with the same `op_id` made the change before; then nothing was changed again.
    """

    version: int
    revision: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Patched(Applied):
    """Result of a change of paths; `version` is the highest of their versions.

    Attributes:
        versions: version of each path; of a deleted path its last version, 0 if it did not exist.
    """

    versions: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Counted(Applied):
    """Result of a change that returns a number.

    Attributes:
        value: for `incr` the sum; for `add` and `remove` the number of members that changed.
    """

    value: int = 0


@dataclass(frozen=True, slots=True)
class Appended(Applied):
    """Result of an append; `version` is the number of the last new entry.

    Attributes:
        first: number of the first new entry.
        dropped: number of old entries that were removed for the cap.
    """

    first: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Versioned:
    """Value and version of a path, and the `agent` that wrote it, or empty if none did."""

    value: Json
    version: int
    agent: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log.

    Attributes:
        number: counts the entries from 1, without gaps.
        value: JSON value.
        agent: agent that appended it, or empty if there is none.
        at: time of the append.
    """

    number: int
    value: Json
    agent: str
    at: datetime


@dataclass(frozen=True, slots=True)
class StateEntry:
    """Current state of a state machine.

    Attributes:
        value: data of the last transition.
        version: rises with each transition.
        agent: agent that made the last one, or empty if there is none.
    """

    state: str
    value: Json
    version: int
    agent: str


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """An agent in the session's directory, with its `info`; `left` is the seconds until its lease ends."""

    agent: str
    info: Json
    left: float


@dataclass(frozen=True, slots=True)
class Directive:
    """A directive to an agent.

    Attributes:
        id: id for `acknowledge`.
        kind: name of the directive, as `STOP`.
        value: its data, a JSON value.
        by: agent that sent it; empty for other callers.
        at: time of the sending.
    """

    id: str
    kind: str
    value: Json
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """One change within an event.

    Attributes:
        name: the path; for other kinds the log, set, state machine or agent.
        version: version after the change.
        value: new value; None also for a deleted path.
        previous: value before; None also if there was none.
        deleted: whether the path was deleted.
        told: False if a value was too large for the event; `value` or `previous` is then None in its place.
    """

    name: str
    version: int
    value: Json
    previous: Json
    deleted: bool = False
    told: bool = True


@dataclass(frozen=True, slots=True)
class WorkspaceEvent:
    """One change of a workspace, in order.

    Attributes:
        id: id of the event; `events(after=id)` continues after it.
        kind: patch, append, add, remove, transition, publish, join, direct, acknowledge or clear.
        revision: revision after the change. Revisions have no gaps, so a jump means that events were trimmed.
        agent: agent that made the change, or empty if there is none.
        changes: what changed.
        detail: more, by kind: `first` and `dropped` of an append, `state` and `previous_state` of a transition,
            `target` of a publish, `joined` of a join, `kind` and `id` of a directive, `events` of a clear (whether it
            removed the events before it).
        at: time of the change.
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
    """Everything that a workspace shares, at one moment.

    Attributes:
        revision: number of changes so far.
        paths: the document.
        logs: entries by log, oldest first.
        sets: members by set.
        states: state machines.
        event: id of the last event that the snapshot includes; `events(after=snapshot.event)` continues after it.
    """

    revision: int
    paths: Mapping[str, Versioned]
    logs: Mapping[str, tuple[LogEntry, ...]]
    sets: Mapping[str, frozenset[str]]
    states: Mapping[str, StateEntry]
    event: str


@dataclass(frozen=True, slots=True)
class WorkspaceSize:
    """Size of a workspace.

    Attributes:
        revision: number of changes so far.
        items: paths, log entries, members and states, with those of scratches.
        bytes: their size.
        events: number of stored events.
        changed_at: time of the last event; None if all were trimmed.
        ends_at: time at which it expires.
    """

    revision: int
    items: int
    bytes: int
    events: int
    changed_at: datetime | None
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class Replay:
    """Workspace rebuilt from its events.

    Attributes:
        snapshot: state that the events lead to.
        complete: whether the events reach back to the first change and contain every value.
        differs: names that are stored differently, as `path:NAME`, `log:NAME`, `set:NAME`, `state:ID`; empty if none,
            or if the replay stopped before the last event.
    """

    snapshot: Snapshot
    complete: bool
    differs: tuple[str, ...]
