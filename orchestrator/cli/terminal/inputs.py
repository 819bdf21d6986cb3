"""Parses typed values: JSON bodies, `name=value`, durations, times, priorities. Raises `InvalidInput`."""

from __future__ import annotations

import re
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from orchestrator.core.bounded_files import BODY_BYTES, read_bounded
from orchestrator.core.errors import InvalidInput
from orchestrator.core.strict_json import TwinNames, load_strict

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PIECE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_PAIR: Final = re.compile(r"[A-Za-z_]\w*=")
STDIN: Final = "@-"


def arguments(body: str | None, pairs: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments of a task.

    Args:
        body: a JSON object, `@file`, or `@-` for standard input.
        pairs: `name=value`; a value is JSON when it parses, otherwise text. They override the body.
    """
    given = {} if body is None else _object(body)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f"-a {pair!r} is not name=value; write for example -a words=3")
        given[name] = json_or_text(value)
    return given


def value(text: str) -> Any:
    """Parse one value: JSON when it parses, otherwise text; `@file` and `@-` read it from a file or standard input."""
    return json_or_text(_body_text(text)[1]) if text.startswith("@") else json_or_text(text)


def text(given: str) -> str:
    """Return a text as it is; `@-` reads it from standard input."""
    return _body_text(given)[1] if given == STDIN else given


def body(given: str) -> str:
    """Return the text of `@file`, or of standard input for `@-`; another text as it is."""
    return _body_text(given)[1]


def check_limit(limit: int, most: int = 1_000_000) -> None:
    """Refuse a --limit that is not between 1 and `most`."""
    if not 1 <= limit <= most:
        raise InvalidInput(f"--limit {limit} is not between 1 and {most}")


def duration_s(name: str, text: str | None) -> float | None:
    """Parse `90s`, `5m`, `2h`, `1h30m`, `500ms` or a plain number of seconds."""
    if text is None:
        return None
    plain = text.strip()
    if _NUMBER.fullmatch(plain):
        return float(plain)
    pieces = _PIECE.findall(plain)
    if not pieces or "".join(_PIECE.split(plain)[0::3]).strip():
        raise InvalidInput(f"{name} {text!r} is not a duration; write 90s, 5m, 2h, 1h30m or seconds")
    return sum(float(count) * _UNITS_S[unit] for count, unit in pieces)


def moment(name: str, text: str | None) -> datetime | None:
    """Parse a time with its zone: `2030-01-31T12:00:00Z`."""
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name} {text!r} is not a time; write 2030-01-31T12:00:00Z or …+02:00") from None
    if read.tzinfo is None:
        raise InvalidInput(f"{name} {text!r} has no time zone; append Z for UTC or an offset such as +02:00")
    return read


def day(name: str, text: str | None) -> date | None:
    """Parse a day: `2030-01-31`."""
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name} {text!r} is not a day; write 2030-01-31") from None


def moment_or_ago(name: str, text: str | None) -> datetime | None:
    """Parse a time with its zone, or a duration back from now: `1h`."""
    if text is None:
        return None
    try:
        ago_s = duration_s(name, text)
    except InvalidInput:
        return moment(name, text)
    return None if ago_s is None else datetime.now(UTC) - timedelta(seconds=ago_s)


def priority(text: str) -> str | int:
    """Parse a level by name or number; the client checks its range."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else text


def _object(body: str) -> dict[str, Any]:
    where, text = _body_text(body)
    try:
        value = load_strict(text)
    except (ValueError, RecursionError) as wrong:
        if _PAIR.match(body):
            raise InvalidInput(
                f"{body[:100]!r} is no JSON object; write `-a {body[:100]}` for a single argument"
            ) from None
        reason = "nested too deep" if isinstance(wrong, RecursionError) else str(wrong)
        raise InvalidInput(f"{where} is not valid JSON ({reason}); write for example '{{\"words\": 3}}'") from None
    if not isinstance(value, dict):
        raise InvalidInput(
            f"{where} is {_kind(value)}, but arguments are a JSON object; write for example '{{\"words\": 3}}'"
        )
    return value


def _body_text(body: str) -> tuple[str, str]:
    if not body.startswith("@"):
        return "the body", body
    where = "standard input" if body == STDIN else body[1:]
    try:
        data = read_bounded(_stdin() if body == STDIN else Path(where).expanduser(), BODY_BYTES)
    except OSError as failed:
        raise InvalidInput(f"cannot read {where or '@'}: {failed.strerror}") from None
    except ValueError:
        raise InvalidInput(f"{where!r} is not a file name") from None
    try:
        return where, data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{where} is not UTF-8 text") from None


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise InvalidInput("standard input is closed; give the body as text or as @file")
    return sys.stdin.buffer


def json_or_text(value: str) -> Any:
    """Parse a value: JSON when it parses, otherwise text.

    Raises:
        InvalidInput: it is JSON with a name that occurs twice in an object.
    """
    try:
        return load_strict(value)
    except TwinNames as twins:
        raise InvalidInput(f"the value is not valid JSON: {twins}") from None
    except (ValueError, RecursionError):
        return value


def _kind(value: object) -> str:
    kinds = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
