"""Expands `--@include module: function, ...`: puts those functions into a script, with the functions that they call.

A module, `includes/<subject>.lua`, opens with a comment and its own includes. Its local functions and constants follow,
each below its comment, with a blank line between them. A script pays only for the functions that it uses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.store.script_records import ScriptError, compile_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

POSITIONAL: Final = re.compile(r"\b(?:KEYS|ARGV)\b")
_INCLUDE: Final = re.compile(r"^--@include (?P<module>\w+): (?P<names>\w+(?:, \w+)*)$")
_DEFINED: Final = re.compile(r"^local (?:function (?P<function>\w+)\(|(?P<constant>\w+) = )")
_WORD: Final = re.compile(r"--.*|'(?:[^'\\]|\\.)*'|(?<![\w.:])([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class _Item:
    """One function or constant of a module, with the words in it that may name others."""

    lines: tuple[str, ...]
    words: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Module:
    """The items of one file by name, and the modules of the names that it includes."""

    items: dict[str, _Item]
    included: dict[str, str]


class Modules:
    """The modules below one folder of scripts, each parsed once."""

    def __init__(self, root: Traversable) -> None:
        self._root = root
        self._parsed: dict[str, _Module] = {}

    def expand(self, source: str, lines: Sequence[str]) -> list[str]:
        """Put functions in the place of include lines, each once, below those that it calls.

        Raises:
            ScriptError: an unknown module or function, functions that call each other, or two of one name.
        """
        expanded: list[str] = []
        placed: dict[str, str] = {}
        for line in lines:
            if (found := _included(source, line)) is None:
                expanded.append(line)
                continue
            module, names = found
            for name in names:
                self._place(module, name, expanded, placed, (source,))
        return expanded

    def _place(self, module: str, name: str, out: list[str], placed: dict[str, str], stack: tuple[str, ...]) -> None:
        step = f"{module}.{name}"
        if step in stack:
            raise ScriptError(f"includes form a cycle: {' > '.join((*stack, step))}")
        if placed.setdefault(name, module) != module:
            raise ScriptError(f"{stack[0]}.lua includes two functions {name}, of {placed[name]} and {module}")
        if step in placed:
            return
        parsed = self._module(module, stack)
        if name not in parsed.items:
            raise ScriptError(f"includes/{module}.lua defines no {name} (included by {' > '.join(stack)})")
        item = parsed.items[name]
        for called, home in parsed.included.items():
            if called in item.words:
                self._place(home, called, out, placed, (*stack, step))
        for called in parsed.items:
            if called in item.words and called != name:
                self._place(module, called, out, placed, (*stack, step))
        placed[step] = module
        out.extend(item.lines)

    def _module(self, name: str, stack: tuple[str, ...]) -> _Module:
        if name not in self._parsed:
            self._parsed[name] = _parse(f"includes/{name}", read_source(self._root, f"includes/{name}", stack))
        return self._parsed[name]


def read_source(root: Traversable, name: str, stack: Sequence[str] = ()) -> list[str]:
    """Read the lines of `root/name.lua`.

    Raises:
        ScriptError: there is no such file; the message names what included it.
    """
    path = root
    for part in f"{name}.lua".split("/"):
        path = path / part
    if not path.is_file():
        raise ScriptError(f"no script file {name}.lua" + (f" (included by {' > '.join(stack)})" if stack else ""))
    return path.read_text(encoding="utf-8").splitlines()


def _parse(source: str, lines: Sequence[str]) -> _Module:
    items: dict[str, _Item] = {}
    included: dict[str, str] = {}
    pending: list[str] = []
    for line in lines:
        if POSITIONAL.search(line):
            raise ScriptError(f"{source}.lua uses KEYS or ARGV; an include takes what it needs as arguments")
        if found := _included(source, line):
            included |= dict.fromkeys(found[1], found[0])
            pending = []
        elif line or _name(source, pending, required=False):
            pending.append(line)
        else:
            pending = _outside(source, pending)
        if line == "end" or re.match(r"local (?!function\b)", line):
            items[_name(source, pending)] = _item(source, pending)
            pending = []
    return _Module(items, included)


def _outside(source: str, lines: Sequence[str]) -> list[str]:
    """Refuse lines between the items that are no comment: a constant has one line."""
    for line in lines:
        if not line.startswith("--"):
            raise ScriptError(f"{source}.lua has a line outside of its functions and constants: {line.strip()}")
    return []


def _item(source: str, lines: Sequence[str]) -> _Item:
    words = frozenset(word for line in lines for word in _WORD.findall(line) if word)
    return _Item(tuple(compile_records(source, lines, {}, {})), words)


def _name(source: str, lines: Sequence[str], *, required: bool = True) -> str:
    """Find the name that the lines of one item define."""
    for line in lines:
        if found := _DEFINED.match(line):
            return found["function"] or found["constant"]
    if required:
        raise ScriptError(f"{source}.lua has a block that defines no local function or constant: {lines[0]}")
    return ""


def _included(source: str, line: str) -> tuple[str, list[str]] | None:
    if not line.startswith("--@include"):
        return None
    if not (found := _INCLUDE.match(line)):
        raise ScriptError(f"{source}.lua has a malformed include: {line}")
    return found["module"], found["names"].split(", ")
