"""Encodes and decodes the questions of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import DamagedData, InvalidInput
from orchestrator.core.payload import decode_json, encode_json
from orchestrator.core.reading import msgpack_reader, read_json, read_text
from orchestrator.tasks.model import Question

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BYTES: Final = 65_536
"""Limit of a question with its options, and of an answer."""
MAX_DEPTH: Final = 64


class StoredQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A question as it is stored.

    Attributes:
        question: text for the person.
        options: JSON; without options, every answer is allowed.
        default: JSON; empty without a default.
        effect: name of the effect that asks; empty for a question of `ctx.ask`.
    """

    question: str
    options: tuple[str, ...] = ()
    default: str = ""
    effect: str = ""


_pack = msgspec.msgpack.Encoder().encode
unpack_question = msgpack_reader(StoredQuestion)


def pack_question(asked: StoredQuestion) -> bytes:
    """Encode a question.

    Raises:
        InvalidInput: it is too large, or not valid Unicode.
    """
    try:
        packed = _pack(asked)
    except UnicodeEncodeError:
        raise InvalidInput("the question contains an unpaired surrogate; use valid Unicode") from None
    if len(packed) > MAX_BYTES:
        raise InvalidInput(f"the question is {len(packed)} bytes long, more than the {MAX_BYTES} allowed")
    return packed


def encode_value(what: str, value: Any) -> str:
    """Encode an answer, an option or a default as JSON.

    Raises:
        InvalidInput: it is not JSON, or too large.
    """
    return encode_json(what, value, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH).decode()


def match_option(value: Any, options: Sequence[str]) -> str:
    """Encode an answer as JSON, in the stored form of the option that it matches.

    Raises:
        InvalidInput: it matches no option, or is not JSON.
    """
    text = encode_value("the answer", value)
    if not options or text in options:
        return text
    # 1.0 matches the option 1, and the order of object members does not matter; true does not match 1.
    for option in options:
        if _same(decode_json(option.encode()), decode_json(text.encode())):
            return option
    raise InvalidInput(f"the answer {text} is none of the options: {', '.join(options)}")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)


def unpack_stored(stored: bytes) -> StoredQuestion:
    """Decode a question from a field `ask:N`.

    Raises:
        InvalidInput: it is damaged.
    """
    try:
        return unpack_question(stored.split(b" ", 2)[2])
    except (IndexError, DamagedData) as unreadable:
        raise InvalidInput(f"the question cannot be read: {unreadable}") from None


def read_question(
    number: int, stored: bytes, answer: bytes | None = None, answered: bytes | None = None
) -> Question | None:
    """Decode a question from the fields `ask:N`, `answer:N` and `answered:N`, or return None if it is corrupt."""
    asked_ms, _, rest = stored.partition(b" ")
    until_ms, _, packed = rest.partition(b" ")
    answered_ms, _, actor = (answered or b"").partition(b" ")
    try:
        asked = unpack_question(packed)
        until = int(until_ms)
        return Question(
            number=number,
            question=asked.question,
            asked_at=from_instant_ms(int(asked_ms)),
            options=tuple(read_json(option.encode()) for option in asked.options),
            until=from_instant_ms(until) if until else None,
            default=read_json(asked.default.encode()) if asked.default else None,
            answered=answer is not None,
            answer=None if answer is None else read_json(answer),
            answered_by=read_text(actor),
            answered_at=from_instant_ms(int(answered_ms)) if answered_ms else None,
            effect=asked.effect,
        )
    except (ValueError, DamagedData):
        return None
