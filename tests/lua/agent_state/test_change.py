"""What agents say of themselves: all fields or none, exact sums, one change for one op id, the lock that is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.agent_state import scripts
from orchestrator.agent_state.scripts import FieldRow
from orchestrator.locks.fenced_writer import CallerRow
from tests.lua.scope import Scope, task_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.agent_state.scripts import Changed
    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server

WEEK_MS = 604_800_000
MOST = 2**53 - 1


def put(field: str, value: object) -> FieldRow:
    """A row that writes a field."""
    return FieldRow(field, "set", json.dumps(value).encode())


def bump(field: str, by: int) -> FieldRow:
    """A row that adds to one."""
    return FieldRow(field, "bump", str(by).encode())


class Agent(Scope):
    """An agent's slot on one server."""

    _ops = 0

    def change(
        self, *rows: FieldRow, op: str | None = None, most: int = 100, shown: tuple[str, str] = ("", "")
    ) -> Changed:
        """Run the script."""
        self._ops += 1
        caller = CallerRow(op or f"o{self._ops}", *shown, agent="ed")
        return self.call(scripts.change(self.keys, caller=caller, rows=rows, most=most))

    def fields(self) -> dict[str, object]:
        """The state."""
        flat = self.store.execute("HGETALL", self.keys.key("state"))
        return {name.decode(): json.loads(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


@pytest.fixture
def agent(redis_server: RedisServer, prefix: str) -> Iterator[Agent]:
    """An agent that has said nothing."""
    agent = Agent(redis_server.url, prefix, "agent", "ed")
    yield agent
    agent.close()


def test_fields(agent: Agent) -> None:
    """Rows are written together; other fields stay; a sum is told; the state lives for a week after the last change."""
    assert agent.change(put("status", "busy"), put("task", None), bump("done", 2)) == ("ok", (b"", b"", b"2"))
    agent.store.execute("PEXPIRE", agent.keys.key("state"), 1000)
    assert agent.change(bump("done", -2), put("task", [1.0, {}])) == ("ok", (b"0", b""))
    assert agent.fields() == {"status": "busy", "task": [1.0, {}], "done": 0}
    assert WEEK_MS - 10_000 < agent.left_ms("state") <= WEEK_MS


def test_one_hash(agent: Agent) -> None:
    """Five fields, the status among them, are fields of one hash: each is read and written without the others."""
    names = ("status", "task", "done", "failed", "model")
    agent.change(*[put(name, name) for name in names])
    assert {name.rpartition("}:")[2] for name in agent.names()} == {"state", "ops"}
    state = agent.keys.key("state")
    assert agent.store.execute("TYPE", state) == b"hash"
    assert sorted(agent.store.execute("HKEYS", state)) == sorted(name.encode() for name in names)
    agent.change(put("status", "idle"))
    assert agent.store.execute("HMGET", state, "status", "model") == [b'"idle"', b'"model"']


def test_bytes_stay(agent: Agent) -> None:
    """A value is kept byte for byte."""
    for value in (b"\xff\x00\n", b"1.0", b"[]", b"9007199254740993"):
        agent.change(FieldRow("f", "set", value))
        assert agent.store.execute("HGET", agent.keys.key("state"), "f") == value


def test_sent_twice(agent: Agent) -> None:
    """A repeat changes nothing, and is answered as the first call was, whatever came in between."""
    assert agent.change(bump("n", 5), op="mine") == ("ok", (b"5",))
    agent.change(put("n", 100))
    before = agent.snapshot()
    assert agent.change(bump("n", 5), op="mine") == ("duplicate", (b"5",))
    assert agent.snapshot() == before


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        ([put("new", 1), bump("text", 1)], ("number", (b"text",))),
        ([put("new", 1), bump("float", 1)], ("number", (b"float",))),
        ([put("new", 1), bump("most", 1)], ("number", (b"most",))),
        ([put("new", 1), bump("beyond", -1)], ("number", (b"beyond",))),
        ([put("text", "x"), put("new", 1)], ("full", ())),
    ],
)
def test_refused(agent: Agent, rows: list[FieldRow], answer: tuple[str, tuple[bytes, ...]]) -> None:
    """What is no whole number, a sum that would not be exact, or a field too many: none of the rows is written."""
    agent.change(put("text", "a"), put("float", 1.5), put("most", MOST), put("beyond", MOST + 2))
    before = agent.snapshot()
    assert agent.change(*rows, most=4) == answer
    assert agent.snapshot() == before
    assert agent.change(put("text", "b"), most=4).status == "ok"


def test_the_lock_that_is_shown(agent: Agent) -> None:
    """Who shows a lock that somebody else has by now changes nothing; its owner does, and so does who shows none."""
    task = task_id()
    lock = f"exec:{task}"
    old = agent.claim(lock, task, "10").value
    assert agent.change(put("by", "old"), shown=(lock, old)).status == "ok"
    new = agent.claim(lock, task, "11").value
    before = agent.snapshot()
    assert agent.change(put("by", "late"), shown=(lock, old)) == ("fenced", (new.encode(),))
    agent.lapse(lock)
    assert agent.change(put("by", "late"), shown=(lock, new)) == ("fenced", (b"",))
    assert agent.fields() == {"by": "old"}
    assert before[agent.keys.key("state")] == agent.snapshot()[agent.keys.key("state")]
    assert agent.change(put("by", "anybody")).status == "ok"


def test_occupied(agent: Agent) -> None:
    """While a task holds the agent alone, nothing else changes its state, under a lock or without; the holder does."""
    task, other = task_id(), task_id()
    held = agent.claim("exec", task).value
    lock = agent.claim(f"exec:{other}", other).value
    before = agent.snapshot()
    for shown in (("", ""), (f"exec:{other}", lock)):
        status, (value, left_ms) = agent.change(put("by", "other"), shown=shown)
        assert (status, value) == ("occupied", held.encode())
        assert 0 < int(left_ms) <= 60_000
    assert agent.snapshot() == before
    assert agent.change(put("by", "holder"), shown=("exec", held)).status == "ok"
    agent.lapse("exec")
    assert agent.change(put("by", "other")).status == "ok"


_field = st.sampled_from(["a", "b", "c"])
_number = st.integers(-MOST, MOST)
_row = st.one_of(
    st.builds(put, _field, st.one_of(_number, st.text(max_size=3), st.none())), st.builds(bump, _field, _number)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.tuples(_row, st.booleans()), max_size=12))
def test_as_a_dictionary(agent: Agent, calls: list[tuple[FieldRow, bool]]) -> None:
    """Any changes, some of them sent twice, leave what they leave in a dictionary."""
    agent.store.execute("DEL", agent.keys.key("state"))
    model: dict[str, object] = {}
    for row, twice in calls:
        agent._ops += 1
        op = f"m{agent._ops}"
        answer = agent.change(row, op=op)
        held = model.get(row.field, 0)
        if row.mode == "set":
            model[row.field] = json.loads(row.value)
            assert tuple(answer) == ("ok", (b"",))
        elif isinstance(held, int) and abs(held + int(row.value)) <= MOST:
            model[row.field] = held + int(row.value)
            assert tuple(answer) == ("ok", (str(model[row.field]).encode(),))
        else:
            assert tuple(answer) == ("number", (row.field.encode(),))
        if twice and answer.status == "ok":
            assert agent.change(row, op=op) == ("duplicate", answer.rest)
    assert agent.fields() == model
