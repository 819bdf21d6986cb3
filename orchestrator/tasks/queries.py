"""Reads lists of tasks and outcomes. Not for hot paths."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import StoreError
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text, read_whole, readable
from orchestrator.tasks.inbox import GROUP
from orchestrator.tasks.model import STATE_OF_LETTER, TaskState, root_of
from orchestrator.tasks.records import TaskRecord, list_records, read_each, read_record, record_fields
from orchestrator.tasks.values import is_apart, read_values

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from orchestrator.store.store import Store

CHUNK: Final = 500
"""Keys that one round trip reads at most."""
READ_AT_ONCE: Final = 100_000
"""Tasks that one round trip reads at most."""
_DELIVERED: Final = frozenset({TaskState.RUNNING, TaskState.CANCELLING, TaskState.ASSIGNED})


MOST_QUEUES: Final = 10_000
"""Queues that one look at all of them covers; it takes about a second. Notifications name queues, too."""
MOST_AWAITED: Final = 1000
"""Tasks that the search for a deadlock reads."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """Outcome of a task.

    Attributes:
        state: None if it has no record.
        result: JSON, or a reference to a value in the payload store.
    """

    state: TaskState | None
    result: bytes | None = None
    reason: str = ""
    errors: tuple[str, ...] = ()


async def outcomes(store: Store, ids: Sequence[str]) -> dict[str, TaskOutcome | StoreError]:
    """Read the outcomes of ended and unknown tasks, in one round trip; in two if any failed before or is large.

    A task that Redis refuses to read, for example because its key has another type, maps to the error.
    """
    found: dict[str, TaskOutcome | StoreError] = {}
    failed: dict[str, TaskRecord] = {}
    apart: dict[str, bytes] = {}
    for id_, record in (await read_each(store, ids, "state", "result", "reason", "fails")).items():
        if isinstance(record, StoreError):
            found[id_] = record
        elif not record.exists:
            found[id_] = TaskOutcome(None)
        elif record.state.final:
            found[id_] = TaskOutcome(record.state, record.result, record.reason)
            if record.failures:
                failed[id_] = record
            elif is_apart(record.result):
                apart[id_] = record.result or b""
    for id_, whole in (await read_each(store, failed)).items():
        if isinstance(whole, StoreError):
            raise whole
        found[id_] = TaskOutcome(failed[id_].state, whole.result, failed[id_].reason, whole.errors)
    for id_, value in zip(apart, await read_values(store, list(apart.items())), strict=True):
        found[id_] = with_value(value)
    return found


def with_value(value: bytes | StoreError | None) -> TaskOutcome | StoreError:
    """Return the outcome of a success whose result was read from a field of its own; None: the record is gone."""
    if isinstance(value, StoreError):
        return value
    return TaskOutcome(None) if value is None else TaskOutcome(TaskState.SUCCEEDED, value)


async def awaits(store: Store, waiter: str, task: str) -> bool:
    """Return whether the attempt of one task waits for another task, or for one that waits for it.

    It follows what `lua/tasks/lend.lua` has recorded, over at most `MOST_AWAITED` tasks.
    """
    seen, level = {waiter}, [waiter]
    while level and len(seen) <= MOST_AWAITED:
        following: dict[str, None] = {}
        for record in (await read_each(store, level, "state", "gen", "awaits")).values():
            if not isinstance(record, StoreError):
                following.update(dict.fromkeys(record.awaits))
        if task in following:
            return True
        level = [id_ for id_ in following if id_ not in seen]
        seen.update(level)
    return False


async def ended(store: Store, limit: int) -> list[tuple[str, TaskState]]:
    """List the most recently ended tasks, newest first."""
    found: list[tuple[str, TaskState]] = []
    for _, fields in await store.execute("XREVRANGE", store.keys.events, "+", "-", "COUNT", limit):
        pairs = list(zip(fields[::2], fields[1::2], strict=True))
        known = [(id_, letter) for id_, letter in pairs if read_text(letter) in STATE_OF_LETTER]
        found += [(read_text(id_), STATE_OF_LETTER[read_text(letter)]) for id_, letter in reversed(known)]
    return found[:limit]


async def waiting(
    store: Store, limit: int, wanted: Collection[TaskState] = frozenset(TaskState)
) -> list[tuple[str, TaskState]]:
    """List open tasks, from running to scheduled. Reads no more places than `limit` tasks of these states need."""
    agents = [read_text(name) for name in await store.execute("ZRANGE", store.keys.agents, 0, -1)]
    last, wants_ready = limit - 1, TaskState.READY in wanted
    # In the order in which tasks move, so that one that moves meanwhile is found twice and not missed.
    scheduled = await _first_ids(store, [store.keys.scheduled], last, TaskState.SCHEDULED)
    asking = await _first_ids(store, [store.keys.asking], last, TaskState.AWAITING_INPUT)
    joining = await _first_ids(store, [store.keys.joining], last, TaskState.JOINING)
    following = await _first_ids(store, [store.keys.awaiting_tasks], last, TaskState.AWAITING_TASKS)
    places = await _ready_places(store, agents) if wants_ready else []
    ready = await _first_ids(store, places, last, TaskState.READY)
    running, assigned = await _delivered(store, agents, limit, wanted)
    found = [*running, *assigned, *asking, *joining, *ready, *scheduled, *following]
    in_lanes: list[tuple[str, TaskState]] = []
    if wants_ready and len(ready) < limit:
        # A task that waits for the turn of its lane is in no queue, but in its lane behind a task that was found.
        lanes = [store.keys.lane(lane) for lane in await _lanes(store, [id_ for id_, _ in found])]
        seen = {id_ for id_, _ in found}
        behind = await _first_ids(store, lanes, limit, TaskState.READY, first=1)
        in_lanes = [one for one in behind if one[0] not in seen]
    return [*running, *assigned, *asking, *joining, *ready, *in_lanes, *scheduled, *following]


async def _delivered(
    store: Store, agents: Sequence[str], limit: int, wanted: Collection[TaskState]
) -> tuple[list[tuple[str, TaskState]], list[tuple[str, TaskState]]]:
    """List the tasks that workers have read, and those that they have not, of as many agents as the list needs."""
    running: list[tuple[str, TaskState]] = []
    assigned: list[tuple[str, TaskState]] = []
    if not (_DELIVERED | {TaskState.READY}) & set(wanted):
        return running, assigned
    step = _step(limit)
    for at in range(0, len(agents), step):
        inboxes = [store.keys.inbox(agent) for agent in agents[at : at + step]]
        entries = await store.pipeline([("XRANGE", inbox, "-", "+", "COUNT", limit) for inbox in inboxes])
        pending = await store.pipeline([("XPENDING", inbox, GROUP, "-", "+", limit) for inbox in inboxes])
        begun: list[str] = []
        for unread, read in zip(entries, pending, strict=True):
            if isinstance(unread, StoreError) or isinstance(read, StoreError):
                continue  # an agent that was just expired has no inbox
            known = {row[0] for row in read}
            begun += [read_text(fields[1]) for entry, fields in unread if entry in known]
            assigned += [(read_text(fields[1]), TaskState.ASSIGNED) for entry, fields in unread if entry not in known]
        running += await _running(store, begun)
        meant = assigned if wanted == {TaskState.ASSIGNED} else [one for one in running if one[1] in wanted]
        if len(meant) >= limit:
            break
    return running, assigned


async def _ready_places(store: Store, agents: Sequence[str]) -> list[str]:
    keys = store.keys
    queues = sorted(read_text(name) for name in await store.execute("SMEMBERS", keys.queues))
    stops = [read_text(name) for name in await store.execute("SMEMBERS", keys.suspended_scopes)]
    suspected = [read_text(name) for name in await store.execute("SMEMBERS", keys.suspected_queues)]
    flows = sorted(read_text(name) for name in await store.execute("SMEMBERS", keys.share_flows))
    return [
        *(keys.queue(queue) for queue in queues),
        *(keys.suspects(queue) for queue in suspected),
        *(keys.parked(agent) for agent in agents),
        *(keys.held(scope) for scope in stops),
        *(keys.share_flow(flow) for flow in flows),
    ]


async def _first_ids(
    store: Store, places: Sequence[str], last: int, state: TaskState, *, first: int = 0
) -> list[tuple[str, TaskState]]:
    """List the first tasks of these sorted sets, of as many sets as the list needs."""
    found: list[tuple[str, TaskState]] = []
    step = _step(last + 1)
    for at in range(0, len(places), step):
        replies = await store.pipeline([("ZRANGE", place, first, last) for place in places[at : at + step]])
        found += [(read_text(id_), state) for reply in replies if not isinstance(reply, StoreError) for id_ in reply]
        if len(found) > last:
            break
    return found


def _step(limit: int) -> int:
    return max(1, min(CHUNK, READ_AT_ONCE // limit))


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
    return [(read_text(id_), TaskState.DEAD) for id_ in ids]


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
        root: first task of its family, itself without a parent; None if an older program has submitted it.
        depth: number of tasks above it.
        reason: reason of the last retry, or of an end without a result, in one line.
        lane: its lane.
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
    lane: str | None = None
    root: str | None = None
    depth: int = 0


def row_of(task: TaskRecord, state: TaskState) -> TaskRow:
    """Return the row of a record in a state."""
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
        lane=task.lane_name,
        root=root_of(task.id, task.envelope),
        depth=task.envelope.depth,
    )


async def rows_of(store: Store, tasks: Sequence[TaskRecord]) -> list[TaskRow]:
    """Return the rows of records, with `running` and `cancelling` for tasks that a worker has read."""
    return [row_of(task, task.state) for task in await mark_running(store, tasks)]


async def mark_running(store: Store, tasks: Sequence[TaskRecord]) -> list[TaskRecord]:
    """Return the records, those of tasks that a worker has read as `running` or `cancelling`."""
    held = [task for task in tasks if task.state is TaskState.ASSIGNED and task.holder is not None]
    replies = await store.pipeline(
        [("XPENDING", store.keys.inbox(str(task.holder)), GROUP, task.entry, task.entry, 1) for task in held]
    )
    running = {
        task.id for task, reply in zip(held, replies, strict=True) if reply and not isinstance(reply, StoreError)
    }
    return [task.known_as(TaskState.RUNNING) if task.id in running else task for task in tasks]


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
        found += await waiting(store, limit, wanted)
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
            rows.append(row_of(task, state))
    return rows


async def ids_with_prefix(store: Store, prefix: str, *, limit: int) -> tuple[list[str], bool]:
    """Return the ids with a prefix among the open tasks, the latest ends and the dead letters, `limit` of each.

    And whether these were all open tasks, so that no other one has the prefix.
    """
    still_open = await waiting(store, limit)
    found = [*still_open, *await ended(store, limit), *await dead(store, limit)]
    return list(dict.fromkeys(id_ for id_, _ in found if id_.startswith(prefix))), len(still_open) < limit


async def waiting_bytes(store: Store, queues: Sequence[str]) -> tuple[dict[str, int], int]:
    """Return the bytes of the tasks that wait, of these queues and of the pool; about right for small tasks."""
    of_pool, *of_queues = await store.execute("HMGET", store.keys.queue_bytes, "*", *queues)
    numbers = [read_whole(number) for number in (of_pool, *of_queues)]
    return dict(zip(queues, numbers[1:], strict=True)), numbers[0]


async def bytes_by_queue(store: Store) -> dict[str, int]:
    """Return the bytes of the tasks that wait by queue; `*` for the pool."""
    flat = await store.execute("HGETALL", store.keys.queue_bytes)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {read_text(name): read_whole(number) for name, number in pairs}


async def queue_lengths(store: Store) -> dict[str, int]:
    """Count the tasks in each queue that is not empty, and in the places of those that wait for something else.

    These are `scheduled`, `awaiting_input`, `joining` and `awaiting_tasks`.

    The suspects of a queue count too, and so do its tasks that wait for another version of their skill or behind others
    of their key.
    """
    keys, scopes = store.keys, await version_scopes(store)
    names = {read_text(name) for name in await store.execute("SUNION", keys.queues, keys.suspected_queues)}
    queues = sorted(names | set(scopes.values()))
    places = [("scheduled", keys.scheduled), ("awaiting_input", keys.asking), ("joining", keys.joining)]
    places.append(("awaiting_tasks", keys.awaiting_tasks))
    places += [(queue, key) for queue in queues for key in (keys.queue(queue), keys.suspects(queue))]
    places += [(queue, keys.held(scope)) for scope, queue in scopes.items()]
    lengths = dict.fromkeys([*queues, "scheduled", "awaiting_input", "joining", "awaiting_tasks"], 0)
    counts = await store.pipeline([("ZCARD", key) for _, key in places])
    for (name, _), count in zip(places, counts, strict=True):
        lengths[name] += readable(count, 0)
    for queue, count in (await behind_keys(store)).items():
        lengths[queue] = lengths.get(queue, 0) + count
    return lengths


async def behind_keys(store: Store) -> dict[str, int]:
    """Count the tasks that wait behind others of their keys, by queue."""
    flat = await store.execute("ZRANGE", store.keys.share_queues, 0, -1, "WITHSCORES")
    return {read_text(name): read_whole(count) for name, count in zip(flat[::2], flat[1::2], strict=True)}


async def version_scopes(store: Store) -> dict[str, str]:
    """Read the scopes of tasks that wait for another version of their skill, each with their queue."""
    scopes = [read_text(scope) for scope in await store.execute("ZRANGE", store.keys.version_scopes, 0, -1)]
    found = ((scope, store.keys.queue_of_scope(scope)) for scope in scopes)
    return {scope: queue for scope, queue in found if queue}


async def any_ready(store: Store) -> bool:
    """Return whether any queue holds a task, or versions of a skill hold one."""
    keys = store.keys
    return bool(await store.execute("EXISTS", keys.queues, keys.suspected_queues, keys.version_scopes))


async def ready_queues(store: Store) -> list[QueueName]:
    """Read the queues that hold ready tasks, and those whose tasks versions of a skill hold.

    Of more than `MOST_QUEUES` some: clients write the list, and names without tasks must not delay the others.
    """
    names = {read_text(name) for name in await store.execute("SMEMBERS", store.keys.queues)}
    names |= set((await version_scopes(store)).values())
    if len(names) > MOST_QUEUES:
        names = set(random.sample(sorted(names), MOST_QUEUES))
    queues = [QueueName.parse(name) for name in sorted(names)]
    return [queue for queue in queues if queue.kind in {"agent", "skill"}]


async def counters(store: Store) -> dict[str, int]:
    """Read the pool's counters since the beginning: submitted, assigned, succeeded, dead, retried, ..."""
    return {
        name: read_whole(count)
        for name, count in record_fields(await store.execute("HGETALL", store.keys.stats("TOTAL"))).items()
    }


async def dead_letters(store: Store) -> int:
    """Count the dead letters that are kept now."""
    count: int = await store.execute("ZCARD", store.keys.dead)
    return count


async def envelope_bytes(store: Store, id_: str) -> bytes | None:
    """Read the envelope of a task whose delivery was too large for it, or return None if the task is gone."""
    return (await read_record(store, id_, "env")).field("env")


async def server_ms(store: Store) -> int:
    """Read the server's clock."""
    seconds, microseconds = await store.execute("TIME")
    return read_whole(seconds) * 1000 + read_whole(microseconds) // 1000
