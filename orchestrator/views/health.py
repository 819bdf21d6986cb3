"""Reads the health of a pool and what needs an operator, with a limited number of commands."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.agents.failed_starts import recent_failures
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.reading import read_text, read_whole
from orchestrator.core.slots import STOP_ALL
from orchestrator.store.server_info import SECTIONS, read_info
from orchestrator.tasks.losses import summarize
from orchestrator.tasks.records import record_fields
from orchestrator.views.active_commands import desired_reads, parse_desired, time_ms, view
from orchestrator.views.budget_pages import MOST_SCOPES, budgets_without_room
from orchestrator.views.paging import read_together

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestrator.agents.failed_starts import FailedStart
    from orchestrator.services import Services
    from orchestrator.store.server_info import ServerInfo
    from orchestrator.tasks.losses import LostWrites
    from orchestrator.views.active_commands import ActiveCommandView
    from orchestrator.views.budgets import BudgetView

MINUTES: Final = 60
"""Minutes of the rates, without the one that has not ended."""
COUNTED: Final = ("submitted", "succeeded", "retried", "dead")
"""Counters of which rates are shown."""
COMMANDS: Final = 20


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """State of a pool.

    Attributes:
        supervisor: id of the leading supervisor, or None.
        agents, workers: numbers of known agents and live workers.
        silent: the worker that has been silent for the longest time, and its last heartbeat.
        queues: number of queues that hold tasks.
        scheduled, asking, joining, awaiting_tasks, dead, schedules: numbers of tasks that are due later, that wait for
            an answer, that join others, that wait for their predecessors, of dead letters, and of schedules.
        totals: counters since the pool began.
        rates: of each of `COUNTED` the number in each of the last `MINUTES`, oldest first, up to `until`.
        active: active commands, at most `COMMANDS`.
        active_total: number of all.
        stopped: whether a stop of the whole pool is active.
        lost: writes that Redis had confirmed and has lost; None if there are none.
        failed_starts: agents whose workers do not start.
        budgets: budgets without room for which tasks wait, at most 10.
        more_budgets: number of other budgets for which tasks wait: further ones without room, and those that were not
            looked at. Each minute looks at other 200.
    """

    supervisor: str | None
    server: ServerInfo
    agents: int
    workers: int
    silent: tuple[str, datetime] | None
    queues: int
    scheduled: int
    asking: int
    joining: int
    awaiting_tasks: int
    dead: int
    schedules: int
    totals: Mapping[str, int]
    rates: Mapping[str, tuple[int, ...]]
    until: datetime
    active: tuple[ActiveCommandView, ...]
    active_total: int
    stopped: bool
    lost: LostWrites | None
    failed_starts: tuple[FailedStart, ...]
    budgets: tuple[BudgetView, ...]
    more_budgets: int


async def read_health(services: Services) -> PoolHealth:
    """Read the state of a pool."""
    keys = services.store.keys
    # The minutes that may matter, because the clock of this machine may be up to two minutes beside that of Redis.
    minute = time.time_ns() // 60_000_000_000
    minutes = range(minute - MINUTES - 2, minute + 3)
    (
        leader,
        agents,
        workers,
        silent,
        queues,
        scheduled,
        asking,
        joining,
        awaiting_tasks,
        dead,
        schedules,
        totals,
        *rest,
    ) = await read_together(
        services,
        [
            ("GET", keys.leader),
            ("ZCARD", keys.agents),
            ("ZCARD", keys.workers),
            ("ZRANGE", keys.workers, 0, 0, "WITHSCORES"),
            ("SCARD", keys.queues),
            ("ZCARD", keys.scheduled),
            ("ZCARD", keys.asking),
            ("ZCARD", keys.joining),
            ("ZCARD", keys.awaiting_tasks),
            ("ZCARD", keys.dead),
            ("ZCARD", keys.schedules),
            ("HGETALL", keys.stats("TOTAL")),
            *[("HMGET", keys.stats(str(each)), *COUNTED) for each in minutes],
            ("HVALS", keys.losses),
            ("HGETALL", keys.failed_starts),
            ("SRANDMEMBER", keys.suspended_scopes, MOST_SCOPES),
            ("INFO", *SECTIONS),
            *desired_reads(services),
        ],
    )
    *counted, losses, failed, scopes, info, fields, now = rest
    ended = time_ms(now) // 60_000
    by_minute = dict(zip(minutes, counted, strict=True))
    desired = parse_desired(services, fields, now)
    budgets, more_budgets = await budgets_without_room(services, scopes or (), ended)
    return PoolHealth(
        supervisor=None if leader is None else read_text(leader),
        server=read_info(read_text(info)),
        agents=agents or 0,
        workers=workers or 0,
        silent=(read_text(silent[0]), from_instant_ms(read_whole(silent[1]))) if silent else None,
        queues=queues or 0,
        scheduled=scheduled or 0,
        asking=asking or 0,
        joining=joining or 0,
        awaiting_tasks=awaiting_tasks or 0,
        dead=dead or 0,
        schedules=schedules or 0,
        totals=Counter({name: read_whole(number) for name, number in record_fields(totals or ()).items()}),
        rates={
            name: tuple(
                read_whole((by_minute.get(each) or [None] * len(COUNTED))[n]) for each in range(ended - MINUTES, ended)
            )
            for n, name in enumerate(COUNTED)
        },
        until=from_instant_ms(ended * 60_000),
        active=tuple(view(one) for _, one in sorted(desired.active.items())[:COMMANDS]),
        active_total=len(desired.active),
        stopped=STOP_ALL in desired.active,
        lost=summarize(losses or ()),
        failed_starts=tuple(recent_failures(failed or (), time_ms(now))),
        budgets=budgets,
        more_budgets=more_budgets,
    )
