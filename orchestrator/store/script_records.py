"""Compiles column names to numbers: a script says `row.id`, the server runs `row[1]`.

A record is a Lua list whose places have names. Four lines declare one:

    local rows = cmsgpack.unpack(ARGV[1])  -- rows: id generation    `rows[i].id`, and `row.id` in the whole script
    local task = read_task(task_key, 'state', 'gen')                 `task.state`, up to the end of the block
    local spec = redis.call('HMGET', agent_key, 'slots', 'limits')   `spec.slots`, up to the end of the block
    --@row firing: schedule due                                      `firing.due`, up to the end of the block

`--@rows pending: entry consumer` declares a list of records: `pending[i].entry`. Names cost nothing at run time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import OrchestratorError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DIRECTIVE: Final = re.compile(r"^\s*--@(?P<kind>rows?) (?P<name>\w+): (?P<columns>\w+(?: \w+)*)$")
_READ: Final = re.compile(r"^\s*local (?P<name>\w+) = (?:redis\.call\('HMGET', |read_task\()")
_ELEMENT: Final = re.compile(r"^\s*local (?P<name>\w+) = (?P<list>\w+)\[[^\[\]]+\]$")
_LOCALS: Final = re.compile(r"^\s*local (?!function\b)(?P<names>\w+(?:, \w+)*)")
_FOR: Final = re.compile(r"^\s*for (?P<names>\w+(?:, \w+)*) (?:=|in)\b")
_PARAMETERS: Final = re.compile(r"\bfunction\b[^()]*\((?P<names>[^()]*)\)")
_FIELD: Final = re.compile(r"'(?P<literal>[^']+)'|(?P<variable>[a-z_]\w*)")
_TOKEN: Final = re.compile(
    r"--.*|'(?:[^'\\]|\\.)*'|(?<![\w.:])(?P<name>[A-Za-z_]\w*)(?P<index>\[[^\[\]]*\])?"
    r"(?:\.(?P<column>\w+)|\[(?P<number>\d+)\])?"
)


class ScriptError(OrchestratorError):
    """A script file is malformed: a bug of ours, found at start."""


@dataclass(frozen=True, slots=True)
class _Names:
    """One name in scope: `columns` is None where another local hides the record of that name."""

    indent: int
    name: str
    columns: tuple[str, ...] | None
    is_list: bool = False
    stays: bool = False


def compile_records(
    source: str, lines: Sequence[str], rows: Mapping[str, tuple[str, ...]], single: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Replace `record.column` by `record[n]` in the lines of one script or function.

    Args:
        source: names the file in errors.
        lines: Lua, indented by blocks.
        rows: columns of each list argument; its elements are also known by its name without the final `s`.
        single: columns of each record argument.

    Raises:
        ScriptError: a record has no such column, or a place is numbered that has a name.
    """
    scope = [_Names(0, name, columns, is_list=True, stays=True) for name, columns in rows.items()]
    scope += [_Names(0, name[:-1], columns, stays=True) for name, columns in rows.items() if name.endswith("s")]
    scope += [_Names(0, name, columns, stays=True) for name, columns in single.items()]
    compiled: list[str] = []
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if directive := _DIRECTIVE.match(line):
            columns, is_list = tuple(directive["columns"].split()), directive["kind"] == "rows"
            scope.append(_Names(indent, directive["name"], columns, is_list=is_list, stays=True))
            continue
        if not line.strip() or line.lstrip().startswith("--"):
            compiled.append(line)
            continue
        while scope and scope[-1].indent > indent:
            scope.pop()
        known = {record.name: record for record in scope}
        scope += _declared(lines, number, indent, known)
        compiled.append(_compile_line(source, line, known))
    return compiled


def _declared(lines: Sequence[str], number: int, indent: int, known: Mapping[str, _Names]) -> Iterator[_Names]:
    """Yield the records that a line declares, and those that its locals, loop variables and parameters hide."""
    line = lines[number]
    if found := _READ.match(line):
        yield _Names(indent, found["name"], _fields(lines, number, found.end()))
        return
    element = _ELEMENT.match(line)
    if element and (of := known.get(element["list"])) and of.is_list:
        yield _Names(indent, element["name"], of.columns)
        return
    hidden = [(indent, found["names"])] if (found := _LOCALS.match(line)) else []
    hidden += [(indent + 1, found["names"]) for found in (_FOR.match(line), *_PARAMETERS.finditer(line)) if found]
    for depth, names in hidden:
        for name in names.split(", "):
            if name in known and not known[name].stays:
                yield _Names(depth, name, None)


def _fields(lines: Sequence[str], number: int, start: int) -> tuple[str, ...] | None:
    """Parse the fields that a call reads, after its key; return None unless all are literals or variables."""
    depth, arguments = 1, [""]
    for char in (char for line in (lines[number][start:], *lines[number + 1 :]) for char in f"{line}\n"):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0:
            break
        if char == "," and depth == 1:
            arguments.append("")
        else:
            arguments[-1] += char
    fields = [_FIELD.fullmatch(argument.strip()) for argument in arguments[1:]]
    if not all(fields):
        return None
    return tuple(field["literal"] or field["variable"] for field in fields if field)


def _compile_line(source: str, line: str, known: Mapping[str, _Names]) -> str:
    def place(record: _Names, column: str) -> int:
        assert record.columns is not None
        if column not in record.columns:
            columns = " ".join(record.columns)
            raise ScriptError(f"{source}.lua reads {record.name}.{column}; {record.name} has the columns {columns}")
        return record.columns.index(column) + 1

    def number(token: re.Match[str]) -> str:
        name, index, column = token["name"], token["index"] or "", token["column"]
        if name is None:
            return token[0]
        record = known.get(name)
        index = index and f"[{_TOKEN.sub(number, index[1:-1])}]"
        if record is None or record.columns is None:
            return name + index + token[0][token.end("index") - token.start() :] if index else token[0]
        if token["number"] or (not record.is_list and index[1:-1].isdigit()):
            raise ScriptError(f"{source}.lua numbers a place that has a name: {line.strip()}")
        if column is None and not (record.is_list and not index and line[token.end() : token.end() + 1] == "["):
            return token[0]
        if column is None or record.is_list != bool(index) or re.match(r"\.\w", line[token.end() :]):
            raise ScriptError(f"{source}.lua reads a place in a way that the loader cannot compile: {line.strip()}")
        return f"{name}{index}[{place(record, column)}]"

    return _TOKEN.sub(number, line) if any(name in line for name in known) else line
