"""Reads the scripts in `lua/`: expands includes, parses binding blocks, hashes. Pure; talks to nobody.

Grammar (lua/README.md): a script opens with `#!lua`, then a comment, then its binding block, one line per argument:

    local pool = KEYS[1]  -- key: root of the pool's slot
    local rows = cmsgpack.unpack(ARGV[1])  -- rows: id generation
    local lease_ms = tonumber(ARGV[2])  -- int: lease of the agent

`--@include name` puts `includes/name.lua` there, once, with its own includes before it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import OrchestratorError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_BINDING: Final = re.compile(
    r"^local (?P<name>\w+)\s*= (?:(?P<reader>tonumber|cmsgpack\.unpack)\()?"
    r"(?P<list>KEYS|ARGV)\[(?P<index>\d+)\]\)?\s*-- (?P<type>\w+): (?P<doc>.+)$"
)
_POSITIONAL: Final = re.compile(r"\b(?:KEYS|ARGV)\b")
_INCLUDE: Final = re.compile(r"^--@include (\w+)$")
_READERS: Final = {"key": None, "str": None, "time": None, "int": "tonumber", "rows": "cmsgpack.unpack"}


class ScriptError(OrchestratorError):
    """A script file is malformed: a bug of ours, found at start."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One declared argument: its name, its type (`key`, `str`, `int`, `rows`, `time`) and what it is."""

    name: str
    type: str
    doc: str


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """One script, ready to send. `sha` is the hash of the expanded `text`."""

    name: str
    text: str
    sha: str
    keys: tuple[Binding, ...]
    args: tuple[Binding, ...]

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """Column names of each argument of type `rows`."""
        return {arg.name: tuple(arg.doc.split()) for arg in self.args if arg.type == "rows"}


def load_script(root: Traversable, name: str) -> ScriptFile:
    """Read `root/name.lua`.

    Raises:
        ScriptError: no such file, a cycle or an unknown name in its includes, or a binding block that has gaps,
            duplicates, or is bypassed by `KEYS` or `ARGV` elsewhere.
    """
    source = _read(root, name, ())
    lines = _expand(root, name, source)
    text = "\n".join(lines) + "\n"
    if not text.startswith("#!lua"):
        raise ScriptError(f"{name}.lua does not begin with #!lua, so the server would not check its keys")
    bindings = _parse_bindings(name, lines)
    return ScriptFile(
        name=name,
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
        keys=bindings["KEYS"],
        args=bindings["ARGV"],
    )


def _read(root: Traversable, name: str, stack: tuple[str, ...]) -> list[str]:
    path = root
    for part in f"{name}.lua".split("/"):
        path = path / part
    if not path.is_file():
        raise ScriptError(f"no script file {name}.lua" + (f" (included by {' > '.join(stack)})" if stack else ""))
    return path.read_text(encoding="utf-8").splitlines()


def _expand(root: Traversable, name: str, source: list[str]) -> list[str]:
    """Put every include where the first include line stands; each once, below those it needs itself."""
    lines: list[str] = []
    included: set[str] = set()
    for line in source:
        if found := _INCLUDE.match(line):
            _emit(root, f"includes/{found[1]}", lines, included, (name,))
        else:
            lines.append(line)
    return lines


def _emit(root: Traversable, name: str, out: list[str], included: set[str], stack: tuple[str, ...]) -> None:
    if name in stack:
        raise ScriptError(f"includes go in a circle: {' > '.join((*stack, name))}")
    if name in included:
        return
    source = _read(root, name, stack)
    for line in source:
        if _POSITIONAL.search(line):
            raise ScriptError(f"{name}.lua uses KEYS or ARGV; an include takes what it needs as arguments")
        if found := _INCLUDE.match(line):
            _emit(root, f"includes/{found[1]}", out, included, (*stack, name))
    included.add(name)
    out.extend(line for line in source if not _INCLUDE.match(line))


def _parse_bindings(name: str, lines: list[str]) -> dict[str, tuple[Binding, ...]]:
    found: dict[str, dict[int, Binding]] = {"KEYS": {}, "ARGV": {}}
    for line in lines:
        if match := _BINDING.match(line):
            kind, index = match["type"], int(match["index"])
            if kind not in _READERS or _READERS[kind] != match["reader"]:
                raise ScriptError(f"{name}.lua binds {match['name']} as {kind}, which does not fit how it is read")
            if index in found[match["list"]]:
                raise ScriptError(f"{name}.lua binds {match['list']}[{index}] twice")
            found[match["list"]][index] = Binding(match["name"], kind, match["doc"])
        elif _POSITIONAL.search(line):
            raise ScriptError(f"{name}.lua uses KEYS or ARGV outside its binding block: {line.strip()}")
    for which, by_index in found.items():
        if sorted(by_index) != list(range(1, len(by_index) + 1)):
            raise ScriptError(f"{name}.lua leaves a gap in {which}: {sorted(by_index)}")
    return {which: tuple(by_index[i] for i in sorted(by_index)) for which, by_index in found.items()}


@cache
def all_scripts() -> dict[str, ScriptFile]:
    """Every script of the project by name (`tasks/submit`), read once per process."""
    root = files("lua")
    names = [
        f"{folder.name}/{file.name.removesuffix('.lua')}"
        for folder in root.iterdir()
        if folder.is_dir() and folder.name not in {"includes", "__pycache__"}
        for file in folder.iterdir()
        if file.name.endswith(".lua")
    ]
    return {name: load_script(root, name) for name in sorted(names)}
