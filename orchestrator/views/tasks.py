"""Reads tasks: lists, one task, dead letters, and selections by a filter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.core.ids import TASK_ID_CHARS, check_task_id, check_task_prefix
from orchestrator.core.reading import read_whole
from orchestrator.core.redaction import hidden_json
from orchestrator.tasks import queries
from orchestrator.tasks.effects import read_effects
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.records import read_record
from orchestrator.tasks.selecting import DEFAULT_LIMIT, ErrorGroup, TaskPage, group_by_error, read_page, select
from orchestrator.views.redaction import is_redacted, without_data

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from orchestrator.services import Services
    from orchestrator.tasks.effects import TaskEffect
    from orchestrator.tasks.queries import TaskRow
    from orchestrator.tasks.records import TaskRecord
    from orchestrator.tasks.selecting import TaskFilter
    from orchestrator.why.model import TaskInfo, TaskStatus

DEAD: Final = frozenset({TaskState.DEAD})
MOST_LOOKED: Final = 200_000
"""Tasks that one list of a command looks at; its cursor goes on behind them."""
LOOKED_AT: Final = 10_000
"""Tasks of each kind among which the beginning of an id is looked up."""
NAMED: Final = 5
"""Ids that a message names."""


@dataclass(frozen=True, slots=True)
class SelectedTask:
    """A task that matches a filter.

    Attributes:
        agent: agent that had it last, or that it is addressed to.
        reason: of its end, or empty.
    """

    id: str
    state: TaskState
    skill: str
    agent: str | None
    session: str | None
    tags: tuple[str, ...]
    attempts: int
    reason: str
    submitted_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """Tasks that matched a filter when they were read.

    Attributes:
        more: more tasks match.
    """

    tasks: tuple[SelectedTask, ...]
    more: bool

    @property
    def ids(self) -> list[str]:
        """The ids of the tasks."""
        return [task.id for task in self.tasks]


@dataclass(frozen=True, slots=True)
class ErrorGroups:
    """Dead letters by skill and kind of error, largest group first; `more`: more dead letters match."""

    groups: tuple[ErrorGroup, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class DeathNote:
    """Death of a worker that had the task; `at` is None if the record is damaged."""

    at: datetime | None
    worker: str
    how: str


@dataclass(frozen=True, slots=True)
class RetryNote:
    """Retry by an operator: the state before it, actor and reason."""

    at: datetime | None
    state: str
    who: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A task that failed for the last time."""

    info: TaskInfo
    deaths: tuple[DeathNote, ...]
    requeues: tuple[RetryNote, ...]


async def list_tasks(services: Services, *, states: Collection[TaskState] = (), limit: int = 50) -> list[TaskRow]:
    """Read tasks: running, then waiting, then ended; at most `limit`, and only in these states if any are given."""
    return await queries.listing(services.store, states=states, limit=limit)


async def list_matching(
    services: Services, wanted: TaskFilter, *, after: str | None = None, limit: int = 50
) -> TaskPage:
    """Read tasks that match a filter, at most `limit`, page by page until there are enough or all were looked at.

    Args:
        services: of the pool.
        wanted: the filter.
        after: cursor of the list before.
        limit: maximum number.

    Raises:
        InvalidInput: `after` is no cursor, or one of another filter.
    """
    rows: dict[str, TaskRow] = {}
    looked = 0
    while True:
        page = await read_page(services.store, wanted, after=after, limit=limit - len(rows))
        rows |= {row.id: row for row in page.tasks}
        looked, after = looked + page.looked, page.cursor
        if after is None or len(rows) >= limit or looked >= MOST_LOOKED:
            return TaskPage(tuple(rows.values()), after, looked)


async def find_task(services: Services, typed: str) -> str:
    """Return a whole task id as it is; for the beginning of one, the only id that begins with it.

    Raises:
        InvalidInput: not the form of a task id, or several ids begin with it, or perhaps do.
        NotFound: none does.
    """
    if len(check_task_prefix(typed)) == TASK_ID_CHARS:
        return typed
    store = services.store
    found, complete = await store.read_with_retry(
        lambda: queries.ids_with_prefix(store, typed, limit=LOOKED_AT),
        retry_for_s=services.settings.redis.command_timeout_s,
    )
    if not found:
        raise NotFound(
            f"no id begins with {typed} among the open tasks, the dead letters and the latest ends, {LOOKED_AT} of "
            "each; give the whole id, or see `orc tasks list`"
        )
    if len(found) > 1:
        named = ", ".join([*sorted(found)[:NAMED], *(["…"] if len(found) > NAMED else [])])
        raise InvalidInput(f"{len(found)} task ids begin with {typed}: {named}; give more of the id")
    if not complete:
        raise InvalidInput(
            f"{found[0]} begins with {typed}, and perhaps another id: only {LOOKED_AT} open tasks were looked at; "
            "give the whole id"
        )
    return found[0]


async def read_task(services: Services, id_: str, *, reveal: bool = False) -> TaskInfo:
    """Read everything about a task; of a redacted skill, the sizes of arguments and result unless `reveal` is true.

    Raises:
        InvalidInput: not the form of a task id.
        NotFound: no such task, or its retention has passed.
    """
    from orchestrator.why import lookup

    info = await lookup.info(services.store, check_task_id(id_))
    return info if reveal or not await is_redacted(services, info.skill) else without_data(info)


async def list_effects(services: Services, id_: str) -> tuple[TaskEffect, ...]:
    """List the effects of a task, in the order of their last begin.

    Raises:
        NotFound: no such task, or its retention has passed.
    """
    return await read_effects(services.store, id_)


async def load_values(services: Services, info: TaskInfo) -> TaskInfo:
    """Return the task with its large arguments and result from the payload store.

    Raises:
        PayloadError: the store does not have one of them, has another value, or does not answer.
    """
    if info.stored_args is not None:
        info = replace(info, args=await services.payloads.load(info.id, info.stored_args.packed))
    if info.stored_result is not None:
        info = replace(info, result=await services.payloads.load(info.id, info.stored_result.packed))
    return info


async def read_redaction(services: Services, id_: str) -> bool:
    """Return whether the skill of a task is redacted. Raises as `read_task`."""
    record = await read_record(services.store, check_task_id(id_), "state", "env")
    if not record.exists:
        raise NotFound(f"task {id_} does not exist, or its retention has passed")
    return await is_redacted(services, record.skill)


async def read_task_status(services: Services, id_: str) -> TaskStatus:
    """Read the state of a task and what it waits for. Raises as `read_task`."""
    from orchestrator.why import lookup

    return await lookup.status(services.store, check_task_id(id_))


async def read_dead_letter(services: Services, id_: str, *, reveal: bool = False) -> DeadLetter:
    """Read a dead letter; `reveal` as of `read_task`.

    Raises:
        InvalidInput: not the form of a task id.
        NotFound: no such task, or it is not a dead letter.
    """
    info = await read_task(services, id_, reveal=reveal)
    if info.state is not TaskState.DEAD:
        raise NotFound(f"task {id_} is not a dead letter, it is {info.state}; see `orc tasks show {id_}`")
    deaths = tuple(DeathNote(*_note(note)) for note in info.deaths)
    return DeadLetter(info, deaths, tuple(RetryNote(*_note(note)) for note in info.requeues))


async def export_dead_letter(services: Services, id_: str, *, reveal: bool = False) -> dict[str, Any] | None:
    """Read all that is stored of a dead letter, or return None if it is none, gone or unreadable.

    `reveal` as of `read_task`.
    """
    from orchestrator.why import lookup

    record = await lookup.export_task(services.store, check_task_id(id_))
    if record is None or record["state"] != TaskState.DEAD:
        return None
    if not reveal and await is_redacted(services, record["skill"]):
        record["args"] = msgspec.Raw(hidden_json(bytes(record["args"])))
    return record


async def select_tasks(
    services: Services, wanted: TaskFilter, *, among: Collection[TaskState], limit: int | None = DEFAULT_LIMIT
) -> TaskSelection:
    """Read the tasks that match a filter.

    Args:
        services: of the pool.
        wanted: the filter; its states must be in `among`.
        among: states that are meant when the filter names none.
        limit: maximum number, or None for no limit.

    Raises:
        InvalidInput: the filter names a state that is not in `among`.
    """
    found = await select(services.store, wanted, among=among, limit=limit)
    return TaskSelection(tuple(_selected(task) for task in found.tasks), found.more)


async def group_dead_letters(services: Services, wanted: TaskFilter, *, limit: int = DEFAULT_LIMIT) -> ErrorGroups:
    """Read the newest dead letters that match a filter, and group them."""
    found = await select(services.store, wanted, among=DEAD, limit=limit)
    return ErrorGroups(tuple(group_by_error(found.tasks)), found.more)


def _selected(task: TaskRecord) -> SelectedTask:
    return SelectedTask(
        id=task.id,
        state=task.state,
        skill=task.skill,
        agent=task.agent,
        session=task.session,
        tags=task.tags,
        attempts=task.attempts,
        reason=task.reason,
        submitted_at=task.submitted_at,
        ended_at=task.ended_at,
    )


def _note(note: str) -> tuple[datetime | None, str, str]:
    at_ms, word, text = [*note.split(" ", 2), "", ""][:3]
    return from_instant_ms(read_whole(at_ms)) if at_ms.isdigit() else None, word, text
