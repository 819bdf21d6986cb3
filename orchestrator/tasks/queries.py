"""Reads lists of tasks and outcomes. Not for hot paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.errors import StoreError
from orchestrator.tasks.inbox import GROUP
from orchestrator.tasks.model import STATE_OF_LETTER, TaskState
from orchestrator.tasks.records import TaskRecord, list_records, read_each, read_record, record_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from orchestrator.store.store import Store


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """Outcome of a task; `state` is None if it has no record."""

    state: TaskState | None
    result: bytes | None = None
    reason: str = ""
    errors: tuple[str, ...] = ()


async def outcomes(store: Store, ids: Sequence[str]) -> dict[str, TaskOutcome | StoreError]:
    """Read the outcomes of ended and unknown tasks, in one round trip; in two if any failed before.

    A task that Redis refuses to read, for example because its key has another type, maps to the error.
    """
    found: dict[str, TaskOutcome | StoreError] = {}
    failed: dict[str, TaskRecord] = {}
    for id_, record in (await read_each(store, ids, "state", "result", "reason", "fails")).items():
        if isinstance(record, StoreError):
            found[id_] = record
        elif not record.exists:
            found[id_] = TaskOutcome(None)
        elif record.state.final:
            found[id_] = TaskOutcome(record.state, record.result, record.reason)
            if record.failures:
                failed[id_] = record
    for id_, whole in (await read_each(store, failed)).items():
        if isinstance(whole, StoreError):
            raise whole
        found[id_] = TaskOutcome(failed[id_].state, failed[id_].result, failed[id_].reason, whole.errors)
    return found


async def ended(store: Store, limit: int) -> list[tuple[str, TaskState]]:
    """List the most recently ended tasks, newest first."""
    found: list[tuple[str, TaskState]] = []
    for _, fields in await store.execute("XREVRANGE", store.keys.events, "+", "-", "COUNT", limit):
        pairs = list(zip(fields[::2], fields[1::2], strict=True))
        found += [(id_.decode(), STATE_OF_LETTER[letter.decode()]) for id_, letter in reversed(pairs)]
    return found[:limit]


async def waiting(store: Store, limit: int) -> list[tuple[str, TaskState]]:
    """List open tasks, from running to scheduled; at most `limit` of each kind."""
    queues = sorted(name.decode() for name in await store.execute("SMEMBERS", store.keys.queues))
    agents = [name.decode() for name in await store.execute("ZRANGE", store.keys.agents, 0, -1)]
    stops = [name.decode() for name in await store.execute("SMEMBERS", store.keys.suspended_scopes)]
    suspected = [name.decode() for name in await store.execute("SMEMBERS", store.keys.suspected_queues)]
    last = limit - 1
    replies = await store.pipeline(
        [("ZRANGE", store.keys.scheduled, 0, last), ("ZRANGE", store.keys.asking, 0, last)]
        + [("ZRANGE", store.keys.queue(queue), 0, last) for queue in queues]
        + [("ZRANGE", store.keys.suspects(queue), 0, last) for queue in suspected]
        + [("ZRANGE", store.keys.parked(agent), 0, last) for agent in agents]
        + [("ZRANGE", store.keys.held(scope), 0, last) for scope in stops]
        + [("XRANGE", store.keys.inbox(agent), "-", "+", "COUNT", limit) for agent in agents]
        + [("XPENDING", store.keys.inbox(agent), GROUP, "-", "+", limit) for agent in agents]
    )
    # An agent that was just expired has no inbox.
    lists = iter([] if isinstance(reply, StoreError) else reply for reply in replies)
    scheduled = [(id_.decode(), TaskState.SCHEDULED) for id_ in next(lists)]
    asking = [(id_.decode(), TaskState.AWAITING_INPUT) for id_ in next(lists)]
    ready = [(id_.decode(), TaskState.READY) for _ in [*queues, *suspected, *agents, *stops] for id_ in next(lists)]
    entries = [(entry, fields[1].decode()) for _ in agents for entry, fields in next(lists)]
    read = {pending[0] for _ in agents for pending in next(lists)}
    running = await _running(store, [id_ for entry, id_ in entries if entry in read])
    assigned = [(id_, TaskState.ASSIGNED) for entry, id_ in entries if entry not in read]
    found = [*running, *assigned, *asking, *ready, *scheduled]
    # A task that waits for the turn of its lane is in no queue, but in its lane behind a task that was found.
    lanes = await _lanes(store, [id_ for id_, _ in found])
    members = await store.pipeline([("ZRANGE", store.keys.lane(lane), 1, limit) for lane in lanes])
    seen = {id_ for id_, _ in found}
    behind = [id_.decode() for reply in members if not isinstance(reply, StoreError) for id_ in reply]
    in_lanes = [(id_, TaskState.READY) for id_ in behind if id_ not in seen]
    return [*running, *assigned, *asking, *ready, *in_lanes, *scheduled]


async def _lanes(store: Store, ids: Sequence[str]) -> list[str]:
    records = (await read_each(store, ids, "lane")).values()
    names = [record.lane_name for record in records if isinstance(record, TaskRecord)]
    return list(dict.fromkeys(name for name in names if name is not None))


async def _running(store: Store, ids: Sequence[str]) -> list[tuple[str, TaskState]]:
    records = await read_each(store, ids, "cancel")
    return [
        (id_, TaskState.RUNNING if isinstance(record, StoreError) or record.cancel is None else TaskState.CANCELLING)
        for id_, record in records.items()
    ]


async def dead(store: Store, limit: int) -> list[tuple[str, TaskState]]:
    """List dead letters, newest first."""
    ids = await store.execute("ZRANGE", store.keys.dead, 0, limit - 1, "REV")
    return [(id_.decode(), TaskState.DEAD) for id_ in ids]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task in a list.

    Attributes:
        id: id of the task.
        state: one of `TaskState`.
        skill: requested skill.
        priority: 0 to 9, lower first.
        session: as submitted, like `tags`.
        submitted_at: aware time, like `ended_at`.
        agent: agent that has or had it, or that it is addressed to.
        parent: task that submitted it.
        reason: reason of the last retry, or of an end without a result, in one line.
    """

    id: str
    state: TaskState
    skill: str
    priority: int
    session: str | None
    tags: tuple[str, ...]
    submitted_at: datetime
    agent: str | None = None
    parent: str | None = None
    ended_at: datetime | None = None
    reason: str = ""


def _row_of(task: TaskRecord, state: TaskState) -> TaskRow:
    return TaskRow(
        id=task.id,
        state=state,
        skill=task.skill,
        priority=task.priority,
        session=task.session,
        tags=task.tags,
        submitted_at=task.submitted_at,
        agent=task.agent,
        parent=task.envelope.parent,
        ended_at=task.ended_at,
        reason=task.reason,
    )


async def rows_of(store: Store, tasks: Sequence[TaskRecord]) -> list[TaskRow]:
    """Return the rows of records, with `running` and `cancelling` for tasks that a worker has read."""
    held = [task for task in tasks if task.state is TaskState.ASSIGNED and task.holder is not None]
    replies = await store.pipeline(
        [("XPENDING", store.keys.inbox(str(task.holder)), GROUP, task.entry, task.entry, 1) for task in held]
    )
    running = {
        task.id: TaskState.RUNNING if task.cancel is None else TaskState.CANCELLING
        for task, reply in zip(held, replies, strict=True)
        if reply and not isinstance(reply, StoreError)
    }
    return [_row_of(task, running.get(task.id, task.state)) for task in tasks]


async def listing(store: Store, *, states: Collection[TaskState], limit: int) -> list[TaskRow]:
    """List tasks: running, then waiting, then ended, newest end first.

    Args:
        store: the store.
        states: only these; empty for all.
        limit: maximum number.
    """
    wanted = frozenset(states) or frozenset(TaskState)
    found: list[tuple[str, TaskState]] = []
    if any(not state.final for state in wanted):
        found += await waiting(store, limit)
    if any(state.final for state in wanted):
        # A filter may drop most of them, so read all that the event stream keeps.
        found += await ended(store, limit if not states else max(limit, 1000))
    if TaskState.DEAD in wanted:
        found += await dead(store, limit)
    # The first place of a task counts.
    seen: dict[str, TaskState] = {}
    for id_, state in found:
        if state in wanted:
            seen.setdefault(id_, state)
    rows: list[TaskRow] = []
    for task in await list_records(store, dict(list(seen.items())[:limit])):
        # A requeued task may still be among the ended ones; then its record decides.
        state = task.state if seen[task.id].final else seen[task.id]
        if state in wanted:
            rows.append(_row_of(task, state))
    return rows


async def queue_lengths(store: Store) -> dict[str, int]:
    """Count the tasks in each queue that is not empty, in `scheduled` and in `awaiting_input`.

    The suspects of a queue, and its tasks that wait for another version of their skill, count too.
    """
    keys, scopes = store.keys, await version_scopes(store)
    names = {name.decode() for name in await store.execute("SUNION", keys.queues, keys.suspected_queues)}
    queues = sorted(names | set(scopes.values()))
    places = [("scheduled", keys.scheduled), ("awaiting_input", keys.asking)]
    places += [(queue, key) for queue in queues for key in (keys.queue(queue), keys.suspects(queue))]
    places += [(queue, keys.held(scope)) for scope, queue in scopes.items()]
    lengths = dict.fromkeys([*queues, "scheduled", "awaiting_input"], 0)
    counts = await store.pipeline([("ZCARD", key) for _, key in places])
    for (name, _), count in zip(places, counts, strict=True):
        lengths[name] += count
    return lengths


async def version_scopes(store: Store) -> dict[str, str]:
    """Read the scopes of tasks that wait for another version of their skill, each with their queue."""
    scopes = [scope.decode() for scope in await store.execute("ZRANGE", store.keys.version_scopes, 0, -1)]
    return {scope: store.keys.queue_of_scope(scope) for scope in scopes}


async def any_ready(store: Store) -> bool:
    """Return whether any queue holds a task, or versions of a skill hold one."""
    keys = store.keys
    return bool(await store.execute("EXISTS", keys.queues, keys.suspected_queues, keys.version_scopes))


async def counters(store: Store) -> dict[str, int]:
    """Read the pool's counters since the beginning: submitted, assigned, succeeded, dead, retried, ..."""
    return {
        name: int(count)
        for name, count in record_fields(await store.execute("HGETALL", store.keys.stats("TOTAL"))).items()
    }


async def envelope_bytes(store: Store, id_: str) -> bytes | None:
    """Read the envelope of a task whose delivery was too large for it, or return None if the task is gone."""
    return (await read_record(store, id_, "env")).field("env")


async def server_ms(store: Store) -> int:
    """Read the server's clock."""
    seconds, microseconds = await store.execute("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000
