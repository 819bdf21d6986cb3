"""Column names compile to numbers where a record is in scope; what the loader cannot compile is refused."""

from __future__ import annotations

from textwrap import dedent

import pytest

from orchestrator.store.script_records import ScriptError, compile_records
from tests.helpers.cases import each_case

ROWS = {"rows": ("id", "generation")}


def compiled(text: str) -> str:
    """Compile the body of a script that has the argument `rows`, and `caller`, a single row."""
    return "\n".join(compile_records("top", dedent(text).strip("\n").split("\n"), ROWS, {"caller": ("op", "lock")}))


@each_case(
    ("text", "expected"),
    [
        ("return rows[i].generation", "return rows[i][2]"),
        ("return row.id .. row.generation", "return row[1] .. row[2]"),
        ("return caller.lock", "return caller[2]"),
        ("return rows[row.id].id", "return rows[row[1]][1]"),
        ("return counts[row.id], counts[row.id].n", "return counts[row[1]], counts[row[1]].n"),
        ("for i = 1, #rows do judge(rows[i]) end", "for i = 1, #rows do judge(rows[i]) end"),
        ("return 'row.id' -- row.id", "return 'row.id' -- row.id"),
        ("return the.row.id, arrow.id, row_.id", "return the.row.id, arrow.id, row_.id"),
    ],
)
def test_arguments(text: str, expected: str) -> None:
    """A list argument gives its columns to its elements and to the variable that is named like one of them."""
    assert compiled(text) == expected


@pytest.mark.parametrize("call", ["read_task(pool .. ':task:' .. id, ", "redis.call('HMGET', agent_key, "])
def test_fields_that_are_read(call: str) -> None:
    """The fields of a read name what it returns: literals, variables, over several lines, to the end of the block."""
    text = f"""
    if known then
      local found = {call}'state', 'gen',
        ask)
      return found.gen, found.ask
    end
    return found.gen
    """
    lines = compiled(text).split("\n")
    assert lines[3] == "  return found[2], found[3]"
    assert lines[5] == "return found.gen"


def test_directives() -> None:
    """A directive names the places of a list, or of its elements, up to the end of the block; it leaves no line."""
    text = """
    local function leave(task)
      --@rows pending: entry worker
      --@row place: rank lane
      place.lane = pending[1].worker
      local first = pending[1]
      return first.entry
    end
    place.lane = 1
    """
    lines = compiled(text).split("\n")
    assert lines[1:4] == ["  place[2] = pending[1][2]", "  local first = pending[1]", "  return first[1]"]
    assert lines[-1] == "place.lane = 1"


def test_other_locals_of_that_name() -> None:
    """A parameter, a loop variable or a local hides the record of its name, in its block; a row of rows stays one."""
    text = """
    local task = read_task(task_key, 'state')
    local function finish(task, row)
      return task.state, row.id
    end
    for id, task in pairs(tasks) do
      task.state = id
    end
    task.state = nil
    local task = {state = 'ready'}
    task.state = 'ready'
    """
    lines = compiled(text).split("\n")
    assert [lines[i].strip() for i in (2, 5, 7, 9)] == [
        "return task.state, row[1]",
        "task.state = id",
        "task[1] = nil",
        "task.state = 'ready'",
    ]


def test_fields_that_are_computed() -> None:
    """What reads fields that are not written out has no names."""
    text = "local found = read_task(task_key, unpack(fields))\nreturn found[1], found.state"
    assert compiled(text) == text


@each_case(
    ("text", "told"),
    [
        ("return row.agent", r"top\.lua reads row\.agent; row has the columns id generation"),
        ("return rows[i].agent", r"top\.lua reads rows\.agent; rows has the columns id generation"),
        ("return row[1]", r"numbers a place that has a name: return row\[1\]"),
        ("return rows[i][2]", r"numbers a place that has a name"),
        ("return rows.id", "reads a place in a way that the loader cannot compile: return rows.id"),
        ("return row[i].id", "cannot compile"),
        ("return rows[a[i]].id", "cannot compile"),
        ("return row.id.part", "cannot compile"),
    ],
)
def test_refused(text: str, told: str) -> None:
    """An unknown column, a number in place of a name, and forms that the loader cannot compile are refused."""
    with pytest.raises(ScriptError, match=told):
        compiled(text)
