"""Finds the tasks that match a filter. Reads only.

A selection is frozen: an action on it applies to these ids, not to tasks that match later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import Duration, instant_ms, to_seconds
from orchestrator.core.errors import InvalidInput, StoreError
from orchestrator.core.ids import decode_foreign
from orchestrator.core.queue_name import QueueName
from orchestrator.store.paging import PAGE, zset_pages
from orchestrator.tasks.inbox import GROUP
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.records import TaskRecord, list_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

    from orchestrator.store.store import Store

DEFAULT_LIMIT: Final = 1000
"""Tasks that are selected unless the caller asks for more."""

WORDS_CHARS: Final = 2000

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
        plain = ("skill", "agent", "session", "tag", "queue")
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

    def matches(self, task: TaskRecord) -> bool:
        """Return whether a task matches; resolve `older_than` by `at` first."""
        wanted = (self.skill, self.agent, self.session, self.queue)
        named = zip(wanted, (task.skill, task.agent, task.session, task.queue), strict=True)
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
    seconds, microseconds = await store.execute("TIME")
    meant = wanted.at(datetime.fromtimestamp(int(seconds), UTC) + timedelta(microseconds=int(microseconds)))
    found: dict[str, TaskRecord] = {}
    seen: set[str] = set()
    lanes: dict[str, None] = {}
    for walk in (_walk(store, states, meant.queue), _lanes(store, lanes)):
        async for page in walk:
            fresh = {id_: state for id_, state in page.items() if id_ not in seen}
            seen |= fresh.keys()
            for task in await list_records(store, fresh, errors=meant.error is not None):
                if task.lane is not None and TaskState.READY in states:
                    lanes.setdefault(task.lane)
                if task.state in states and meant.matches(task):
                    if len(found) == limit:
                        return Selection(tuple(found.values()), more=True, looked=len(seen))
                    found[task.id] = task
    return Selection(tuple(found.values()), more=False, looked=len(seen))


# ------------------------------------------------------------------------------------------------------------ the walk

Page = dict[str, TaskState | None]


async def _walk(store: Store, states: frozenset[TaskState], queue: str | None) -> AsyncIterator[Page]:
    """Yield pages of tasks that may be in these states. A task may come twice, and its record decides."""
    if TaskState.DEAD in states:
        async for ids in zset_pages(store, store.keys.dead, newest_first=True):
            yield dict.fromkeys(ids)
    if states & (ENDED - {TaskState.DEAD}):
        async for ids in _ended(store, {state.value[0] for state in states}):
            yield dict.fromkeys(ids)
    if not states & OPEN:
        return
    agents = [name.decode() for name in await store.execute("ZRANGE", store.keys.agents, 0, -1)]
    # Inboxes are read for every filter, because their tasks may have the turn of a lane in which others wait.
    for agent in agents:
        async for page in _inbox(store, agent):
            yield page
    for place in await _places(store, agents, states, queue):
        async for ids in zset_pages(store, place):
            yield dict.fromkeys(ids)


async def _places(store: Store, agents: Sequence[str], states: frozenset[TaskState], queue: str | None) -> list[str]:
    keys = store.keys
    places = [keys.scheduled, keys.asking]
    if TaskState.READY in states:
        queues = [queue] if queue else sorted(name.decode() for name in await store.execute("SMEMBERS", keys.queues))
        scopes = sorted(scope.decode() for scope in await store.execute("SMEMBERS", keys.suspended_scopes))
        addressed = [agent for name in queues if (agent := QueueName.parse(name).agent)]
        suspected = [name.decode() for name in await store.execute("SMEMBERS", keys.suspected_queues)]
        places += [keys.queue(name) for name in queues]
        places += [keys.suspects(name) for name in sorted(suspected) if queue in {None, name}]
        places += [keys.parked(name) for name in dict.fromkeys([*agents, *addressed])]
        places += [keys.held(scope) for scope in scopes]
    return places


async def _lanes(store: Store, lanes: Mapping[str, None]) -> AsyncIterator[Page]:
    """Yield the tasks that wait for the turn of a lane, which are in no queue."""
    for lane in list(lanes):
        async for ids in zset_pages(store, store.keys.lane(decode_foreign(lane))):
            yield dict.fromkeys(ids)


async def _inbox(store: Store, agent: str) -> AsyncIterator[Page]:
    """Yield the tasks of an inbox, running if a worker has read them."""
    key, after = store.keys.inbox(agent), "-"
    while True:
        try:
            entries = await store.execute("XRANGE", key, after, "+", "COUNT", PAGE)
            if not entries:
                return
            pending = await store.execute("XPENDING", key, GROUP, entries[0][0], entries[-1][0], PAGE)
        except StoreError:
            if await store.execute("EXISTS", key):
                raise
            return  # the agent was forgotten at this moment
        read = {row[0] for row in pending}
        yield {
            fields_[1].decode(): TaskState.RUNNING if entry in read else TaskState.ASSIGNED
            for entry, fields_ in entries
        }
        after = f"({entries[-1][0].decode()}"


async def _ended(store: Store, letters: Collection[str]) -> AsyncIterator[list[str]]:
    """Yield ended tasks, newest first, as far as the stream of ends reaches back."""
    before = "+"
    while entries := await store.execute("XREVRANGE", store.keys.events, before, "-", "COUNT", 100):
        for _, flat in entries:
            pairs = zip(flat[::2], flat[1::2], strict=True)
            if ids := [id_.decode() for id_, letter in pairs if letter.decode() in letters]:
                yield ids[::-1]
        before = f"({entries[-1][0].decode()}"


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
