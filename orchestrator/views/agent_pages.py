"""Reads the agents page by page, and one agent with its workers, limits and counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.agents import queries
from orchestrator.agents.timings import sum_cells
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound
from orchestrator.core.ids import check_name
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text, read_whole
from orchestrator.core.slots import STOP_ALL, hold_slot, pause_slot, stop_slot
from orchestrator.tasks.inbox import GROUP
from orchestrator.views.active_commands import desired_reads, of_slots, parse_desired, time_ms
from orchestrator.views.paging import MOST_NAMES, cut, read_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from orchestrator.agents.timings import Timings
    from orchestrator.control.desired import Desired
    from orchestrator.services import Services
    from orchestrator.store.calls import Argument
    from orchestrator.views.active_commands import ActiveCommandView

AGENTS: Final = 50
WORKERS: Final = 100
"""Workers of an agent that its page shows."""
MINUTES: Final = 15
"""Minutes that the counters on the page of an agent cover, and the one that has not ended."""


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent.

    Attributes:
        slots: tasks that its live workers run at once.
        workers: number of its live workers.
        inbox: tasks in its inbox, running or unread.
    """

    name: str
    skills: tuple[str, ...]
    slots: int
    backlog: int
    workers: int
    inbox: int
    last_seen_at: datetime
    active_commands: tuple[ActiveCommandView, ...]


@dataclass(frozen=True, slots=True)
class AgentPage:
    """A part of the agents by name; the fields are those of `NamePage`."""

    agents: tuple[AgentRow, ...]
    cursor: str | None
    looked: int
    more: bool


@dataclass(frozen=True, slots=True)
class AgentDetail:
    """One agent.

    Attributes:
        row: as in a list.
        running: tasks that its workers have begun.
        waiting: tasks in its own queue.
        parked: tasks addressed to it whose skill it lacks.
        workers: ids of the first `WORKERS` of its live workers, each with its last heartbeat.
        limits: rate of each of its limits; None for one without a definition. `@NAME` is its own.
        attempts: counters of the last `MINUTES` by skill.
    """

    row: AgentRow
    running: int
    waiting: int
    parked: int
    workers: tuple[tuple[str, datetime | None], ...]
    limits: Mapping[str, str | None]
    attempts: Mapping[str, Timings]


async def page_agents(
    services: Services, *, after: str | None = None, starts: str = "", limit: int = AGENTS
) -> AgentPage:
    """Read the agents behind the cursor `after` whose names begin with `starts`."""
    keys = services.store.keys
    names, *desired = await read_together(
        services, [("ZRANGE", keys.agents, 0, MOST_NAMES - 1, "REV", "WITHSCORES"), *desired_reads(services)]
    )
    names, now = names or (), parse_desired(services, *desired)
    heartbeats = {read_text(name): read_whole(at) for name, at in zip(names[::2], names[1::2], strict=True)}
    page = cut([name for name in heartbeats if name.startswith(starts)], after=after, limit=limit)
    commands: list[Sequence[Argument]] = []
    for name in page.names:
        commands += _reads(services, name)
    replies = await read_together(services, commands)
    rows = [_row(name, heartbeats[name], replies[3 * n : 3 * n + 3], now) for n, name in enumerate(page.names)]
    return AgentPage(tuple(rows), page.cursor, page.looked, len(heartbeats) >= MOST_NAMES)


async def read_agent_page(services: Services, name: str) -> AgentDetail:
    """Read one agent.

    Raises:
        NotFound: the pool has no agent of this name.
    """
    keys = services.store.keys
    check_name("agent", name)
    heartbeat, record, count, inbox, limits, ids, pending, waiting, parked, *desired = await read_together(
        services,
        [
            ("ZSCORE", keys.agents, name),
            *_reads(services, name),
            ("HGET", keys.agent(name), "limits"),
            ("HRANDFIELD", keys.agent_workers(name), WORKERS),
            ("XPENDING", keys.inbox(name), GROUP),
            ("ZCARD", keys.queue(str(QueueName.of_agent(name)))),
            ("ZCARD", keys.parked(name)),
            *desired_reads(services),
        ],
    )
    if heartbeat is None:
        raise NotFound(f"agent {name!r} is not known in pool {keys.pool!r}")
    row = _row(name, read_whole(heartbeat), (record, count, inbox), parse_desired(services, *desired))
    workers, bound = sorted(map(read_text, ids or ())), read_text(limits).split()
    minute = time_ms(desired[1]) // 60_000
    minutes = range(minute - MINUTES, minute + 1)
    commands: list[Sequence[Argument]] = [("HGETALL", keys.timings(each)) for each in minutes]
    commands += [("HMGET", keys.limits, *bound)] if bound else []
    commands += [("ZMSCORE", keys.workers, *workers)] if workers else []
    replies = await read_together(services, commands)
    seen = replies.pop() if workers else ()
    rates = replies.pop() if bound else ()
    return AgentDetail(
        row=row,
        running=0 if not pending else read_whole(pending[0]),
        waiting=waiting or 0,
        parked=parked or 0,
        workers=tuple((id_, _at(at)) for id_, at in zip(workers, seen or (None,) * len(workers), strict=True)),
        limits=dict(zip(bound, map(queries.rate_text, rates or (None,) * len(bound)), strict=True)),
        attempts={skill: sum_cells(cells) for skill, cells in sorted(queries.cells_of(name, replies).items())},
    )


def _reads(services: Services, name: str) -> list[Sequence[Argument]]:
    keys = services.store.keys
    return [
        ("HMGET", keys.agent(name), "slots", "backlog", "skills"),
        ("HLEN", keys.agent_workers(name)),
        ("XLEN", keys.inbox(name)),
    ]


def _row(name: str, last_ms: int, replies: Sequence[Any], now: Desired) -> AgentRow:
    record, workers, inbox = replies
    slots, backlog, skills = record or (None, None, None)
    commands = of_slots(now, STOP_ALL, stop_slot("agent", name), pause_slot("agent", name), hold_slot("agent", name))
    return AgentRow(
        name=name,
        skills=tuple(read_text(skills).split()),
        slots=read_whole(slots),
        backlog=read_whole(backlog),
        workers=workers or 0,
        inbox=inbox or 0,
        last_seen_at=from_instant_ms(last_ms),
        active_commands=commands,
    )


def _at(score: bytes | None) -> datetime | None:
    return None if score is None else from_instant_ms(read_whole(score))
