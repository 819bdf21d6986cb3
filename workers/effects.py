"""Implements `ctx.effect`: calls a function at most once per task, unless a decision about its outcome is recorded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, get_args

import anyio
import msgspec

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import EffectChanged, EffectUnknown, InvalidInput
from orchestrator.core.log import get_logger
from orchestrator.core.payload import encode_json
from orchestrator.core.reading import read_json
from orchestrator.tasks.effects import MOST_DECISIONS, EffectDecision, StoredEffect, pack_effect, unpack_effect
from orchestrator.workers.once import RESULT_BYTES, RESULT_DEPTH, call_plain, check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.tasks.effects import Decided
    from orchestrator.tasks.model import Question
    from orchestrator.workers.asking import Asking

Unknown: TypeAlias = Literal["ask", "retry", "fail"]
"""Policy for an effect that was begun and has no outcome: ask a person, call it again, or fail."""
ARGUMENT_BYTES: Final = 1_048_576
_DIGEST_BYTES: Final = 16
_log = get_logger("agent")


@dataclass(frozen=True, slots=True)
class EffectDone:
    """Result of the `check` of an effect that has happened.

    Args:
        result: what `ctx.effect` returns: a JSON value or a pydantic model.
    """

    result: Any = None


class EffectNotDone(Exception):
    """Raised by the function of an effect, or by its `check`: the effect has not happened, and may be begun again."""


class EffectRecord(Protocol):
    """Stores the effects of one task. Its methods raise `Fenced` once the task was taken away from this attempt."""

    @property
    def begins_as(self) -> tuple[str, str, str]:
        """Id of the task, worker and generation of the attempt."""

    async def load_effect(self, name: str) -> bytes | None:
        """Return the stored effect, or None."""

    async def store_effect(self, name: str, before: bytes | None, effect: bytes) -> bytes | None:
        """Store an effect unless another one than `before` is stored; return the stored value, or None if it is.

        Raises:
            InvalidInput: the task has too many effects.
        """

    async def load_question(self, number: int) -> Question | None:
        """Return a question with its answer, or None."""

    async def count_questions(self) -> int:
        """Return the number of the latest question."""


class EffectCalls:
    """The `effect` calls of one attempt."""

    __slots__ = ("_asking", "_locks", "_record")

    def __init__(self, record: EffectRecord, asking: Asking) -> None:
        self._record, self._asking = record, asking
        self._locks: dict[str, anyio.Lock] = {}

    async def run(
        self, name: str, do: Callable[..., Any], args: tuple[Any, ...], *, unknown: Unknown, check: Any
    ) -> Any:
        """Call `do` unless its outcome is known or must be decided; see `TaskContext.effect`."""
        check_name(name, "effect")
        if unknown not in get_args(Unknown):
            raise InvalidInput(f"unknown= of effect {name!r} must be one of {', '.join(get_args(Unknown))}")
        task, worker, generation = self._record.begins_as
        begin = StoredEffect("begun", _digest(task, name, args), worker, generation)
        call = _EffectCall(name, partial(do, *args), None if check is None else partial(check, *args), unknown, begin)
        async with self._locks.setdefault(name, anyio.Lock()):
            while True:
                # Another value than the one that was read can only come from this attempt's own call, repeated.
                found = await self._record.load_effect(name)
                if (result := await self._step(call, found)) is not None:
                    return read_json(result)

    async def _step(self, call: _EffectCall, stored: bytes | None) -> bytes | None:
        """Take the next step; return the result as JSON, or None if the stored effect must be read again."""
        if stored is None:
            return await self._begin(call, None, ())
        effect = unpack_effect(stored)
        if effect.digest != call.begin.digest:
            raise EffectChanged(call.name)
        if effect.state == "done":
            return bytes(effect.result)
        if effect.state == "not done":
            return await self._begin(call, stored, effect.decisions)
        return await self._decide(call, stored, effect)

    async def _begin(
        self, call: _EffectCall, before: bytes | None, decisions: tuple[EffectDecision, ...]
    ) -> bytes | None:
        begin = msgspec.structs.replace(call.begin, decisions=decisions)
        begun = await self._record.store_effect(call.name, before, pack_effect(begin))
        if begun is None:
            return None
        effect = unpack_effect(begun)
        try:
            value = await call_plain(call.do)
        except EffectNotDone:
            with anyio.CancelScope(shield=True):
                await self._store(call, begun, effect, state="not done")
            raise
        result = _encode_result(call.name, value)
        # A cancellation must not lose the result of an effect that has happened.
        with anyio.CancelScope(shield=True):
            await self._store(call, begun, effect, state="done", result=msgspec.Raw(result))
        return result

    async def _decide(self, call: _EffectCall, stored: bytes, effect: StoredEffect) -> bytes | None:
        """Decide about an effect that was begun and has no outcome."""
        if call.check is not None:
            try:
                known = await call_plain(call.check)
            except EffectNotDone:
                return await self._again(call, stored, effect, EffectDecision("not done", "check"))
            if isinstance(known, EffectDone):
                return await self._done(call, stored, effect, known.result, by="check")
            if known is not None:
                raise InvalidInput(
                    f"the check of effect {call.name!r} returned {type(known).__name__}; it must return "
                    "EffectDone(result), or None if it cannot tell, or raise EffectNotDone"
                )
        match call.unknown:
            case "retry":
                return await self._again(call, stored, effect, EffectDecision("retry", "policy"))
            case "fail":
                self._tell(call, "fail", "policy")
                raise EffectUnknown(call.name, effect.worker, from_instant_ms(effect.begun_ms))
            case "ask":
                return await self._ask(call, stored, effect)

    async def _ask(self, call: _EffectCall, stored: bytes, effect: StoredEffect) -> bytes | None:
        self._asking.check_not_asked()
        asked = await self._record.load_question(effect.asked) if effect.asked else None
        if asked is None or asked.effect != call.name:
            # No question about this effect was stored: the worker died before, or another question ended the attempt.
            number = await self._record.count_questions() + 1
            if await self._store(call, stored, effect, asked=number) is None:
                return None
            self._tell(call, "ask", "policy")
            self._asking.ask_about(call.name, number, _question(call.name, effect))
        if not asked.answered:
            self._asking.ask_about(call.name, asked.number, asked.question)
        what, result = _read_answer(asked.answer)
        by = asked.answered_by
        match what:
            case "done":
                return await self._done(call, stored, effect, result, by=by)
            case "not done":
                return await self._again(call, stored, effect, EffectDecision("not done", by))
        # The next attempt asks anew.
        await self._store(call, stored, effect, asked=0, decisions=_with(effect, EffectDecision(what, by)))
        self._tell(call, what, by)
        if what == "fail":
            raise EffectUnknown(call.name, effect.worker, from_instant_ms(effect.begun_ms), decided_by=by)
        return None

    async def _again(self, call: _EffectCall, stored: bytes, effect: StoredEffect, why: EffectDecision) -> bytes | None:
        self._tell(call, why.what, why.by)
        return await self._begin(call, stored, _with(effect, why))

    async def _done(
        self, call: _EffectCall, stored: bytes, effect: StoredEffect, value: Any, *, by: str
    ) -> bytes | None:
        result = _encode_result(call.name, value)
        decisions = _with(effect, EffectDecision("done", by))
        self._tell(call, "done", by)
        kept = await self._store(
            call, stored, effect, state="done", asked=0, decisions=decisions, result=msgspec.Raw(result)
        )
        return None if kept is None else result

    async def _store(self, call: _EffectCall, before: bytes, effect: StoredEffect, **changes: Any) -> bytes | None:
        changed = pack_effect(msgspec.structs.replace(effect, **changes))
        return await self._record.store_effect(call.name, before, changed)

    def _tell(self, call: _EffectCall, decision: str, by: str) -> None:
        task, _, _ = self._record.begins_as
        _log.warning("effect_outcome_unknown", task=task, effect=call.name, decision=decision, decided_by=by)


@dataclass(frozen=True, slots=True)
class _EffectCall:
    name: str
    do: Callable[[], Any]
    check: Callable[[], Any] | None
    unknown: Unknown
    begin: StoredEffect


def _digest(task: str, name: str, args: tuple[Any, ...]) -> str:
    plain = [arg.model_dump(mode="json") if hasattr(arg, "model_dump") else arg for arg in args]
    data = encode_json(f"arguments of effect {name!r}", plain, max_bytes=ARGUMENT_BYTES, max_depth=RESULT_DEPTH)
    ordered = msgspec.json.encode(read_json(data), order="sorted")
    # Keyed, so that equal arguments of two tasks have different digests.
    return hashlib.blake2b(ordered, digest_size=_DIGEST_BYTES, key=task.encode()[:64]).hexdigest()


def _encode_result(name: str, value: Any) -> bytes:
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    return encode_json(f"result of effect {name!r}", value, max_bytes=RESULT_BYTES, max_depth=RESULT_DEPTH)


def _with(effect: StoredEffect, decision: EffectDecision) -> tuple[EffectDecision, ...]:
    return (*effect.decisions, decision)[-MOST_DECISIONS:]


def _question(name: str, effect: StoredEffect) -> str:
    at = from_instant_ms(effect.begun_ms).isoformat(timespec="seconds")
    return (
        f"{name} was begun by worker {effect.worker} at {at} and its outcome is unknown. Find out, then answer "
        'with {"done": RESULT} if it was done (the task goes on with RESULT), "not done" to let it be begun again, '
        'or "fail" to end the task.'
    )


def _read_answer(answer: Any) -> tuple[Decided, Any]:
    """Return the decision in an answer, and the result of an effect that was done."""
    match answer:
        case "done":
            return "done", None
        case {"done": result} if len(answer) == 1:
            return "done", result
        case "not done":
            return "not done", None
        case "fail":
            return "fail", None
    return "invalid", None
