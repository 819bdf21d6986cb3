"""Reads the queues page by page, and one queue with its first tasks and the agents that take from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, task_ms
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text, read_whole
from orchestrator.core.slots import STOP_ALL, drain_slot, hold_slot, parse_slot, pause_slot, stop_slot
from orchestrator.tasks.queries import row_of
from orchestrator.tasks.records import list_records
from orchestrator.views.active_commands import desired_reads, of_slots, parse_desired
from orchestrator.views.paging import MOST_NAMES, cut, read_together
from orchestrator.why import lookup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.control.desired import Desired
    from orchestrator.services import Services
    from orchestrator.store.calls import Argument
    from orchestrator.tasks.queries import TaskRow
    from orchestrator.views.active_commands import ActiveCommandView
    from orchestrator.why.model import TaskStatus

QUEUES: Final = 25
AGENTS: Final = 50
"""Agents of a queue that its page shows."""
FIRST_TASKS: Final = 20
MOST_SCOPES: Final = 1000


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue that holds tasks, is paused or drained.

    Attributes:
        queue: `skill:NAME` or `agent:NAME`.
        tasks: number of its tasks, with its suspects and those that wait for another version of their skill.
        agents: number of live agents that serve it.
        head: id of its first task.
        since: time at which that task was submitted.
        status: state of that task and what it waits for.
    """

    queue: str
    tasks: int
    agents: int
    head: str | None
    since: datetime | None
    status: TaskStatus | None
    active_commands: tuple[ActiveCommandView, ...]


@dataclass(frozen=True, slots=True)
class QueuePage:
    """A part of the queues by name; the fields are those of `NamePage`."""

    queues: tuple[QueueRow, ...]
    cursor: str | None
    looked: int
    more: bool


@dataclass(frozen=True, slots=True)
class ServingAgent:
    """An agent that takes tasks from a queue."""

    name: str
    slots: int
    inbox: int
    active_commands: tuple[ActiveCommandView, ...]


@dataclass(frozen=True, slots=True)
class QueueDetail:
    """One queue.

    Attributes:
        row: as in a list.
        agents: the first `AGENTS` that serve it.
        tasks: its first tasks.
    """

    row: QueueRow
    agents: tuple[ServingAgent, ...]
    tasks: tuple[TaskRow, ...]


@dataclass(frozen=True, slots=True)
class _Head:
    """Length and first task of a queue."""

    tasks: int
    agents: int
    first: str | None


async def page_queues(
    services: Services, *, after: str | None = None, starts: str = "", limit: int = QUEUES
) -> QueuePage:
    """Read the queues behind the cursor `after` whose names begin with `starts`."""
    keys = services.store.keys
    queues, suspected, scopes, *desired = await read_together(
        services,
        [
            ("SRANDMEMBER", keys.queues, MOST_NAMES),
            ("SRANDMEMBER", keys.suspected_queues, MOST_NAMES),
            ("ZRANGE", keys.version_scopes, 0, MOST_SCOPES - 1),
            *desired_reads(services),
        ],
    )
    now = parse_desired(services, *desired)
    refused = _by_queue(services, scopes or ())
    names = {read_text(name) for name in (*(queues or ()), *(suspected or ()))} | set(refused)
    names |= {slot.name for slot in map(parse_slot, now.active) if slot.kind == "queue"}
    page = cut([name for name in names if name.startswith(starts)], after=after, limit=limit)
    more = any(len(found or ()) >= MOST_NAMES for found in (queues, suspected))
    rows = await _rows(services, page.names, refused, now)
    return QueuePage(tuple(rows), page.cursor, page.looked, more)


async def read_queue(services: Services, queue: str) -> QueueDetail:
    """Read one queue.

    Raises:
        InvalidInput: no name of a queue.
    """
    kind, name = QueueName.parse(queue)
    if kind not in {"skill", "agent"}:
        raise InvalidInput("a queue is called skill:NAME or agent:NAME")
    check_name(kind, name)
    keys = services.store.keys
    first, suspects, serving, scopes, *desired = await read_together(
        services,
        [
            ("ZRANGE", keys.queue(queue), 0, FIRST_TASKS - 1),
            ("ZRANGE", keys.suspects(queue), 0, FIRST_TASKS - 1),
            ("ZRANGE", keys.skill(name), 0, AGENTS - 1),
            ("ZRANGE", keys.version_scopes, 0, MOST_SCOPES - 1),
            *desired_reads(services),
        ],
    )
    now = parse_desired(services, *desired)
    refused = _by_queue(services, scopes or ())
    names = sorted(map(read_text, serving or ())) if kind == "skill" else [name]
    (row,) = await _rows(services, [queue], refused, now)
    commands: list[Sequence[Argument]] = []
    for each in names:
        commands += [("HGET", keys.agent(each), "slots"), ("XLEN", keys.inbox(each))]
    replies = await read_together(services, commands)
    agents = [
        ServingAgent(each, read_whole(slots), inbox or 0, of_slots(now, *_agent_slots(each)))
        for each, slots, inbox in zip(names, replies[::2], replies[1::2], strict=True)
        if slots is not None
    ]
    ids = dict.fromkeys([read_text(id_) for id_ in (*(first or ()), *(suspects or ()))][:FIRST_TASKS])
    records = await list_records(services.store, ids)
    return QueueDetail(row, tuple(agents), tuple(row_of(record, record.state) for record in records))


def _by_queue(services: Services, scopes: Sequence[bytes]) -> dict[str, list[str]]:
    """Return the scopes of tasks that wait for another version of their skill, by queue."""
    found: dict[str, list[str]] = {}
    for scope in map(read_text, scopes):
        if queue := services.store.keys.queue_of_scope(scope):
            found.setdefault(queue, []).append(scope)
    return found


async def _rows(
    services: Services, names: Sequence[str], refused: dict[str, list[str]], now: Desired
) -> list[QueueRow]:
    commands: list[Sequence[Argument]] = []
    for name in names:
        commands += _reads(services, name, refused.get(name, ()))
    replies = iter(await read_together(services, commands))
    known = {name: _head(replies, len(refused.get(name, ()))) for name in names}
    ids = [head.first for head in known.values() if head.first is not None]
    statuses = await lookup.statuses(services.store, ids)
    return [_row(name, head, statuses, now) for name, head in known.items()]


def _reads(services: Services, queue: str, scopes: Sequence[str]) -> list[Sequence[Argument]]:
    keys, (kind, name) = services.store.keys, QueueName.parse(queue)
    serving: Sequence[Argument] = (
        ("ZCARD", keys.skill(name)) if kind == "skill" else ("HGET", keys.agent(name), "slots")
    )
    places = [keys.queue(queue), keys.suspects(queue), *map(keys.held, scopes)]
    return [serving, *[read for place in places for read in (("ZCARD", place), ("ZRANGE", place, 0, 0))]]


def _head(replies: Any, scopes: int) -> _Head:
    serving, tasks, first = next(replies), 0, None
    for _ in range(2 + scopes):
        tasks += next(replies) or 0
        ids = next(replies)
        first = first or (read_text(ids[0]) if ids else None)
    # The slots of an agent are a text, the number of agents of a skill is one.
    agents = serving if isinstance(serving, int) else int(read_whole(serving) > 0)
    return _Head(tasks, agents, first)


def _row(queue: str, head: _Head, statuses: dict[str, TaskStatus], now: Desired) -> QueueRow:
    owner = QueueName.parse(queue)
    slots = (STOP_ALL, stop_slot(*owner), pause_slot(*owner), pause_slot("queue", queue), drain_slot("queue", queue))
    since = None if head.first is None else from_instant_ms(task_ms(head.first))
    status = statuses.get(head.first or "")
    return QueueRow(queue, head.tasks, head.agents, head.first, since, status, of_slots(now, *slots))


def _agent_slots(agent: str) -> tuple[str, ...]:
    return STOP_ALL, stop_slot("agent", agent), pause_slot("agent", agent), hold_slot("agent", agent)
