"""Rebuilds a workspace from its events and compares it with the stored one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.core.errors import DamagedData
from orchestrator.core.reading import read_as
from orchestrator.workspace.events import UNREADABLE, read_events
from orchestrator.workspace.model import LogEntry, Replay, Snapshot, StateEntry, Versioned
from orchestrator.workspace.queries import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from orchestrator.store.scoped import ScopedStore
    from orchestrator.workspace.model import Change, WorkspaceEvent


@dataclass
class ReplayedState:
    """State after the events so far."""

    revision: int = 0
    event: str = "0-0"
    complete: bool = True
    paths: dict[str, Versioned] = field(default_factory=dict)
    logs: dict[str, list[LogEntry]] = field(default_factory=dict)
    sets: dict[str, set[str]] = field(default_factory=dict)
    states: dict[str, StateEntry] = field(default_factory=dict)
    untold: set[tuple[str, str]] = field(default_factory=set)
    """Kind and name of the paths and states whose value an event left out; it is None here."""

    @property
    def entries(self) -> int:
        """Number of paths, log entries, members and states."""
        shared = sum(map(len, self.logs.values())) + sum(map(len, self.sets.values()))
        return len(self.paths) + len(self.states) + shared

    def copy(self) -> ReplayedState:
        """Return a state that changes by itself; the values are shared, because no event changes one in place."""
        return replace(
            self,
            paths=dict(self.paths),
            logs={log: list(entries) for log, entries in self.logs.items()},
            sets={name: set(members) for name, members in self.sets.items()},
            states=dict(self.states),
            untold=set(self.untold),
        )

    def take(self, event: WorkspaceEvent) -> None:
        """Apply one event."""
        # A jump means trimmed events, whose effect is unknown.
        self.complete = self.complete and event.revision == self.revision + 1
        self.revision, self.event = event.revision, event.id
        match event.kind, event.detail.get("target"):
            case ("patch", _) | ("publish", "path"):
                for change in event.changes:
                    self._write(change, event)
            case ("append", _) | ("publish", "log"):
                self._append(event)
            case "add", _:
                self.sets.setdefault(event.changes[0].name, set()).update(change.value for change in event.changes)
            case "remove", _:
                self.sets.setdefault(event.changes[0].name, set()).difference_update(
                    change.value for change in event.changes
                )
            case "transition", _:
                self._move(event.changes[0], event)
            case "clear", _:
                for held in (self.paths, self.logs, self.sets, self.states):
                    held.clear()
                self.untold.clear()
                self.complete = True

    def take_any(self, event: WorkspaceEvent) -> None:
        """Apply one event; a damaged one has no effect that is known."""
        if event.kind == UNREADABLE:
            self.complete, self.event = False, event.id
            return
        try:
            read_as("an event", self.take, event)
        except DamagedData:
            self.complete = False

    def _write(self, change: Change, event: WorkspaceEvent) -> None:
        if change.deleted:
            self.paths.pop(change.name, None)
            self.untold.discard(("path", change.name))
            return
        self._note_told(change, "path")
        self.paths[change.name] = Versioned(change.value, change.version, event.agent)

    def _append(self, event: WorkspaceEvent) -> None:
        entries = self.logs.setdefault(event.changes[0].name, [])
        for change in event.changes:
            self._note_told(change)
            entries.append(LogEntry(change.version, change.value, event.agent, event.at))
        del entries[: event.detail["dropped"]]

    def _move(self, change: Change, event: WorkspaceEvent) -> None:
        self._note_told(change, "state")
        self.states[change.name] = StateEntry(event.detail["state"], change.value, change.version, event.agent)

    def _note_told(self, change: Change, kind: str = "") -> None:
        untold = not change.told and change.value is None
        if untold:
            self.complete = False
        if untold and kind:
            self.untold.add((kind, change.name))
        else:
            self.untold.discard((kind, change.name))

    def snapshot(self) -> Snapshot:
        """Return the state as a snapshot."""
        return Snapshot(
            self.revision,
            self.paths,
            {log: tuple(entries) for log, entries in self.logs.items() if entries},
            {name: frozenset(members) for name, members in self.sets.items() if members},
            self.states,
            self.event,
        )


def replayed(events: Iterable[WorkspaceEvent]) -> tuple[Snapshot, bool]:
    """Return the state that events lead to, and whether it is complete."""
    made = ReplayedState()
    for event in events:
        made.take(event)
    return made.snapshot(), made.complete


async def replay(scope: ScopedStore, *, until: str | None) -> Replay:
    """Apply all events, or those up to `until`; compare with the stored workspace in the first case."""
    stored = await read_snapshot(scope) if until is None else None
    # Stop at the snapshot's event, because other agents may write meanwhile.
    made, complete = replayed(
        [event async for event in read_events(scope, until=until if stored is None else stored.event)]
    )
    return Replay(made, complete, () if stored is None else tuple(_differences(made, stored)))


def _differences(made: Snapshot, stored: Snapshot) -> Iterator[str]:
    yield from _differing("path", made.paths, stored.paths)
    yield from _differing("log", _untimed(made), _untimed(stored))
    yield from _differing("set", made.sets, stored.sets)
    yield from _differing("state", made.states, stored.states)


def _untimed(snapshot: Snapshot) -> dict[str, list[tuple[int, object, str]]]:
    # The times of an entry and of its event come from two reads of the clock and may differ by a millisecond.
    return {log: [(e.number, e.value, e.agent) for e in entries] for log, entries in snapshot.logs.items()}


def _differing(kind: str, made: Mapping[str, object], stored: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(made.keys() | stored.keys()):
        if made.get(name) != stored.get(name):
            yield f"{kind}:{name}"
