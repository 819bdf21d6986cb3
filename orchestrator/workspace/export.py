"""Writes a snapshot as one JSON value, for people and other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.workspace.model import AgentEntry, Json, LogEntry, Snapshot


def export_document(session: str, snapshot: Snapshot, agents: Sequence[AgentEntry]) -> dict[str, Json]:
    """All that is shared; the order of names is that of the alphabet, so that two exports can be compared."""
    return {
        "session": session,
        "revision": snapshot.revision,
        "event": snapshot.event,
        "paths": {path: asdict(held) for path, held in sorted(snapshot.paths.items())},
        "logs": {log: [_entry(entry) for entry in entries] for log, entries in sorted(snapshot.logs.items())},
        "sets": {name: sorted(members) for name, members in sorted(snapshot.sets.items())},
        "states": {id_: asdict(entry) for id_, entry in sorted(snapshot.states.items())},
        "agents": [asdict(entry) for entry in agents],
    }


def _entry(entry: LogEntry) -> dict[str, Json]:
    return asdict(entry) | {"at": entry.at.isoformat()}
