"""Turns the workspace events of the session into rows of the report: agent, change, time and version."""

from __future__ import annotations

import json
from collections import Counter, deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from orchestrator.workers.demo.models import ChangeCount, ChangeLog, ChangeLogRow
from orchestrator.workers.demo.shared_findings import GRAPHS, MEASURES, REMARKS
from orchestrator.workers.demo.text_format import count, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orchestrator.workspace.model import Snapshot, WorkspaceEvent
    from orchestrator.workspace.workspace import WorkspaceView

FIRST_ROWS: Final = 200
LAST_ROWS: Final = 100
"""The report shows the first and the last rows, and counts the rest."""
MAX_DESCRIPTION: Final = 90
BEGINNING: Final = "0-0"


async def read_change_log(workspace: WorkspaceView, snapshot: Snapshot) -> ChangeLog:
    """Read the events up to a snapshot, as far as the stream still has them."""
    first: list[ChangeLogRow] = []
    last: deque[ChangeLogRow] = deque(maxlen=LAST_ROWS)
    made: Counter[tuple[str, str, str]] = Counter()
    if snapshot.event != BEGINNING:
        async with aclosing(workspace.events(BEGINNING, block=0)) as events:
            async for event in events:
                row = describe_event(event)
                made[row.agent, row.kind, row.name] += 1
                (first if len(first) < FIRST_ROWS else last).append(row)
                if event.id == snapshot.event:
                    break
    rows = (*first, *last)
    return ChangeLog(
        session=workspace.session,
        changes=snapshot.revision,
        counters={path: held.value for path, held in snapshot.paths.items() if isinstance(held.value, int)},
        rows=rows,
        left_out=snapshot.revision - len(rows),
        change_counts=tuple(
            ChangeCount(agent=agent, kind=kind, name=name, changes=number)
            for (agent, kind, name), number in made.items()
        ),
    )


def describe_event(event: WorkspaceEvent) -> ChangeLogRow:
    """Describe one event as a row."""
    names = list(dict.fromkeys(change.name for change in event.changes))
    return ChangeLogRow(
        revision=event.revision,
        at=event.at.timestamp(),
        agent=event.agent,
        kind=event.kind,
        name=shortened(printable(", ".join(names)), MAX_DESCRIPTION),
        version=max((change.version for change in event.changes), default=0),
        description=shortened(printable(_describe(event)), MAX_DESCRIPTION),
    )


def _describe(event: WorkspaceEvent) -> str:
    if event.kind == "transition":
        before, after = event.detail["previous_state"], event.detail["state"]
        return f"{before} → {after}" if before else f"{after}"
    if not event.changes:
        return ""
    change, more = event.changes[0], len(event.changes) - 1
    if not change.told:
        return "a value too large for an event"
    if event.kind == "append":
        finding = _FINDINGS.get(change.name, _plain)(change.value)
        return f"{finding}; {more} more" if more else finding
    before = "" if change.previous is None else f"{_plain(change.previous)} → "
    return before + _plain(change.value)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _measure(file: Mapping[str, Any]) -> str:
    found = file["problem"] or f"{count(file['lines'], 'line')}, {count(sum(file['histogram'].values()), 'function')}"
    return f"{shortened(file['path'], MAX_DESCRIPTION // 2)}: {found}"


def _graph(graph: Mapping[str, Any]) -> str:
    return ", ".join(count(graph[f"{what}s"], what) for what in ("module", "import", "cycle"))


def _remark(remark: Mapping[str, Any]) -> str:
    where = f"{shortened(remark['path'], MAX_DESCRIPTION // 2)}:{remark['line']}"
    return f"{where}: {remark['rule']} {remark['measured']:,}"


_FINDINGS: Final[Mapping[str, Callable[[Any], str]]] = {MEASURES: _measure, GRAPHS: _graph, REMARKS: _remark}
