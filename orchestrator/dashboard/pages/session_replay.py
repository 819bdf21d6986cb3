"""The replay of a session: its workspace after any event, and what differs between two points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.dashboard.page import page
from orchestrator.dashboard.texts import Texts, as_command
from orchestrator.dashboard.workspace_rows import DIFFERENCES, LEFT_OUT, difference_rows, event_rows, session_of
from orchestrator.views.replays import parse_point, read_past_states
from orchestrator.views.workspaces import read_event_at
from orchestrator.workspace.difference import difference

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from orchestrator.dashboard.page import PageRequest
    from orchestrator.workspace.model import Snapshot
    from orchestrator.workspace.replaying import ReplayedState

NAMES: Final = 40
VALUE_CHARS: Final = 160
STEPS: Final = (-1000, -100, -10, -1, 1, 10, 100, 1000)


@page("/sessions/replay", "session_replay.html", narrowed=True)
async def replay(asked: PageRequest) -> Mapping[str, Any]:
    """Rebuild the workspace at a point, the newest one unless the query names another, and at the one to compare."""
    id_, texts = session_of(asked), Texts()
    at = asked.text("at")
    compared = asked.text("from")
    point = None if at is None else parse_point(at)
    base = None if compared is None else parse_point(compared)
    log, states = await read_past_states(asked.services, id_, [point, *([] if base is None else [base])])
    now = states[0]
    snapshot = now.state.snapshot()
    first, last = max(0, log.first.revision - 1), log.last.revision
    contains = asked.text("contains")
    return {
        "id": id_,
        "log": log,
        "first": first,
        "last": last,
        "reached": all(one.reached for one in states),
        "read": max(one.state.revision for one in states),
        "complete": now.state.complete,
        "revision": snapshot.revision,
        "event_id": snapshot.event,
        "event": event_rows(texts, await read_event_at(asked.services, id_, snapshot.event)),
        "steps": [(step, snapshot.revision + step) for step in STEPS if first <= snapshot.revision + step <= last],
        "compared": compared,
        "base": None if base is None else states[1].state.revision,
        "contains": contains,
        "point": {"at": at, "from": compared, "contains": contains},
        **shown_names(texts, snapshot, now.state.untold, contains),
        **compared_states(texts, None if base is None else states[1].state, now.state),
        "commands": [as_command("orc", "workspace", "events", id_, after=snapshot.event)],
    }


def compared_states(texts: Texts, before: ReplayedState | None, after: ReplayedState) -> Mapping[str, Any]:
    """Return the first differences of two states, and the number of those that are left out."""
    if before is None:
        return {"differences": None, "more_differences": 0}
    earlier, later = (before, after) if before.revision <= after.revision else (after, before)
    found = difference(earlier.snapshot(), later.snapshot())
    untold = before.untold | after.untold
    return {"differences": difference_rows(texts, found, untold), "more_differences": max(0, len(found) - DIFFERENCES)}


def shown_names(
    texts: Texts, snapshot: Snapshot, untold: Collection[tuple[str, str]], contains: str | None
) -> Mapping[str, Any]:
    """Return the first names of each kind that contain a text, with short values."""
    wanted = (contains or "").casefold()

    def names(held: Mapping[str, Any]) -> tuple[list[str], int]:
        found = sorted(name for name in held if wanted in name.casefold())
        return found[:NAMES], len(found)

    paths, states, logs, sets = map(names, (snapshot.paths, snapshot.states, snapshot.logs, snapshot.sets))
    return {
        "paths": [
            (
                texts.cut(name, 160),
                held.version,
                texts.cut(held.agent, 128),
                LEFT_OUT if ("path", name) in untold else texts.value(held.value, VALUE_CHARS, name=name),
            )
            for name in paths[0]
            for held in (snapshot.paths[name],)
        ],
        "states": [
            (texts.cut(name, 160), texts.cut(held.state, 80), held.version, texts.cut(held.agent, 128))
            for name in states[0]
            for held in (snapshot.states[name],)
        ],
        "logs": [
            (texts.cut(name, 160), len(held), held[-1].number, texts.value(held[-1].value, VALUE_CHARS))
            for name in logs[0]
            for held in (snapshot.logs[name],)
        ],
        "sets": [
            (texts.cut(name, 160), len(held), texts.cut(", ".join(sorted(held)[:20]), VALUE_CHARS))
            for name in sets[0]
            for held in (snapshot.sets[name],)
        ],
        "totals": {"paths": paths[1], "states": states[1], "logs": logs[1], "sets": sets[1]},
        "names_shown": NAMES,
    }
