"""Reads the scripts in `lua/`: expands includes and rare functions, compiles column names, parses bindings, hashes.

A script (lua/README.md) opens with `#!lua`, then a comment, then its binding block, one line per argument:

    local pool = KEYS[1]  -- key: root of the pool's slot
    local rows = cmsgpack.unpack(ARGV[1])  -- rows: id generation
    local lease_ms = tonumber(ARGV[2])  -- int: lease of the agent
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from orchestrator.store.script_modules import POSITIONAL, Modules, read_source
from orchestrator.store.script_rare import postpone_rare
from orchestrator.store.script_records import ScriptError, compile_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.resources.abc import Traversable

_BINDING: Final = re.compile(
    r"^local (?P<name>\w+)\s*= (?P<reader>(?:(?:tonumber|cmsgpack\.unpack)\()?)"
    r"(?P<list>KEYS|ARGV)\[(?P<index>\d+)\](?P<close>\)?(?:\[1\])?)\s*-- (?P<type>\w+): (?P<doc>.+)$"
)
_READERS: Final = {
    "key": "[]",
    "str": "[]",
    "time": "[]",
    "int": "tonumber([])",
    "rows": "cmsgpack.unpack([])",
    "row": "cmsgpack.unpack([])[1]",
}


@dataclass(frozen=True, slots=True)
class Binding:
    """One declared argument: its name, its type (`key`, `str`, `int`, `rows`, `row`, `time`) and what it is."""

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
        """Column names of each argument of type `rows` or `row`."""
        return {arg.name: tuple(arg.doc.split()) for arg in self.args if arg.type in {"rows", "row"}}

    @property
    def reads_only(self) -> bool:
        """True if its first line says so, and the server refuses every change."""
        return self.text.startswith("#!lua flags=no-writes\n")

    @property
    def may_only_read(self) -> bool:
        """True if no call writes, or none without its argument `repair`."""
        return self.reads_only or any(arg.name == "repair" for arg in self.args)


def load_script(root: Traversable, name: str, modules: Modules | None = None) -> ScriptFile:
    """Read `root/name.lua`.

    Args:
        root: folder of the scripts.
        name: `<feature>/<verb>`.
        modules: those below `root`, when several scripts are loaded.

    Raises:
        ScriptError: no such file, an include that cannot be expanded, an unknown column, or a binding block that has
            gaps or duplicates, or is bypassed by `KEYS` or `ARGV` elsewhere.
    """
    source = read_source(root, name)
    if not source or not source[0].startswith("#!lua"):
        raise ScriptError(f"{name}.lua does not begin with #!lua, so the server would not check its keys")
    bindings = _parse_bindings(name, source)
    rows, single = (
        {arg.name: tuple(arg.doc.split()) for arg in bindings["ARGV"] if arg.type == kind} for kind in ("rows", "row")
    )
    lines = compile_records(name, source, rows, single)
    expanded = (modules or Modules(root)).expand(name, lines)
    text = "\n".join(postpone_rare(name, expanded)) + "\n"
    return ScriptFile(
        name=name,
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
        keys=bindings["KEYS"],
        args=bindings["ARGV"],
    )


def _parse_bindings(name: str, lines: Sequence[str]) -> dict[str, tuple[Binding, ...]]:
    found: dict[str, dict[int, Binding]] = {"KEYS": {}, "ARGV": {}}
    for line in lines:
        if match := _BINDING.match(line):
            kind, index = match["type"], int(match["index"])
            if _READERS.get(kind) != f"{match['reader']}[]{match['close']}":
                raise ScriptError(f"{name}.lua binds {match['name']} as {kind}, which does not fit how it is read")
            if index in found[match["list"]]:
                raise ScriptError(f"{name}.lua binds {match['list']}[{index}] twice")
            found[match["list"]][index] = Binding(match["name"], kind, match["doc"])
        elif POSITIONAL.search(line):
            raise ScriptError(f"{name}.lua uses KEYS or ARGV outside its binding block: {line.strip()}")
    for which, by_index in found.items():
        if sorted(by_index) != list(range(1, len(by_index) + 1)):
            raise ScriptError(f"{name}.lua leaves a gap in {which}: {sorted(by_index)}")
    return {which: tuple(by_index[i] for i in sorted(by_index)) for which, by_index in found.items()}


class ScriptFiles(Mapping[str, ScriptFile]):
    """The scripts below a folder by name. Each is read when it is first asked for, which takes about a millisecond."""

    def __init__(self, root: Traversable) -> None:
        self._root, self._modules = root, Modules(root)
        self._names = dict.fromkeys(sorted(_find_names(root)))
        self._read: dict[str, ScriptFile] = {}

    def __getitem__(self, name: str) -> ScriptFile:
        found = self._read.get(name)
        if found is None:
            if name not in self._names:
                raise KeyError(name)
            found = self._read[name] = load_script(self._root, name, self._modules)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _find_names(root: Traversable) -> Iterator[str]:
    for folder in root.iterdir():
        if folder.is_dir() and folder.name not in {"includes", "__pycache__"}:
            for file in folder.iterdir():
                if file.name.endswith(".lua"):
                    yield f"{folder.name}/{file.name.removesuffix('.lua')}"


@cache
def all_scripts() -> ScriptFiles:
    """Every script of the project by name (`tasks/submit`), each read once per process."""
    return ScriptFiles(files("orchestrator") / "lua")


def read_all_scripts() -> list[ScriptFile]:
    """Read every script. Blocks for about 0.15 s."""
    return list(all_scripts().values())
