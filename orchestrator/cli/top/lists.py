"""Declares the lists of `orc top`: what each reads, by which view, its rows and its actions.

A list reads one page, so that its cost follows the height of the terminal, never the size of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.cli.terminal.active_commands import active_commands, in_words
from orchestrator.cli.terminal.output import ago
from orchestrator.cli.top.actions import AGENTS, DEAD, QUEUES, WORKERS
from orchestrator.cli.top.drawing import RATES, bars
from orchestrator.core.together import read_at_once
from orchestrator.views.agent_pages import page_agents
from orchestrator.views.concerns import concerns, oldest_waiting
from orchestrator.views.control import page_commands
from orchestrator.views.dead_groups import read_dead_groups
from orchestrator.views.queue_pages import page_queues
from orchestrator.views.worker_pages import page_workers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from orchestrator.cli.top.actions import Action
    from orchestrator.control.records import ControlPage, ControlRecord
    from orchestrator.services import Services
    from orchestrator.views.active_commands import ActiveCommandView
    from orchestrator.views.agent_pages import AgentPage
    from orchestrator.views.dead_groups import DeadGroups
    from orchestrator.views.health import PoolHealth
    from orchestrator.views.queue_pages import QueuePage
    from orchestrator.views.worker_pages import WorkerPage

FIRST_QUEUES: Final = 10
"""Queues of the overview."""
FIRST_COMMANDS: Final = 5
COSTLY_EVERY_S: Final = 3.0
"""What costs Redis most: to find out what first tasks wait for, and to group the newest 1,000 dead letters."""
_MARKS: Final = {"bad": "✕ problem", "ask": "? question", "wait": "○ note", "off": "○ note"}
_STATES: Final = {"refused": "✕ refused", "active": "● active", "to be done": "○ to be done"}


@dataclass(frozen=True, slots=True)
class TopRow:
    """A row of a list.

    Attributes:
        key: the cursor stays on it while rows come and go.
        cells: texts by column.
        target: what actions apply to: a name, or a group of dead letters.
        command: id of the control command whose receipts Enter shows.
    """

    key: str
    cells: tuple[str, ...]
    target: Any = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class TopPage:
    """The rows of a page; `cursor` is where the next page begins, None at the end, and `note` tells what is missing."""

    rows: tuple[TopRow, ...]
    cursor: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class TopRequest:
    """Asks for the page behind a cursor of at most `limit` rows, whose names begin with `starts`."""

    services: Services
    health: PoolHealth
    after: str | None
    starts: str
    limit: int


class Overview(NamedTuple):
    """Holds all that the overview shows."""

    health: PoolHealth
    queues: QueuePage
    commands: ControlPage


@dataclass(frozen=True, slots=True)
class PoolList:
    """A list: its title, columns, reader, and the function that makes rows of what was read.

    Attributes:
        empty: text in place of no rows.
        named: it takes the beginning of a name.
        every_s: shortest time between two reads that no key asked for.
    """

    title: str
    columns: tuple[str, ...]
    read: Callable[[TopRequest], Awaitable[Any]] = field(repr=False)
    show: Callable[[Any], TopPage] = field(repr=False)
    empty: str
    actions: tuple[Action, ...] = ()
    named: bool = False
    every_s: float = 1.0


# ------------------------------------------------------------------------------------------------------------- overview


async def _read_overview(asked: TopRequest) -> Overview:
    reads: tuple[Callable[[], Awaitable[Any]], ...] = (
        partial(page_queues, asked.services, limit=FIRST_QUEUES),
        partial(page_commands, asked.services, limit=FIRST_COMMANDS),
    )
    queues, commands = await read_at_once(reads)
    return Overview(asked.health, queues, commands)


def _show_overview(found: Overview) -> TopPage:
    health, queues, commands = found
    rows = [
        TopRow(f"concern {one.text}", (_MARKS[one.kind], one.text, "")) for one in concerns(health, queues.queues)
    ] or [TopRow("well", ("✓ well", "nothing needs a person", ""))]
    if (oldest := oldest_waiting(queues.queues)) is not None:
        why = f": {oldest.status.why}" if oldest.status else ""
        of = f" (of the first {len(queues.queues)} queues)" if queues.cursor else ""
        rows.append(TopRow("oldest", ("◷ oldest", f"{oldest.queue}{of}{why}", ago(oldest.since))))
    for name in RATES:
        numbers = health.rates[name]
        text = f"{name:9} {bars(numbers[-20:])} {numbers[-1]:,} in the last minute, {sum(numbers):,} in the hour"
        rows.append(TopRow(f"rate {name}", ("↗ rate", text, "")))
    rows += [
        TopRow(f"active {one.slot}", ("● active", f"{one.slot} {_active([one])}", ago(one.since)), None, one.command)
        for one in health.active
    ]
    if health.active_total > len(health.active):
        rows.append(TopRow("more active", ("● active", f"{health.active_total - len(health.active):,} more", "")))
    rows += [_command_row(one) for one in commands.records]
    return TopPage(tuple(rows))


def _command_row(one: ControlRecord) -> TopRow:
    reason = f": {one.reason}" if one.reason else ""
    state = _STATES["refused"] if one.state == "refused" else "→ given"
    return TopRow(
        f"command {one.id}", (state, f"{one.words or one.kind} by {one.actor}{reason}", ago(one.at)), None, one.id
    )


# ---------------------------------------------------------------------------------------------------- names by the page


async def _read_queues(asked: TopRequest) -> QueuePage:
    return await page_queues(asked.services, after=asked.after, starts=asked.starts, limit=asked.limit)


def _show_queues(found: QueuePage) -> TopPage:
    rows = [
        TopRow(
            one.queue,
            (
                one.queue,
                f"{one.tasks:,}",
                f"{one.agents:,}",
                ago(one.since),
                _affected(one.active_commands, one.status.why if one.status else ""),
            ),
            one.queue,
        )
        for one in found.queues
    ]
    return TopPage(tuple(rows), found.cursor, _looked(found.looked, more=found.more))


async def _read_agents(asked: TopRequest) -> AgentPage:
    return await page_agents(asked.services, after=asked.after, starts=asked.starts, limit=asked.limit)


def _show_agents(found: AgentPage) -> TopPage:
    rows = [
        TopRow(
            one.name,
            (
                one.name,
                f"{one.workers:,}",
                f"{one.slots:,}",
                f"{one.inbox:,}",
                ago(one.last_seen_at),
                _affected(one.active_commands, ", ".join(one.skills[:8])),
            ),
            one.name,
        )
        for one in found.agents
    ]
    return TopPage(tuple(rows), found.cursor, _looked(found.looked, more=found.more))


async def _read_workers(asked: TopRequest) -> WorkerPage:
    return await page_workers(asked.services, after=asked.after, starts=asked.starts, limit=asked.limit)


def _show_workers(found: WorkerPage) -> TopPage:
    rows = [
        TopRow(
            one.worker.id,
            (
                one.worker.id,
                ago(one.worker.started_at),
                ago(one.worker.last_seen_at),
                _affected(one.active_commands, ", ".join(list(one.worker.agents)[:8])),
            ),
            one.worker.id,
        )
        for one in found.workers
    ]
    silent = f"longest silent: {found.silent[0]}, {ago(found.silent[1])}" if found.silent else ""
    note = "; ".join(filter(None, (_looked(found.looked, more=found.more), silent)))
    return TopPage(tuple(rows), found.cursor, note)


def _looked(looked: int, *, more: bool) -> str:
    return f"cut from {looked:,} names; there are more" if more else f"{looked:,} {'name' if looked == 1 else 'names'}"


def _active(found: Sequence[ActiveCommandView]) -> str:
    return in_words(active_commands(found))


def _affected(found: Sequence[ActiveCommandView], rest: str) -> str:
    return f"■ {_active(found)}" if found else rest


# ---------------------------------------------------------------------------------------- dead letters and commands


async def _read_dead(asked: TopRequest) -> DeadGroups:
    return await read_dead_groups(asked.services)


def _show_dead(found: DeadGroups) -> TopPage:
    rows = [
        TopRow(
            f"{one.skill} {one.line}", (f"{one.tasks:,}", one.skill, ago(one.oldest), ago(one.newest), one.line), one
        )
        for one in found.groups
    ]
    counted = f"; the groups are of the newest {found.looked:,}" if found.total > found.looked else ""
    largest = f"; the {len(found.groups)} largest of {found.found:,} groups" if found.found > len(found.groups) else ""
    return TopPage(tuple(rows), None, f"{found.total:,} dead letters{counted}{largest}")


async def _read_commands(asked: TopRequest) -> ControlPage:
    return await page_commands(asked.services, before=asked.after, limit=asked.limit)


def _show_commands(found: ControlPage) -> TopPage:
    rows = [
        TopRow(
            one.id,
            (
                ago(one.at),
                _STATES.get(one.state, f"✓ {one.state}"),
                one.words or one.kind,
                one.actor,
                one.problem or one.reason,
            ),
            None,
            one.id,
        )
        for one in found.records
    ]
    return TopPage(tuple(rows), found.cursor)


LISTS: Final = (
    PoolList("Overview", ("state", "what", "when"), _read_overview, _show_overview, "", every_s=COSTLY_EVERY_S),
    PoolList(
        "Queues", ("queue", "tasks", "agents", "oldest", "what it waits for"),
        _read_queues, _show_queues, "No task waits in a queue.", QUEUES, named=True,
        every_s=COSTLY_EVERY_S,
    ),
    PoolList(
        "Agents", ("agent", "workers", "slots", "inbox", "heartbeat", "state or skills"),
        _read_agents, _show_agents, "No agent is registered. `orc worker run` or `orc up` starts some.", AGENTS,
        named=True,
    ),
    PoolList(
        "Workers", ("worker", "started", "heartbeat", "state or agents"),
        _read_workers, _show_workers, "No worker runs. `orc worker run` or `orc up` starts one.", WORKERS, named=True,
    ),
    PoolList(
        "Dead letters", ("tasks", "skill", "oldest", "newest", "error"),
        _read_dead, _show_dead, "There are no dead letters.", DEAD,
        every_s=COSTLY_EVERY_S,
    ),
    PoolList(
        "Commands", ("when", "state", "command", "by", "reason"),
        _read_commands, _show_commands, "No command was given.",
    ),
)  # fmt: skip
"""The lists, in the order of their keys `1`, `2` and so on."""
