"""The first page: is the pool healthy, what needs a person, what does it do, what waits for the longest time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.core.together import read_at_once
from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.views.control import page_commands
from orchestrator.views.health import MINUTES, read_health
from orchestrator.views.queue_pages import page_queues
from orchestrator.why.model import STUCK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from orchestrator.dashboard.page import PageRequest
    from orchestrator.views.health import PoolHealth
    from orchestrator.views.queue_pages import QueueRow

QUEUES: Final = 10
COMMANDS: Final = 5
SILENT_AFTER: Final = timedelta(seconds=15)
"""Time without a heartbeat after which a worker needs attention: five times the usual distance of two heartbeats."""
FULL: Final = 0.9
"""Share of the memory limit of Redis from which on it needs attention."""
WIDTH: Final = 600
HEIGHT: Final = 120
SERIES: Final = {"succeeded": "good", "retried": "ask", "dead": "bad", "submitted": "run"}
"""Rates of the chart, and their classes."""


class Concern(NamedTuple):
    """Something that needs a person: a word of the state, a text, and the page that tells more."""

    kind: str
    text: str
    path: str


class Line(NamedTuple):
    """One rate of the chart, with the numbers that its text tells."""

    name: str
    kind: str
    points: str
    last: int
    most: int
    total: int


@page("/", "overview.html")
async def overview(asked: PageRequest) -> Mapping[str, Any]:
    """Read the state of the pool."""
    services = asked.services
    reads: tuple[Callable[[], Awaitable[Any]], ...] = (
        partial(read_health, services),
        partial(page_queues, services, limit=QUEUES),
        partial(page_commands, services, limit=COMMANDS),
    )
    health, queues, commands = await read_at_once(reads)
    waiting = [row for row in queues.queues if row.since is not None]
    return {
        "queues": queues,
        "commands": commands.records,
        "health": health,
        "concerns": concerns(health, waiting),
        "oldest": min(waiting, key=lambda row: row.since or datetime.max.replace(tzinfo=UTC), default=None),
        "lines": chart(health.rates),
        "minutes": MINUTES,
        "size": (WIDTH, HEIGHT),
        "line": command_line("status"),
    }


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
        found.append(
            Concern("bad", f"Redis is full to {server.memory_bytes / server.memory_limit_bytes:.0%}", "/doctor")
        )
    if "err" in {server.aof_write, server.aof_rewrite, server.snapshot}:
        found.append(Concern("bad", "Redis could not write to its disk", "/doctor"))
    found += [Concern("bad", one.text, f"/agents/{one.agent}") for one in health.failed_starts]
    found += [
        Concern("bad", f"{row.queue}: {row.status.why}", f"/queues/{row.queue}")
        for row in queues
        if row.status is not None and row.status.detail.cause in STUCK
    ]
    if health.silent is not None and datetime.now(UTC) - health.silent[1] > SILENT_AFTER:
        found.append(Concern("bad", f"worker {health.silent[0]} has sent no heartbeat lately", "/workers"))
    if dead := sum(health.rates["dead"]):
        found.append(Concern("bad", f"{dead} tasks became dead letters in the last hour", "/dead"))
    if health.asking:
        found.append(Concern("ask", f"{health.asking} tasks wait for an answer", "/questions"))
    if health.active_total:
        found.append(Concern("wait", f"{health.active_total} commands are active", "/control"))
    return found


def chart(rates: Mapping[str, Sequence[int]]) -> list[Line]:
    """Return the lines of the chart, scaled to its largest number."""
    top = max((max(values, default=0) for values in rates.values()), default=0) or 1
    lines = []
    for name, kind in SERIES.items():
        values = rates[name]
        step = WIDTH / max(1, len(values) - 1)
        points = " ".join(f"{n * step:.0f},{HEIGHT - value / top * HEIGHT:.0f}" for n, value in enumerate(values))
        lines.append(Line(name, kind, points, values[-1], max(values), sum(values)))
    return lines
