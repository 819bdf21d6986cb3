"""Compares two states of a workspace, or two values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from orchestrator.core.reading import MISREAD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from orchestrator.workspace.model import Snapshot

MOST_LINES: Final = 400
"""Lines of each of two values that are compared; the time rises with their product."""
MOST_CHARS: Final = 32_000
_INDENT: Final = "  "
_MOST_DEPTH: Final = 40


@dataclass(frozen=True, slots=True)
class NameDifference:
    """A name that two states hold differently.

    Attributes:
        kind: path, log, set or state.
        name: of it.
        how: `added`, `removed`, or `changed`.
        before: what the earlier state holds; None if `added`.
        after: what the later state holds; None if `removed`.
    """

    kind: Literal["path", "log", "set", "state"]
    name: str
    how: Literal["added", "removed", "changed"]
    before: Any
    after: Any


class DiffLine(NamedTuple):
    """A line of a difference: `+`, `-`, a blank for one that both have, or `@` between two places."""

    sign: Literal["+", "-", " ", "@"]
    text: str


def difference(before: Snapshot, after: Snapshot) -> list[NameDifference]:
    """Return the names that two states hold differently, by kind and name."""
    return [
        *_between("path", before.paths, after.paths),
        *_between("log", before.logs, after.logs),
        *_between("set", before.sets, after.sets),
        *_between("state", before.states, after.states),
    ]


def _between(
    kind: Literal["path", "log", "set", "state"], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[NameDifference]:
    for name in sorted(before.keys() | after.keys()):
        was, is_ = before.get(name), after.get(name)
        if was is is_ or _same(was, is_):
            continue
        how: Literal["added", "removed", "changed"] = (
            "added" if was is None else "removed" if is_ is None else "changed"
        )
        yield NameDifference(kind, name, how, was, is_)


def diff_lines(before: Any, after: Any) -> list[DiffLine] | None:
    """Return the lines in which two values differ, with two lines around each place.

    Text is compared by its lines, another value by the lines of its JSON form. None if they are too long for it.
    """
    was, is_ = lines_of(before), lines_of(after)
    if was is None or is_ is None or len(was) > MOST_LINES or len(is_) > MOST_LINES:
        return None
    found: list[DiffLine] = []
    for line in list(unified_diff(was, is_, lineterm="", n=2))[2:]:
        match line[:1]:
            case "+":
                found.append(DiffLine("+", line[1:]))
            case "-":
                found.append(DiffLine("-", line[1:]))
            case "@":
                found.append(DiffLine("@", line.strip("@ ")))
            case _:
                found.append(DiffLine(" ", line[1:]))
    return found


def lines_of(value: Any) -> list[str] | None:
    """Return a value as lines: of text its own, else its JSON form. None if it is too long."""
    if isinstance(value, str):
        return value.splitlines() if len(value) <= MOST_CHARS else None
    lines: list[str] = []
    left = MOST_CHARS
    for line in _lines(value, "", "", "", 0):
        left -= len(line) + 1
        if left < 0:
            return None
        lines.append(line)
    return lines


def _lines(value: Any, indent: str, head: str, tail: str, depth: int) -> Iterator[str]:
    """Yield the indented JSON form of a value; what lies deeper than 40 levels is on one line."""
    inner = indent + _INDENT
    if isinstance(value, dict) and value and depth < _MOST_DEPTH:
        yield f"{indent}{head}{{"
        last = len(value) - 1
        for n, name in enumerate(sorted(value)):
            yield from _lines(value[name], inner, f"{_json(name)}: ", "," if n < last else "", depth + 1)
        yield f"{indent}}}{tail}"
    elif isinstance(value, list) and value and depth < _MOST_DEPTH:
        yield f"{indent}{head}["
        last = len(value) - 1
        for n, each in enumerate(value):
            yield from _lines(each, inner, "", "," if n < last else "", depth + 1)
        yield f"{indent}]{tail}"
    else:
        yield f"{indent}{head}{_json(value)}{tail}"


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except MISREAD:
        return "(nested too deeply to show)"


def _same(before: Any, after: Any) -> bool:
    try:
        return bool(before == after)
    except RecursionError:
        return False
