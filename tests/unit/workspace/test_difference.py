"""Differences of two states, and of two values line by line."""

from __future__ import annotations

import time

from orchestrator.workspace.difference import MOST_LINES, diff_lines, difference, lines_of
from orchestrator.workspace.model import Snapshot, StateEntry, Versioned


def _snapshot(**paths: object) -> Snapshot:
    return Snapshot(1, {name: Versioned(value, 1, "ada") for name, value in paths.items()}, {}, {}, {}, "1-0")


def test_names() -> None:
    """Names that only one state has are added or removed, others changed; equal ones are left out."""
    found = difference(_snapshot(a=1, b=[1], c="x"), _snapshot(a=1, b=[2], d=None))
    assert [(one.kind, one.name, one.how) for one in found] == [
        ("path", "b", "changed"),
        ("path", "c", "removed"),
        ("path", "d", "added"),
    ]
    before = Snapshot(1, {}, {}, {"s": frozenset("ab")}, {"t": StateEntry("open", None, 1, "")}, "1-0")
    after = Snapshot(2, {}, {}, {"s": frozenset("b")}, {"t": StateEntry("done", None, 2, "")}, "2-0")
    assert [(one.kind, one.name) for one in difference(before, after)] == [("set", "s"), ("state", "t")]


def test_lines() -> None:
    """Text is compared by lines, other values by the lines of their JSON form."""
    found = diff_lines("one\ntwo\nthree", "one\n2\nthree")
    assert found is not None
    assert [tuple(line) for line in found] == [
        ("@", "-1,3 +1,3"), (" ", "one"), ("-", "two"), ("+", "2"), (" ", "three"),
    ]  # fmt: skip
    changed = diff_lines({"a": {"b": 1}, "c": [1, 2]}, {"a": {"b": 2}, "c": [1, 2]})
    assert changed is not None
    assert [line.text for line in changed if line.sign in "+-"] == ['    "b": 1', '    "b": 2']
    assert lines_of({"a": {"b": 1}, "c": []}) == ["{", '  "a": {', '    "b": 1', "  },", '  "c": []', "}"]
    assert diff_lines(1, 1) == []


def test_large_and_deep_values() -> None:
    """Values that are too long are not compared, and the time is bounded; deep ones do not fail."""
    assert diff_lines("x\n" * (MOST_LINES + 1), "") is None
    assert diff_lines("x" * 100_000, "") is None
    assert diff_lines([0] * 100_000, []) is None
    began = time.process_time()
    assert diff_lines("a\nb\n" * (MOST_LINES // 2), "b\na\n" * (MOST_LINES // 2)) is not None
    assert time.process_time() - began < 2
    deep: object = 1
    for _ in range(900):
        deep = [deep]
    assert diff_lines(deep, 1) is not None
    other: object = 2
    for _ in range(100_000):
        other = [other]
    assert difference(_snapshot(a=other), _snapshot(a=[other])) != []
    assert "nested too deeply" in str(lines_of(other))
