"""Finds the tasks that match a filter. Reads only.

A selection is frozen: an action on it applies to these ids, not to tasks that match later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import Duration, instant_ms, to_seconds
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_task_id, encode_foreign
from orchestrator.core.reading import read_whole
from orchestrator.store.paging import PAGE
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.queries import row_of
from orchestrator.tasks.walking import Scope, parse_cursor, walk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable

    from orchestrator.store.store import Store
    from orchestrator.tasks.queries import TaskRow
    from orchestrator.tasks.records import TaskRecord

DEFAULT_LIMIT: Final = 1000
"""Tasks that are selected unless the caller asks for more."""

WORDS_CHARS: Final = 2000
MOST_LOOKED: Final = 5000
"""Tasks that a page reads at most; the last read may bring it above by one page of the store."""
MOST_READS: Final = 100
"""Reads of a page, when places hold few tasks."""

OPEN: Final = frozenset(state for state in TaskState if not state.final)
RETRYABLE: Final = frozenset({TaskState.DEAD, TaskState.CANCELLED, TaskState.EXPIRED})
ENDED: Final = frozenset(state for state in TaskState if state.final)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """A filter for tasks. All given conditions must hold; without any, all tasks match.

    Attributes:
        skill: skill of the task.
        agent: agent that had the task last, or that it is addressed to.
        session: session id.
        tag: a label of the task.
        parent: the task that submitted it.
        states: one of these; by default those that the action applies to.
        reason: text in the reason, in upper or lower case.
        error: text in a traceback.
        since: ended at this time or later; an open task: submitted.
        until: ended (submitted) before this time.
        older_than: ended (submitted) longer ago than this.
        queue: queue in which it waits: `skill:NAME` or `agent:NAME`.
    """

    skill: str | None = None
    agent: str | None = None
    session: str | None = None
    tag: str | None = None
    parent: str | None = None
    states: Collection[TaskState | str] = ()
    reason: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    older_than: Duration | None = None
    queue: str | None = None

    def __post_init__(self) -> None:
        unknown = [state for state in self.states if state not in set(TaskState)]
        if unknown:
            raise InvalidInput(f"no state of a task is called {unknown[0]!r}; there are {', '.join(TaskState)}")
        if self.parent is not None:
            check_task_id(self.parent)
        for kind, value in (("session", self.session), ("tag", self.tag)):
            if value is not None:
                encode_foreign(kind, value)
        for name in ("since", "until"):
            if (moment := getattr(self, name)) is not None:
                instant_ms(name, moment)
        if self.older_than is not None:
            to_seconds("older_than", self.older_than)

    @property
    def empty(self) -> bool:
        """True without any condition."""
        return all(not getattr(self, each.name) for each in fields(self))

    @property
    def words(self) -> str:
        """The conditions for people: `skill=send, reason contains 'timeout'`."""
        plain = ("skill", "agent", "session", "tag", "parent", "queue")
        said = [f"{name}={value}" for name in plain if (value := getattr(self, name))]
        if self.states:
            said.append(f"state={'|'.join(str(state) for state in self.states)}")
        said += [f"{name} contains {value!r}" for name in ("reason", "error") if (value := getattr(self, name))]
        said += [f"{name} {value.isoformat()}" for name in ("since", "until") if (value := getattr(self, name))]
        if self.older_than is not None:
            said.append(f"older than {to_seconds('older_than', self.older_than):g} s")
        return ", ".join(said)[:WORDS_CHARS] or "all"

    def at(self, now: datetime) -> TaskFilter:
        """Replace `older_than` by a time, so that it means the same for every task."""
        if self.older_than is None:
            return self
        edge = now - timedelta(seconds=to_seconds("older_than", self.older_than))
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        said |= {"older_than": None, "until": edge if self.until is None else min(edge, self.until)}
        return TaskFilter(**said)

    def scope(self, states: frozenset[TaskState]) -> Scope:
        """Return where tasks in these states that match may be."""
        return Scope(states=states, session=self.session, parent=self.parent, tag=self.tag, queue=self.queue)

    def matches(self, task: TaskRecord) -> bool:
        """Return whether a task matches; resolve `older_than` by `at` first."""
        wanted = (self.skill, self.agent, self.session, self.parent, self.queue)
        named = zip(wanted, (task.skill, task.agent, task.session, task.envelope.parent, task.queue), strict=True)
        return (
            all(wish is None or wish == value for wish, value in named)
            and (self.tag is None or self.tag in task.tags)
            and (not self.states or task.state in self.states)
            and (self.reason is None or self.reason.casefold() in task.reason.casefold())
            and (self.since is None or task.at >= self.since)
            and (self.until is None or task.at < self.until)
            and (self.error is None or any(self.error in text for text in task.errors))
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """Result of a selection.

    Attributes:
        tasks: the tasks at that time.
        more: whether more tasks match.
        looked: number of tasks that were read.
    """

    tasks: tuple[TaskRecord, ...]
    more: bool
    looked: int

    @property
    def ids(self) -> list[str]:
        """The ids of the tasks."""
        return [task.id for task in self.tasks]


async def select(
    store: Store, wanted: TaskFilter, *, among: Collection[TaskState], limit: int | None = DEFAULT_LIMIT
) -> Selection:
    """Find the tasks that match a filter.

    Args:
        store: the store.
        wanted: the filter; its states must be in `among`.
        among: states that the action applies to, used when the filter names none.
        limit: maximum number, or None for no limit.

    Raises:
        InvalidInput: the filter names a state that is not in `among`.
    """
    odd = [str(state) for state in wanted.states if state not in among]
    if odd:
        raise InvalidInput(f"tasks that are {odd[0]} cannot be meant here, only {', '.join(sorted(among))}")
    states = frozenset(TaskState(state) for state in wanted.states) or frozenset(among)
    meant = await _at_present(store, wanted)
    found: dict[str, TaskRecord] = {}
    looked = 0
    async for step in walk(store, meant.scope(states), errors=meant.error is not None):
        looked += step.looked
        for task, _ in step.tasks:
            if task.id not in found and task.state in states and meant.matches(task):
                if len(found) == limit:
                    return Selection(tuple(found.values()), more=True, looked=looked)
                found[task.id] = task
    return Selection(tuple(found.values()), more=False, looked=looked)


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A part of a list of tasks.

    Attributes:
        tasks: those that match; maybe none, although more follow.
        cursor: for the next page; None at the end.
        looked: number of tasks that were read for it.
    """

    tasks: tuple[TaskRow, ...]
    cursor: str | None
    looked: int


async def read_page(
    store: Store,
    wanted: TaskFilter,
    *,
    after: str | None = None,
    limit: int,
    at_once: int | None = None,
    most: int | None = None,
) -> TaskPage:
    """Read the next tasks that match a filter. The cost of a page has a bound, however few of the tasks match.

    Args:
        store: the store.
        wanted: the filter.
        after: cursor of the page before, of the same filter.
        limit: maximum number.
        at_once: tasks that one read returns; a page of the store by default.
        most: tasks that are looked at, at most; the last read may bring it above by `at_once`.

    Raises:
        InvalidInput: `after` is no cursor, or one of another filter.
    """
    cursor = None if after is None else parse_cursor(after)
    meant = await _at_present(store, wanted)
    states = frozenset(TaskState(state) for state in wanted.states) or frozenset(TaskState)
    rows: dict[str, TaskRow] = {}
    looked = reads = 0
    async for step in walk(store, meant.scope(states), cursor, errors=meant.error is not None, at_once=at_once):
        for task, behind in step.tasks:
            if meant.matches(task):
                rows[task.id] = row_of(task, task.state)
            if len(rows) == limit:
                return TaskPage(tuple(rows.values()), behind.text, looked + step.looked)
        looked, reads = looked + step.looked, reads + 1
        if looked >= (most or MOST_LOOKED) or reads == MOST_READS:
            return TaskPage(tuple(rows.values()), step.cursor.text, looked)
    return TaskPage(tuple(rows.values()), None, looked)


async def iterate(store: Store, wanted: TaskFilter, *, after: str | None = None) -> AsyncGenerator[TaskRow]:
    """Yield the tasks that match a filter, each once; read a page when the one before is used up."""
    seen: set[str] = set()
    while True:
        page = await read_page(store, wanted, after=after, limit=PAGE)
        for task in page.tasks:
            if task.id not in seen:
                seen.add(task.id)
                yield task
        if page.cursor is None:
            return
        after = page.cursor


async def _at_present(store: Store, wanted: TaskFilter) -> TaskFilter:
    if wanted.older_than is None:
        return wanted
    seconds, microseconds = await store.execute("TIME")
    return wanted.at(
        datetime.fromtimestamp(read_whole(seconds), UTC) + timedelta(microseconds=read_whole(microseconds))
    )


# -------------------------------------------------------------------------------------------------------- dead letters

_EXCEPTION: Final = re.compile(r"([A-Za-z_][\w.]*)(?:: |$)")
_VARIABLE: Final = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d+")


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Dead letters with the same skill and kind of error.

    Attributes:
        error: name of the exception, else the reason without numbers.
        example: the newest task.
    """

    error: str
    skill: str
    tasks: int
    oldest: datetime
    newest: datetime
    example: str


def error_class(reason: str) -> str:
    """Return the name of the exception in a reason, else the reason without numbers and ids."""
    found = _EXCEPTION.match(reason)
    return found[1] if found else _VARIABLE.sub("#", reason) or "(no reason)"


def error_line(line: str) -> str:
    """Return the first line of a reason without numbers and ids, which differ between failures of one kind."""
    return _VARIABLE.sub("#", line) or "(no reason)"


def group_by_error(tasks: Iterable[TaskRecord]) -> list[ErrorGroup]:
    """Group by skill and kind of error, largest group first."""
    members: dict[tuple[str, str], list[TaskRecord]] = {}
    for task in tasks:
        members.setdefault((error_class(task.reason), task.skill), []).append(task)
    groups = []
    for (error, skill), alike in members.items():
        newest = max(alike, key=lambda task: task.at)
        oldest = min(task.at for task in alike)
        groups.append(ErrorGroup(error, skill, len(alike), oldest, newest.at, newest.id))
    return sorted(groups, key=lambda one: (-one.tasks, one.error, one.skill))
