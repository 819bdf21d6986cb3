"""The first page: is the pool healthy, what needs a person, what does it do, what waits for the longest time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.core.together import read_at_once
from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.views.concerns import concerns, oldest_waiting
from orchestrator.views.control import page_commands
from orchestrator.views.health import MINUTES, read_health
from orchestrator.views.queue_pages import page_queues

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from orchestrator.dashboard.page import PageRequest

QUEUES: Final = 10
COMMANDS: Final = 5
WIDTH: Final = 600
HEIGHT: Final = 120
SERIES: Final = {"succeeded": "good", "retried": "ask", "dead": "bad", "submitted": "run"}
"""Rates of the chart, and their classes."""


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
    return {
        "queues": queues,
        "commands": commands.records,
        "health": health,
        "concerns": concerns(health, queues.queues),
        "oldest": oldest_waiting(queues.queues),
        "lines": chart(health.rates),
        "minutes": MINUTES,
        "size": (WIDTH, HEIGHT),
        "line": command_line("status"),
    }


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
