"""Tells what of the state of a pool needs an operator, and which queue waits for the longest time. Reads nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from orchestrator.core.plural import counted
from orchestrator.why.model import STUCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.views.budgets import BudgetView
    from orchestrator.views.health import PoolHealth
    from orchestrator.views.queue_pages import QueueRow

SILENT_AFTER: Final = timedelta(seconds=15)
"""Time without a heartbeat after which a worker needs attention: five times the usual distance of two heartbeats."""
FULL: Final = 0.9
"""Share of the memory limit of Redis from which on it needs attention."""


class Concern(NamedTuple):
    """Something that needs a person: a word of the state, a text, and the page that tells more."""

    kind: str
    text: str
    path: str


def concerns(health: PoolHealth, queues: Sequence[QueueRow]) -> list[Concern]:
    """Return what needs a person, the worst first."""
    found = []
    if health.supervisor is None:
        found.append(Concern("bad", "no supervisor leads, so no task is assigned", "/doctor"))
    if not health.workers:
        found.append(Concern("bad", "no worker runs", "/workers"))
    if health.lost is not None:
        found.append(Concern("bad", f"Redis has lost {health.lost.text}", "/doctor"))
    server = health.server
    if server.memory_limit_bytes and server.memory_bytes > FULL * server.memory_limit_bytes:
        percent = round(100 * server.memory_bytes / server.memory_limit_bytes)
        found.append(Concern("bad", f"Redis is full to {percent}%", "/doctor"))
    if "err" in {server.aof_write, server.aof_rewrite, server.snapshot}:
        found.append(Concern("bad", "Redis could not write to its disk", "/doctor"))
    found += [Concern("bad", one.text, f"/agents/{one.agent}") for one in health.failed_starts]
    found += [
        Concern("bad", f"{row.queue}: {row.status.why}", f"/queues/{row.queue}")
        for row in queues
        if row.status is not None and row.status.detail.cause in STUCK
    ]
    found += [Concern("bad", _of_budget(one), f"/budgets/{quote(one.budget, safe='')}") for one in health.budgets]
    if health.silent is not None and datetime.now(UTC) - health.silent[1] > SILENT_AFTER:
        found.append(Concern("bad", f"worker {health.silent[0]} has sent no heartbeat lately", "/workers"))
    if dead := sum(health.rates["dead"]):
        found.append(Concern("bad", f"{counted(dead, 'task')} ended as dead letters in the last hour", "/dead"))
    return found + _notes(health)


def _notes(health: PoolHealth) -> list[Concern]:
    """Return what is no problem, but waits for an operator or has more than is shown."""
    found = []
    if health.asking:
        found.append(Concern("ask", f"{counted(health.asking, 'question')} without an answer", "/questions"))
    if health.active_total:
        found.append(Concern("wait", counted(health.active_total, "active command"), "/control"))
    if health.more_budgets:
        text = f"tasks wait for {counted(health.more_budgets, 'more budget')}"
        found.append(Concern("off", text, "/budgets"))
    return found


def _of_budget(one: BudgetView) -> str:
    said = {
        "overspent": "is overspent",
        "exhausted": "is exhausted",
        "undefined": "is not set",
        "damaged": "is damaged",
    }
    state = said.get(one.state, "has too little left")
    waits = f"{counted(one.waiting, 'task')} {'waits' if one.waiting == 1 else 'wait'} for it"
    return f"budget {one.budget} {state}, and {waits}"


def oldest_waiting(queues: Sequence[QueueRow]) -> QueueRow | None:
    """Return the queue whose first task was submitted first; None if no task waits in them."""
    waiting = [row for row in queues if row.since is not None]
    return min(waiting, key=lambda row: row.since or datetime.max.replace(tzinfo=UTC), default=None)
