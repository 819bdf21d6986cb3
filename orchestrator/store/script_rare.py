"""Expands `--@rare: function, ...`: a script defines these functions when a call needs the first of them.

Each function that Lua defines costs every call of the script: a closure, and the variables that it refers to. A usual
call needs few of them. The loader moves the listed functions, and those that only they call, into one function
`rare`, which defines them at its first call; the rest of the script says `rare().pass_lane(...)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.store.script_records import ScriptError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_DIRECTIVE: Final = re.compile(r"^--@rare: (?P<names>\w+(?:, \w+)*)$")
_FUNCTION: Final = re.compile(r"^local function (\w+)\(")
_LOCALS: Final = re.compile(r"^local (?!function\b)(\w+(?:, \w+)*)")
_WORD: Final = re.compile(r"--.*|'(?:[^'\\]|\\.)*'|(?<![\w.:])(?P<name>[A-Za-z_]\w*)(?P<call>\()?")


@dataclass(slots=True)
class _Block:
    """A function of the script with its comment, or lines that run in order (`name` is empty)."""

    name: str
    lines: list[str]

    def words(self) -> set[str]:
        return {found["name"] for line in self.lines for found in _WORD.finditer(line) if found["name"]}


def postpone_rare(source: str, lines: Sequence[str]) -> list[str]:
    """Move the functions that the directives of a script name into `rare`; `lines` has no more includes.

    Raises:
        ScriptError: no such function, one that is not only called, or one that the script calls above its place.
    """
    named = {name for line in lines if (found := _DIRECTIVE.match(line)) for name in found["names"].split(", ")}
    if not named:
        return list(lines)
    blocks = list(_blocks([line for line in lines if not _DIRECTIVE.match(line)]))
    words = {block.name: block.words() for block in blocks if block.name}
    if unknown := named - words.keys():
        raise ScriptError(f"{source}.lua defines no function {', '.join(sorted(unknown))}, which it lists as rare")
    _refuse_hidden(source, blocks, words.keys())
    in_order = set().union(*(block.words() for block in blocks if not block.name))
    rare = _with_callees(named, words, in_order)
    last = max(number for number, block in enumerate(blocks) if block.name in rare)
    _refuse_early(source, blocks[:last], words, rare)

    entered: set[str] = set()
    above, below = (
        [_enter(source, line, rare, entered) for block in part if block.name not in rare for line in block.lines]
        for part in (blocks[1 : last + 1], blocks[last + 1 :])
    )
    moved = [line for block in blocks if block.name in rare for line in block.lines]
    return [
        *blocks[0].lines,
        "local rare_functions, rare",
        *above,
        "rare = function()",
        "if rare_functions then return rare_functions end",
        *moved,
        f"rare_functions = {{{', '.join(f'{name} = {name}' for name in sorted(entered))}}}",
        "return rare_functions",
        "end",
        *below,
    ]


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Split a script; its first block is its first line."""
    yield _Block("", [lines[0]])
    pending: list[str] = []
    inside = ""
    for line in lines[1:]:
        if not inside and (found := _FUNCTION.match(line)):
            inside = found[1]
        pending.append(line)
        if inside and line != "end" and not (_FUNCTION.match(line) and line.endswith(" end")):
            continue
        if inside or not line.startswith("--"):
            yield _Block(inside, pending)
            pending, inside = [], ""
    yield _Block("", pending)


def _with_callees(named: set[str], words: dict[str, set[str]], in_order: set[str]) -> set[str]:
    """Add the functions that only rare ones call."""
    rare = set(named)
    while more := {
        name
        for name in words.keys() - rare - in_order
        if (callers := {other for other in words if other != name and name in words[other]}) and callers <= rare
    }:
        rare |= more
    return rare


def _refuse_hidden(source: str, blocks: Sequence[_Block], functions: Collection[str]) -> None:
    """Refuse variables with the name of a function: a function that moves below one would read it."""
    declared = {
        name
        for block in blocks
        if not block.name
        for line in block.lines
        if (found := _LOCALS.match(line))
        for name in found[1].split(", ")
    }
    if hidden := {name for name in declared if name in functions} | ({"rare", "rare_functions"} & declared):
        raise ScriptError(f"{source}.lua gives a variable the name of a function: {', '.join(sorted(hidden))}")


def _refuse_early(source: str, above: Sequence[_Block], words: dict[str, set[str]], rare: set[str]) -> None:
    """Refuse lines above the place of `rare` that may call it."""
    calling = set(rare)
    while more := {name for name in words.keys() - calling if words[name] & calling}:
        calling |= more
    if early := set().union(*(block.words() for block in above if not block.name)) & calling:
        raise ScriptError(
            f"{source}.lua calls {', '.join(sorted(early))} above the last function that it lists as rare"
        )


def _enter(source: str, line: str, rare: set[str], entered: set[str]) -> str:
    """Let a line call rare functions through `rare()`."""

    def through(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in rare:
            return found[0]
        if not found["call"]:
            if re.match(r"\s*=[^=]", line[found.end() :]):
                return found[0]  # the field of a table
            raise ScriptError(f"{source}.lua uses {name}, which it lists as rare, other than in a call: {line.strip()}")
        entered.add(name)
        return f"rare().{found[0]}"

    return _WORD.sub(through, line)
