"""Reads one task: state, record, and what it waits for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from orchestrator.agents.failed_starts import failed_starts
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import DamagedData, NotFound, StoreError
from orchestrator.core.reading import read_text
from orchestrator.payloads.reference import is_reference, name_of, unpack_reference
from orchestrator.tasks.model import TaskState, decode_envelope, root_of
from orchestrator.tasks.queries import version_scopes
from orchestrator.tasks.records import TaskRecord, once_field, read_command, read_record
from orchestrator.tasks.values import ARGS, ROW_BYTES, reference_of, result_field
from orchestrator.tracing.header import trace_id_of
from orchestrator.why import scripts
from orchestrator.why.explanation import explain
from orchestrator.why.facts import VERSION
from orchestrator.why.model import STUCK, StoredValue, TaskInfo, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.agents.failed_starts import FailedStart
    from orchestrator.store.store import Store
    from orchestrator.why.facts import Findings
    from orchestrator.why.model import Why


MOST_LEVELS: Final = 3
"""Children of children whose obstacles explain a parent."""
MAX_READS: Final = 3
"""Reads of a task that changes between two reads."""
MOST_CHILDREN: Final = 1000
"""Children of a task that are read with it."""


async def status(store: Store, id_: str, *, children: bool = True) -> TaskStatus:
    """Read the state of a task and what it waits for, in one round trip; in more of a parent.

    Args:
        store: the store.
        id_: the task.
        children: whether to tell why the children wait that it waits for.

    Raises:
        NotFound: no such task, or its retention has passed.
    """
    found = await _find(store, id_)
    why = explain(found)
    if children:
        why = await _with_child(store, why)
    return TaskStatus(found.state, why.text, why, found.progress)


async def statuses(store: Store, ids: Sequence[str]) -> dict[str, TaskStatus]:
    """Read the states of several tasks and what they wait for, in a few round trips, without those that are gone."""
    read = await store.call_all([scripts.why(store.keys, id_=id_) for id_ in ids])
    found = {id_: one for id_, one in zip(ids, read, strict=True) if one is not None}
    if any(map(_has_no_slot, found.values())):
        failed = await failed_starts(store)
        found = {id_: _with_failed_start(one, failed) for id_, one in found.items()}
    known: dict[str, TaskStatus] = {}
    for id_, one in found.items():
        why = await _with_child(store, explain(one))
        known[id_] = TaskStatus(one.state, why.text, why, one.progress)
    return known


async def _with_child(store: Store, why: Why) -> Why:
    """Add to the explanation of a parent which child it waits for and why that one waits, a few levels down."""
    parts, level, first = [why.text], why, None
    for _ in range(MOST_LEVELS):
        found = None if not level.children else await _in_the_way(store, level.children)
        if found is None:
            break
        child, level = found
        first = first or found
        parts.append(f"task {child}: {level.text}")
    return why if first is None else replace(why, text="; ".join(parts), child=first[0], child_cause=first[1].cause)


async def _in_the_way(store: Store, children: Sequence[str]) -> tuple[str, Why] | None:
    """Return the first child that does not go on by itself, else the first; None if all have ended."""
    waiting: list[tuple[str, Why]] = []
    for child in children:
        with suppress(NotFound):  # it was deleted at this moment
            found = await _find(store, child)
            if not found.state.final:
                waiting.append((child, explain(found)))
                if waiting[-1][1].cause in STUCK:
                    return waiting[-1]
    return waiting[0] if waiting else None


async def info(store: Store, id_: str) -> TaskInfo:
    """Read everything about a task.

    Raises:
        NotFound: no such task, or its retention has passed.
    """
    found, record, children = await _find_with_record(store, id_)
    return _info(found, record, children, (await _with_child(store, explain(found))).text)


async def info_without_values(
    store: Store, id_: str, *, children: bool = True
) -> tuple[TaskInfo, Why, TaskRecord, bool]:
    """Read a task without its large values: its arguments and result are empty, and the record may refer to them.

    Also returns whether its skill is redacted.

    Args:
        store: of the pool.
        id_: the task.
        children: whether the text says why the task that it waits for waits itself.

    Raises:
        NotFound: no such task, or its retention has passed.
    """
    found, record, below = await _find_with_record(store, id_, values=False)
    why = await _with_child(store, explain(found)) if children else explain(found)
    return replace(_info(found, record, below, why.text), args=b"", result=None), why, record, below.redacted


def _info(found: Findings, record: TaskRecord, children: _Children, why: str) -> TaskInfo:
    id_, envelope, state = record.id, record.envelope, found.state
    has_begun = state in {TaskState.ASSIGNED, TaskState.RUNNING, TaskState.CANCELLING}
    runs = has_begun or state is TaskState.SUCCEEDED
    return TaskInfo(
        id=id_,
        state=state,
        why=why,
        skill=envelope.skill,
        agent=record.holder if state.final or has_begun else None,
        worker=found.worker.id if found.worker else None,
        priority=envelope.priority,
        session=envelope.session,
        tags=envelope.tags,
        key=envelope.key,
        parent=envelope.parent,
        lane=record.lane_name,
        fair=envelope.fair,
        budgets=record.budgets,
        after=tuple(id_.removesuffix("+") for id_ in record.predecessors),
        followers=record.followers,
        attempts=found.fails + found.deaths + runs,
        snoozes=record.snoozes,
        submitted_at=record.submitted_at,
        due_at=None if found.due_ms is None else from_instant_ms(found.due_ms),
        ended_at=record.ended_at,
        reason=record.reason,
        last_retry=record.last_retry,
        args=b"null" if not envelope.args or is_reference(envelope.args) else envelope.args,
        result=b"null" if is_reference(record.result) else record.result,
        stored_args=_stored(id_, envelope.args),
        stored_result=_stored(id_, record.result),
        errors=record.errors,
        deaths=tuple(record.numbered("death").values()),
        requeues=tuple(record.numbered("requeue").values()),
        progress=record.progress,
        questions=record.questions,
        once=record.once,
        effects=record.effects,
        children=tuple(children.newest),
        children_dropped=record.children_dropped + children.older,
        root=root_of(id_, envelope),
        depth=envelope.depth,
        restored=record.restored.partition(" ")[2],
        history=record.history(state, found.worker.id if found.worker else None),
        trace_id=trace_id_of(envelope.trace),
    )


def _stored(id_: str, stored: bytes | None) -> StoredValue | None:
    if stored is None or not is_reference(stored):
        return None
    try:
        reference = unpack_reference(stored)
    except ValueError:
        return StoredValue("(unreadable)", 0, "", stored)
    return StoredValue(name_of(id_, reference.part), reference.size, reference.digest.hex(), stored)


class _Children(NamedTuple):
    """The newest children of a task, and the number of older ones in its list; `redacted`: its skill, if asked for."""

    newest: list[str]
    older: int
    redacted: bool = False


async def _find_with_record(store: Store, id_: str, *, values: bool = True) -> tuple[Findings, TaskRecord, _Children]:
    """Read the facts, the record and the children of a task at one moment, unless it changes all the time.

    Without `values`, the record lacks what is stored in fields of its own, and of `ctx.once` it has the names alone.
    """
    key, children_key = store.keys.task(id_), store.keys.children(id_)
    read = read_command(store.keys, id_) if values else ("HKEYS", key)
    reads_left = MAX_READS
    while True:
        reads_left -= 1
        found = await _find(store, id_)
        more = () if values else (("HSTRLEN", key, "result"), ("SISMEMBER", store.keys.redacted, found.skill))
        replies = await store.pipeline(
            [read, ("LRANGE", children_key, -MOST_CHILDREN, -1), ("LLEN", children_key), *more]
        )
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        if values:
            record = TaskRecord.from_reply(id_, (), replies[0])
        else:
            record = await _without_values(store, id_, [read_text(name) for name in replies[0]], replies[3])
        if not record.exists:
            raise _unknown(id_)
        if not reads_left or found.version == tuple(map(record.field, VERSION)):
            newest = [read_text(child) for child in replies[1]]
            return found, record, _Children(newest, max(0, replies[2] - len(newest)), bool(replies[4:] and replies[4]))


async def _without_values(store: Store, id_: str, names: Sequence[str], result_bytes: int) -> TaskRecord:
    """Read the fields of a record that hold no large value."""
    kept = once_field("")
    left_out = {ARGS, *(name for name in names if name.startswith((result_field(""), kept)))}
    if result_bytes > ROW_BYTES:
        left_out.add("result")
    wanted = [name for name in names if name not in left_out]
    record = await read_record(store, id_, *wanted) if wanted else TaskRecord(id_, {})
    fields = {name: b"" for name in names if name.startswith(kept)}
    if "result" in left_out:
        fields["result"] = reference_of("result", result_bytes)
    return record.merged(TaskRecord(id_, fields))


async def _find(store: Store, id_: str) -> Findings:
    found = await store.call(scripts.why(store.keys, id_=id_))
    if found is None:
        raise _unknown(id_)
    return _with_failed_start(found, await failed_starts(store)) if _has_no_slot(found) else found


def _has_no_slot(found: Findings) -> bool:
    return found.state is TaskState.READY and not any(agent.slots for agent in found.agents)


def _with_failed_start(found: Findings, failed: Sequence[FailedStart]) -> Findings:
    """Return the facts of a task with the failure of the lifespan of an agent that could run it."""
    fitting = (one for one in failed if found.addressed in {None, one.agent} and found.skill in one.skills)
    text = next((one.text for one in fitting), "")
    return replace(found, failed_start=text) if text and _has_no_slot(found) else found


def _unknown(id_: str) -> NotFound:
    return NotFound(f"task {id_} does not exist, or its retention has passed")


async def heads(store: Store, queues: Sequence[str]) -> dict[str, tuple[str, TaskStatus]]:
    """Read the first task of each of these queues, and what it waits for.

    `scheduled`, `awaiting_input`, `joining` and `awaiting_tasks` are queues here.
    """
    kept = store.keys
    others = {"scheduled": kept.scheduled, "awaiting_input": kept.asking, "joining": kept.joining}
    others["awaiting_tasks"] = kept.awaiting_tasks
    keys = [others.get(queue) or store.keys.queue(queue) for queue in queues]
    suspect_keys = [store.keys.suspects(queue) for queue in queues]
    both = await store.pipeline([("ZRANGE", key, 0, 0) for key in (*keys, *suspect_keys)])
    firsts, suspects = both[: len(queues)], both[len(queues) :]
    # In a queue without other tasks, the first one waits for another version of its skill.
    scopes = {queue: scope for scope, queue in (await version_scopes(store)).items()}
    empty = {n: scopes[queue] for n, queue in enumerate(queues) if firsts[n] == [] and queue in scopes}
    refused = await store.pipeline([("ZRANGE", store.keys.held(scope), 0, 0) for scope in empty.values()])
    for n, first in zip(empty, refused, strict=True):
        firsts[n] = first
    ids: dict[str, str] = {}
    for queue, *found_in in zip(queues, firsts, suspects, strict=True):
        first = next((found for found in found_in if isinstance(found, list) and found), None)
        if first:
            ids[queue] = read_text(first[0])
    known = await statuses(store, list(ids.values()))
    return {queue: (id_, known[id_]) for queue, id_ in ids.items() if id_ in known}


async def export_task(store: Store, id_: str) -> dict[str, Any] | None:
    """Read everything that is stored of a task, or return None if it is gone or unreadable.

    Arguments and result are `msgspec.Raw`, so that numbers keep their digits.
    """
    try:
        known, record = await info(store, id_), await read_record(store, id_, "env", "queue", "lane")
        envelope = decode_envelope(record.field("env") or b"")
    except (NotFound, DamagedData):
        return None
    exported = asdict(known)
    del exported["why"], exported["worker"]
    for value in (exported["stored_args"], exported["stored_result"]):
        if value is not None:
            del value["packed"]
    exported["args"] = msgspec.Raw(known.args)
    exported["result"] = None if known.result is None else msgspec.Raw(known.result)
    exported["queue"], exported["lane"] = record.queue, record.lane
    exported["timeout_s"], exported["max_attempts"] = envelope.timeout_s, envelope.max_attempts
    return exported
