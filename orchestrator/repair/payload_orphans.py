"""Finds objects of the payload store that no task needs: their task is gone, or another attempt ended it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import DamagedData, StoreError
from orchestrator.payloads.reference import ARGS, RESULT, is_reference, parse_name
from orchestrator.tasks.model import TaskState, decode_envelope
from orchestrator.tasks.records import TaskRecord, read_each

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.payloads.store import PayloadStore, StoredObject
    from orchestrator.store.store import Store

YOUNG_S: Final = 2 * 3600.0
"""Age below which an object is no orphan. Its task may not have arrived yet: a submit takes at most an hour
(`queue.durable_within_s`), and clocks may differ."""


async def find_orphans(
    payloads: PayloadStore, store: Store, *, young_s: float = YOUNG_S
) -> AsyncIterator[tuple[int, Sequence[StoredObject]]]:
    """Walk the payload store; give the number of objects and the orphans of each step. A step reads up to 500 tasks.

    Raises:
        PayloadStoreUnavailable, StoreError: the payload store or Redis does not answer.
    """
    async for found in payloads.sweep():
        old = [one for one in found if time.time() - one.modified_s > young_s]
        yield len(found), await _orphans(old, store)


async def _orphans(found: Sequence[StoredObject], store: Store) -> list[StoredObject]:
    named = [(one, name) for one in found if (name := parse_name(one.name)) is not None]
    ids = list(dict.fromkeys(name.task_id for _, name in named))
    tasks = await read_each(store, ids, "state", "gen") if ids else {}
    done = {name.task_id for _, name in named if name.part == ARGS and _has_succeeded(tasks[name.task_id])}
    # A success may have dropped the arguments from its record. Only envelopes of tasks with an object are read.
    records = await read_each(store, done, "env") if done else {}
    dropped = {id_ for id_, record in records.items() if isinstance(record, TaskRecord) and not _refers(record)}
    return [
        one
        for one, name in named
        if _is_orphan(tasks[name.task_id], name.part) or (name.part == ARGS and name.task_id in dropped)
    ]


def _has_succeeded(task: TaskRecord | StoreError) -> bool:
    return isinstance(task, TaskRecord) and task.field("state") == TaskState.SUCCEEDED.value.encode()


def _refers(task: TaskRecord) -> bool:
    stored = task.field("env")
    try:
        return stored is not None and is_reference(decode_envelope(stored).args)
    except DamagedData:
        return True  # unknown


def _is_orphan(task: TaskRecord | StoreError, part: str | None) -> bool:
    if part is None:
        return True  # the rest of a write whose process ended
    if isinstance(task, StoreError):
        return False  # it exists, and cannot be read
    if not task.exists:
        return True
    if not (task.field("gen") or b"").isdigit():
        return False  # unknown
    # An attempt writes its result under its own generation, and only the last one is in the record.
    return part != ARGS and part.removeprefix(RESULT) != str(task.generation)
