"""Effects of a task, as `ctx.effect` stores them: whether each was begun, what it returned, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - part of a public value
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound
from orchestrator.core.reading import json_reader, read_readable, read_whole, reads_stored
from orchestrator.tasks.records import effect_field, read_record

if TYPE_CHECKING:
    from orchestrator.store.store import Store
    from orchestrator.tasks.records import TaskRecord

MOST_EFFECTS: Final = 500
"""Effects that a task has at most."""
MOST_DECISIONS: Final = 20
"""Decisions that an effect keeps, the newest."""

EffectState: TypeAlias = Literal["begun", "done", "not done"]
"""`begun`: the function runs, or its outcome is unknown. `not done`: it said itself that nothing has happened."""
Decided: TypeAlias = Literal["done", "not done", "fail", "retry", "invalid"]


class EffectDecision(msgspec.Struct, frozen=True, array_like=True):
    """A decision about an effect with an unknown outcome.

    Attributes:
        what: `done`, `not done`, `fail` (end the task), `retry` (by the policy), `invalid` (an answer that is none).
        by: the person who answered, `check`, or `policy`.
    """

    what: Decided
    by: str


class StoredEffect(msgspec.Struct, frozen=True, omit_defaults=True):
    """An effect as it is stored, behind the ms of its storage.

    Attributes:
        state: what is known.
        digest: of the arguments.
        worker: the worker that began it.
        generation: of the attempt that began it.
        begun_ms: when it was begun; 0: at the ms of its storage.
        asked: number of the question about it; 0: none.
        decisions: the newest, oldest first.
        result: JSON.
    """

    state: EffectState
    digest: str
    worker: str
    generation: str
    begun_ms: int = 0
    asked: int = 0
    decisions: tuple[EffectDecision, ...] = ()
    result: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class TaskEffect:
    """One effect of a task.

    Attributes:
        name: the name given to `ctx.effect`.
        state: `begun`, `done` or `not done`.
        begun_at: when the last call of its function was begun.
        ended_at: when its end was stored; None while it is `begun`.
        worker: the worker that began it.
        question: number of the question about it that waits for an answer or for the next attempt; else None.
        decisions: decisions about unknown outcomes, oldest first, as `not done by ada`.
    """

    name: str
    state: EffectState
    begun_at: datetime
    ended_at: datetime | None
    worker: str
    question: int | None
    decisions: tuple[str, ...]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = json_reader(StoredEffect)


def pack_effect(effect: StoredEffect) -> bytes:
    """Encode an effect without the ms that the script puts before it."""
    return _encode(effect)


@reads_stored
def unpack_effect(stored: bytes) -> StoredEffect:
    """Decode the field of an effect; `begun_ms` is set.

    Raises:
        DamagedData: no worker wrote it.
    """
    ms, _, packed = stored.partition(b" ")
    effect = _decode(packed)
    return effect if effect.begun_ms else msgspec.structs.replace(effect, begun_ms=read_whole(ms))


def describe_step(name: str, before: bytes | None, effect: bytes) -> str:
    """Return a step of an effect in words, as `charge: begun`; nothing of a question, which is an event of its own.

    Args:
        name: of the effect.
        before: what is stored; None: nothing.
        effect: as `pack_effect` returned it.
    """
    new, old = _decode(effect), None if before is None else unpack_effect(before)
    told = f"{name}: {new.state}"
    if new.decisions and (old is None or old.decisions != new.decisions):
        return f"{told}, {_words(new.decisions[-1])}"
    return "" if old is not None and old.state == new.state else told


async def read_effects(store: Store, id_: str) -> tuple[TaskEffect, ...]:
    """Read the effects of a task, in the order of their last begin. Values that no worker wrote are left out.

    Raises:
        NotFound: no such task, or its retention has passed.
        StoreError: Redis does not answer, or refuses.
    """
    record = await read_record(store, id_)
    if not record.exists:
        raise NotFound(f"task {id_} does not exist; its retention may have passed")
    return effects_of(record)


def effects_of(record: TaskRecord) -> tuple[TaskEffect, ...]:
    """Return the effects in a record, as `read_effects` does."""
    stem = effect_field("")
    stored = [(name.removeprefix(stem), value) for name, value in record.fields_of(stem)]
    return tuple(sorted(read_readable(_shown, stored), key=lambda effect: (effect.begun_at, effect.name)))


def _shown(named: tuple[str, bytes]) -> TaskEffect:
    name, stored = named
    effect = unpack_effect(stored)
    return TaskEffect(
        name,
        effect.state,
        from_instant_ms(effect.begun_ms),
        None if effect.state == "begun" else from_instant_ms(read_whole(stored.partition(b" ")[0])),
        effect.worker,
        effect.asked or None,
        tuple(_words(decision) for decision in effect.decisions),
    )


def _words(decision: EffectDecision) -> str:
    return f"{decision.what} by {decision.by}"
