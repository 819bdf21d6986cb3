"""Reads arguments and results: where they are and how large, their beginnings, and whole ones on demand."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from orchestrator.accounts.model import EVERYTHING
from orchestrator.budgets.model import budget_asked_for
from orchestrator.core.errors import NotFound
from orchestrator.core.ids import check_task_id
from orchestrator.payloads.reference import is_reference, unpack_reference
from orchestrator.tasks.effects import effects_of
from orchestrator.tasks.joins import join_of, joined_by
from orchestrator.tasks.values import ARGS, field_of, is_apart, size_of
from orchestrator.why import lookup
from orchestrator.why.model import Cause

if TYPE_CHECKING:
    from orchestrator.accounts.model import AccountScope
    from orchestrator.services import Services
    from orchestrator.tasks.effects import TaskEffect
    from orchestrator.tasks.joins import TaskJoin
    from orchestrator.tasks.model import Question
    from orchestrator.tasks.records import TaskRecord
    from orchestrator.why.model import TaskInfo, Why

Part = Literal["args", "result"]
HEAD_BYTES: Final = 16 * 1024
"""Bytes of the beginning of a value; 4096 characters have at most as many."""
MOST_READ: Final = 1 << 20
"""Size of a value in Redis above which its beginning is not read, because Redis sends all of it."""
_HEADS: Final = 256
"""Beginnings that the process keeps. A value of a task never changes."""
_heads: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Arguments or a result, as the record has them.

    Attributes:
        size: bytes of JSON; 0 if the reference is damaged.
        stored: the value, or the reference to it.
        in_store: it is in the payload store.
    """

    task_id: str
    part: Part
    size: int
    stored: bytes = field(repr=False)
    in_store: bool = False


@dataclass(frozen=True, slots=True)
class TaskDetails:
    """A task without its values.

    Attributes:
        info: without arguments and result.
        why: what it waits for.
        args: None if they were not kept after the success.
        result: None before a success.
        redacted: its skill hides its data.
        effects: what `ctx.effect` has begun, in the order of their last begin.
        budgets: budgets that it spends: those of `info`, and those that its agent names.
        generation: of its current or last attempt.
        join: the join with which it waits.
        joined_by: tasks that join it, or have joined it.
        takes_results: its arguments have null in place of results of other tasks of its flow.
    """

    info: TaskInfo
    why: Why
    args: StoredPart | None
    result: StoredPart | None
    redacted: bool
    effects: tuple[TaskEffect, ...]
    budgets: tuple[str, ...] = ()
    generation: int = 0
    join: TaskJoin | None = None
    joined_by: tuple[str, ...] = ()
    takes_results: bool = False


async def read_details(services: Services, id_: str, scope: AccountScope = EVERYTHING) -> TaskDetails:
    """Read a task without its values, as a user of a scope sees it.

    A narrowed user reads of other tasks only their ids, and of budgets, which belong to the whole pool, only the names.

    Raises:
        InvalidInput: not the form of a task id.
        NotFound: no such task, or its retention has passed.
    """
    everything = not scope.narrowed
    info, why, record, redacted = await lookup.info_without_values(
        services.store, check_task_id(id_), children=everything
    )
    if not everything:
        info, why = _without_budgets(info, why)
    args, result = _parts(info, record)
    return TaskDetails(
        info,
        why,
        args,
        result,
        redacted,
        effects_of(record),
        budgets=record.spends,
        generation=record.generation,
        join=join_of(record),
        joined_by=joined_by(record),
        takes_results=bool(record.envelope.results),
    )


def _without_budgets(info: TaskInfo, why: Why) -> tuple[TaskInfo, Why]:
    """Return a task without the amounts of its budgets."""
    questions = tuple(_without_amounts(one) for one in info.questions)
    if why.cause is Cause.BUDGET:
        why = replace(why, text=f"waits for room in budget {why.budget!r}")
    elif why.cause is Cause.AWAITING_INPUT and questions != info.questions:
        asked = next((one.question for one in questions if one.number == why.number), why.question)
        why = replace(why, text=f"asks {asked!r}", question=asked)
    return replace(info, why=why.text, questions=questions), why


def _without_amounts(question: Question) -> Question:
    budget = budget_asked_for(question.effect)
    if budget is None:
        return question
    return replace(question, question=f"may the task have more of budget {budget!r}?", answer=None)


def _parts(info: TaskInfo, record: TaskRecord) -> tuple[StoredPart | None, StoredPart | None]:
    args = record.envelope.args
    return (
        _part(info.id, "args", args) if args else None,
        None if record.result is None else _part(info.id, "result", record.result),
    )


def _part(id_: str, part: Part, stored: bytes) -> StoredPart:
    if is_reference(stored):
        try:
            return StoredPart(id_, part, unpack_reference(stored).size, stored, in_store=True)
        except ValueError:
            return StoredPart(id_, part, 0, stored, in_store=True)
    return StoredPart(id_, part, size_of(stored) if is_apart(stored) else len(stored), stored)


async def read_head(services: Services, value: StoredPart) -> bytes | None:
    """Return at most `HEAD_BYTES` of a value; None if Redis would have to send more than `MOST_READ`.

    Raises:
        PayloadError: the payload store does not have the value, or does not answer.
        NotFound: the task is gone.
    """
    if not (value.in_store or is_apart(value.stored)):
        return value.stored[:HEAD_BYTES]
    key = (services.keys.task(value.task_id), value.stored)
    head = _heads.get(key)
    if head is None:
        if value.in_store:
            head = await services.payloads.load_head(value.task_id, value.stored, max_bytes=HEAD_BYTES)
        elif value.size > MOST_READ:
            return None
        else:
            head = (await _load_field(services, value))[:HEAD_BYTES]
        _heads[key] = head
        while len(_heads) > _HEADS:
            _heads.popitem(last=False)
    _heads.move_to_end(key)
    return head


async def load_whole(services: Services, value: StoredPart) -> bytes:
    """Return a whole value, checked. Raises as `read_head`."""
    if is_apart(value.stored):
        return await _load_field(services, value)
    return await services.payloads.load(value.task_id, value.stored)


async def _load_field(services: Services, value: StoredPart) -> bytes:
    name = ARGS if value.part == "args" else field_of(value.stored)
    data: bytes | None = await services.store.execute("HGET", services.keys.task(value.task_id), name)
    if data is None:
        raise NotFound(
            f"the {value.part} of task {value.task_id} are gone, because it has changed; load the page again"
        )
    return data
