"""Reads values that Redis returns. Other modules decode no text, numbers or words of stored data themselves.

Operators, older programs and users who may only submit write to a pool too, so that a value may be anything. A damaged
value must end no process and hide no other value. Functions for text and numbers therefore return something for every
value. The others raise `DamagedData`, which all loops survive, as they survive an outage.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from orchestrator.core.errors import DamagedData, InvalidInput, OrchestratorError, StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.payload import decode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_T = TypeVar("_T")
_S = TypeVar("_S")
_WordT = TypeVar("_WordT", bound=Enum)
_Stored = bytes | str | int | float | None
_Packed = bytes | memoryview

MISREAD: Final = (
    ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, msgspec.MsgspecError,
)  # fmt: skip
"""Exceptions of code that reads data which no program of the project writes."""
_MOST_DIGITS: Final = 400
"""Longer texts are no numbers; Python would take long to read them."""
_MOST: Final = 1 << 63
_SHOWN: Final = 80
_log = get_logger(__name__)


def read_text(stored: bytes | None) -> str:
    r"""Return text; bytes that are not UTF-8 are shown as `\xff`, and a missing value is empty."""
    return "" if stored is None else stored.decode("utf-8", "backslashreplace")


def read_whole(stored: _Stored, default: int = 0) -> int:
    """Return a whole number of at most 64 bits, as counters and scores have; `default` for anything else."""
    try:
        number = int(stored) if isinstance(stored, int) else int(stored[:_MOST_DIGITS])  # type: ignore[index]
    except (ValueError, TypeError):
        score = read_score(stored, math.inf)
        if math.isinf(score):
            return default
        number = int(score)
    return number if -_MOST <= number < _MOST else default


def read_score(stored: _Stored, default: float = 0.0) -> float:
    """Return a number; `default` for infinities, NaN and anything else."""
    try:
        number = float(stored[:_MOST_DIGITS]) if isinstance(stored, bytes | str) else float(stored)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return default
    return number if math.isfinite(number) else default


def read_word(words: type[_WordT], stored: bytes | str | None) -> _WordT:
    """Return the member of an enumeration.

    Raises:
        DamagedData: there is none of this value.
    """
    text = stored if isinstance(stored, str) else read_text(stored)
    try:
        return words(text)
    except ValueError:
        raise DamagedData(f"Redis holds {text[:_SHOWN]!r}, which is no {words.__name__}") from None


def read_json(stored: bytes) -> Any:
    """Return a JSON value.

    Raises:
        UnreadableValue: it is no JSON, or nested too deep.
    """
    return decode_json(stored)


def json_reader(kind: type[_T]) -> Callable[[_Packed], _T]:
    """Return a function that reads JSON of one type, and raises `DamagedData` for anything else."""
    decode = msgspec.json.Decoder(kind).decode
    return lambda stored: _read(decode, stored)


def msgpack_reader(kind: type[_T]) -> Callable[[_Packed], _T]:
    """Return a function that reads MessagePack of one type, and raises `DamagedData` for anything else."""
    decode = msgspec.msgpack.Decoder(kind).decode
    return lambda stored: _read(decode, stored)


def read_as(what: str, read: Callable[[Any], _T], stored: Any) -> _T:
    """Return what a function reads from a stored value or a reply.

    Raises:
        DamagedData: the value has another form.
        OrchestratorError: the function refuses it.
    """
    try:
        return read(stored)
    except InvalidInput as wrong:
        raise _damaged(what, wrong) from wrong
    except OrchestratorError:
        raise
    except MISREAD as wrong:
        raise _damaged(what, wrong) from wrong


def reads_stored(read: Callable[[_S], _T]) -> Callable[[_S], _T]:
    """Let a function of one stored value raise `DamagedData` when the value has another form."""
    return wraps(read)(lambda stored: read_as(read.__name__.strip("_"), read, stored))


def readable(reply: _T | StoreError, instead: _T) -> _T:
    """Return one of several replies, or `instead` for a key of another type; raises other errors."""
    if isinstance(reply, DamagedData):
        return instead
    if isinstance(reply, StoreError):
        raise reply
    return reply


def read_readable(read: Callable[[_S], _T], stored: Iterable[_S]) -> list[_T]:
    """Return what a function reads from each of several values, without damaged ones, which the log counts."""
    found: list[_T] = []
    damaged: list[DamagedData] = []
    for each in stored:
        try:
            found.append(read_as(read.__name__.strip("_"), read, each))
        except DamagedData as wrong:
            damaged.append(wrong)
    if damaged:
        _log.warning("stored_data_damaged", count=len(damaged), error=str(damaged[0]))
    return found


def _read(decode: Callable[[_Packed], _T], stored: _Packed) -> _T:
    try:
        return decode(stored)
    except MISREAD as wrong:
        raise _damaged("a value", wrong) from None


def _damaged(what: str, wrong: Exception) -> DamagedData:
    # Without the value, which may be secret.
    return DamagedData(
        f"Redis holds damaged data ({what}: {type(wrong).__name__}: {wrong!s:.200}); see `orc keys check`"
    )
