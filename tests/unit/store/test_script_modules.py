"""Includes: functions of a module are placed once, below what they call, and only those that a script uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.store.script_modules import Modules
from orchestrator.store.script_records import ScriptError

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, **modules: str) -> Modules:
    """Write modules below `root/includes`."""
    (root / "includes").mkdir()
    for name, text in modules.items():
        (root / "includes" / f"{name}.lua").write_text(text)
    return Modules(root)


def function(name: str, *called: str) -> str:
    """A Lua function that calls others."""
    return f"-- Does {name}.\nlocal function {name}()\n" + "".join(f"  {each}()\n" for each in called) + "end\n"


def names(lines: list[str]) -> list[str]:
    """The functions and constants that lines define, in order."""
    words = [line.split() for line in lines if line.startswith("local ")]
    return [part[2].removesuffix("()") if part[1] == "function" else part[1] for part in words]


def test_only_what_is_used(tmp_path: Path) -> None:
    """A script gets the functions that it names and what they call, in place of the include line."""
    module = "-- Subject.\n\n" + "\n".join([function("one"), function("two", "one"), function("three")])
    lines = write(tmp_path, subject=module).expand("top", ["#!lua", "--@include subject: two", "return two()"])
    assert lines[0] == "#!lua"
    assert lines[-1] == "return two()"
    assert names(lines) == ["one", "two"]
    assert "-- Subject." not in lines


def test_diamond(tmp_path: Path) -> None:
    """A function that is reached twice, also through another module, is placed once, above the first that calls it."""
    modules = write(
        tmp_path,
        base="-- Base.\n\nlocal limit = 5\n\n" + function("base", "limit"),
        left="-- Left.\n--@include base: base\n\n" + function("left", "base"),
        right="-- Right.\n--@include base: base\n\n" + function("right", "base"),
    )
    include = ["--@include left: left", "--@include right: right", "--@include left: left"]
    assert names(modules.expand("top", include)) == ["limit", "base", "left", "right"]


def test_words_that_are_no_calls(tmp_path: Path) -> None:
    """A name in a comment, in a text, as a field or as a method is no use of a function."""
    body = "-- Not one().\nlocal function two(task)\n  return 'one', task.one, 'a' .. task.two -- one\nend\n"
    modules = write(tmp_path, subject=f"-- Subject.\n\n{function('one')}\n{body}")
    assert names(modules.expand("top", ["--@include subject: two"])) == ["two(task)"]


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ({}, r"no script file includes/a\.lua \(included by top\)"),
        ({"a": "-- A.\n\n" + function("g")}, r"includes/a\.lua defines no f \(included by top\)"),
        ({"a": "-- A.\n\n" + function("f", "g") + "\n" + function("g", "f")}, r"cycle: top > a\.f > a\.g > a\.f"),
        (
            {
                "a": "-- A.\n--@include b: g\n\n" + function("f", "g"),
                "b": "-- B.\n--@include a: f\n\n" + function("g", "f"),
            },
            r"cycle: top > a\.f > b\.g > a\.f",
        ),
        ({"a": "-- A.\n--@include b: g\n\n" + function("f", "g")}, r"includes/b\.lua \(included by top > a\.f\)"),
        (
            {"a": "-- A.\n--@include b: g\n\n" + function("f", "g", "h") + "\n" + function("h"), "b": "-- B.\n"},
            r"includes/b\.lua defines no g",
        ),
        (
            {
                "a": "-- A.\n--@include b: g\n\n" + function("f", "g", "h") + "\n" + function("h"),
                "b": "-- B.\n\n" + function("g", "h") + "\n" + function("h"),
            },
            r"includes two functions h, of b and a",
        ),
        ({"a": "-- A.\n\nlocal function f()\n  return ARGV[1]\nend\n"}, r"includes/a\.lua uses KEYS or ARGV"),
        ({"a": "-- A.\n--@include b\n"}, r"includes/a\.lua has a malformed include: --@include b"),
        (
            {"a": "-- A.\n\nlocal one = 0\n  + 1\n\nlocal function a()\nend\n"},
            r"includes/a\.lua has a line outside of its functions and constants: \+ 1",
        ),
        ({"a": "-- A.\n\nreturn 1\nend\n"}, r"includes/a\.lua has a block that defines no local function"),
    ],
)
def test_refused(tmp_path: Path, modules: dict[str, str], told: str) -> None:
    """What cannot be expanded is refused, with the way to it in the message."""
    with pytest.raises(ScriptError, match=told):
        write(tmp_path, **modules).expand("top", ["--@include a: f"])
