"""Reads one task: its state, its record, and what it waits for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound, StoreError
from orchestrator.tasks.model import TaskState, decode_envelope
from orchestrator.tasks.output import read_progress
from orchestrator.tasks.questions import read_questions
from orchestrator.tasks.records import lane_name, numbered, readable_envelope, record_fields, text
from orchestrator.why import scripts
from orchestrator.why.explanation import explain
from orchestrator.why.facts import VERSION
from orchestrator.why.model import TaskInfo, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.store.store import Store
    from orchestrator.tasks.model import Progress
    from orchestrator.why.facts import Findings


LOOKS: Final = 3
"""A task that changes between two reads is read again, so often at most."""


async def status(store: Store, id_: str) -> TaskStatus:
    """The state of one task and what it waits for, in one round trip.

    Raises:
        NotFound: no such task, or its retention has passed.
    """
    found = await _find(store, id_)
    why = explain(found)
    return TaskStatus(found.state, why.text, why, _progress(found.progress, found.generation))


async def info(store: Store, id_: str) -> TaskInfo:
    """Everything about one task.

    Raises:
        NotFound: no such task, or its retention has passed.
    """
    found, record = await _find_with_record(store, id_)
    envelope, state = readable_envelope(record["env"]), found.state
    has_begun = state in {TaskState.ASSIGNED, TaskState.RUNNING, TaskState.CANCELLING}
    runs = has_begun or state is TaskState.SUCCEEDED
    has_agent = "at" in record and (state.final or has_begun)
    return TaskInfo(
        id=id_,
        state=state,
        why=explain(found).text,
        skill=envelope.skill,
        agent=record["at"].decode().split(" ")[0] if has_agent else None,
        worker=found.worker.id if found.worker else None,
        priority=envelope.priority,
        session=envelope.session,
        tags=envelope.tags,
        key=envelope.key,
        parent=envelope.parent,
        lane=lane_name(record["lane"]) if "lane" in record else None,
        attempts=found.fails + found.deaths + runs,
        submitted_at=_submitted_at(id_),
        due_at=None if found.due_ms is None else from_instant_ms(found.due_ms),
        ended_at=None if found.ended_ms is None else from_instant_ms(found.ended_ms),
        reason=text(record.get("reason")),
        args=envelope.args,
        result=record.get("result"),
        errors=numbered(record, "error:"),
        deaths=numbered(record, "death:"),
        requeues=numbered(record, "requeue:"),
        progress=_progress(record.get("progress"), int(record["gen"])),
        questions=read_questions(record),
        once=tuple(name.removeprefix("once:") for name in record if name.startswith("once:")),
    )


async def _find_with_record(store: Store, id_: str) -> tuple[Findings, dict[str, bytes]]:
    """What is found of a task and its record, of one moment unless it changes all the time."""
    looks_left = LOOKS
    while True:
        looks_left -= 1
        found = await _find(store, id_)
        record = record_fields(await store.execute("HGETALL", store.keys.task(id_)))
        if "state" not in record:
            raise _unknown(id_)
        if not looks_left or found.version == tuple(record.get(name) for name in VERSION):
            return found, record


async def _find(store: Store, id_: str) -> Findings:
    found = await store.call(scripts.why(store.keys, id_=id_))
    if found is None:
        raise _unknown(id_)
    return found


def _unknown(id_: str) -> NotFound:
    return NotFound(f"task {id_} does not exist, or its retention has passed")


def _progress(stored: bytes | None, generation: int) -> Progress | None:
    """What the attempt of this generation reported last; what an earlier one did is no progress any more."""
    made, _, data = (stored or b"0").partition(b" ")
    return read_progress(data) if int(made) == generation else None


def _submitted_at(id_: str) -> datetime:
    return from_instant_ms(int(id_.replace("-", "")[:12], 16))


async def heads(store: Store, queues: Sequence[str]) -> dict[str, tuple[str, TaskStatus]]:
    """The first task of each of these queues (`scheduled` and `awaiting_input` are two), and what it waits for."""
    others = {"scheduled": store.keys.scheduled, "awaiting_input": store.keys.asking}
    keys = [others.get(queue) or store.keys.queue(queue) for queue in queues]
    firsts = await store.pipeline([("ZRANGE", key, 0, 0) for key in keys])
    found: dict[str, tuple[str, TaskStatus]] = {}

    async def look(queue: str, id_: str) -> None:
        with suppress(NotFound):  # it was dropped at this moment
            found[queue] = id_, await status(store, id_)

    async with anyio.create_task_group() as looks:
        for queue, first in zip(queues, firsts, strict=True):
            if isinstance(first, list) and first:
                looks.start_soon(look, queue, first[0].decode())
    return found


async def export_task(store: Store, id_: str) -> dict[str, Any] | None:
    """Everything that is stored of a task; None: it is gone, or cannot be read.

    Arguments and result keep their digits: they are `msgspec.Raw`.
    """
    try:
        known = await info(store, id_)
        packed, queue, lane = await store.execute("HMGET", store.keys.task(id_), "env", "queue", "lane")
        envelope = decode_envelope(packed)
    except (NotFound, StoreError, msgspec.DecodeError, TypeError) as failure:
        if isinstance(failure, StoreError):
            raise
        return None
    record = asdict(known)
    del record["why"], record["worker"]
    record["args"] = msgspec.Raw(known.args)
    record["result"] = None if known.result is None else msgspec.Raw(known.result)
    record["queue"] = queue.decode() if queue else f"skill:{known.skill}"
    record["lane"] = None if lane is None else lane.decode()
    record["timeout_s"], record["max_attempts"] = envelope.timeout_s, envelope.max_attempts
    return record
