"""Indices of simulations: of each state the newest change counts, in any order of arrival, and nothing else remains."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.simulations import scripts
from orchestrator.simulations.scripts import ListingRow, PushReply
from orchestrator.store.key_kinds import SCOPE_KEYS
from tests.lua.keyspace import clear
from tests.lua.pool import START_US
from tests.lua.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server

TTL_MS = 1_000_000
HOUR_MS = 3_600_000


def listed(state: str, number: int, step: int = 1, type_: str = "", cell: str = "", *, life_ms: int = 1) -> ListingRow:
    """A row that lists a state of agent ed."""
    return ListingRow("ed", state, number, 1, step, type_, cell, 1.5, -2.0, START_US // 1000 + life_ms)


def removed(state: str, number: int) -> ListingRow:
    """A row that removes one."""
    return ListingRow("ed", state, number, 0, 0, "", "", 0.0, 0.0, 0)


class Run(Scope):
    """The indices of one simulation."""

    def index(self, *rows: ListingRow) -> int:
        """Run index."""
        return self.call(scripts.index(self.keys, rows=rows, ttl_ms=TTL_MS))

    def push(self, *texts: bytes, op: str, cap: int = 3) -> PushReply:
        """Run push."""
        return self.call(scripts.push(self.keys, op=op, entity="e%20", texts=texts, cap=cap, ttl_ms=TTL_MS))

    def entries(self) -> dict[str, set[tuple[str, int]] | set[str]]:
        """The members of each index, with steps where there are any."""
        found: dict[str, set[tuple[str, int]] | set[str]] = {}
        for name in self.names():
            suffix = name.removeprefix(f"{self.keys.root}:")
            if suffix.startswith("place:"):
                found[suffix] = {member.decode() for member in self.store.execute("SMEMBERS", name)}
            elif suffix == "states" or suffix.startswith("type:"):
                flat = self.store.execute("ZRANGE", name, 0, -1, "WITHSCORES")
                found[suffix] = {(m.decode(), int(float(s))) for m, s in zip(flat[::2], flat[1::2], strict=True)}
        return found


@pytest.fixture
def run(redis_server: RedisServer, prefix: str) -> Iterator[Run]:
    """A simulation without states."""
    run = Run(redis_server.url, prefix, "sim", "run 1")
    yield run
    run.close()


def test_listed(run: Run) -> None:
    """A state enters the index of steps, of its type and of its cell; its agent those of agents, at its last step."""
    assert run.index(listed("b", 1, 7, "wolf", "0_-1"), listed("a", 1, 3, "wolf"), listed("c", 1, 5)) == 3
    assert run.entries() == {
        "states": {("ed a", 3), ("ed b", 7), ("ed c", 5)},
        "type:wolf:states": {("ed a", 3), ("ed b", 7)},
        "type:wolf:agents": {("ed", 7)},
        "place:0_-1": {"ed b"},
    }
    assert run.store.execute("ZSCORE", run.keys.key("agents"), "ed") == b"7"
    packed = run.store.execute("HGET", run.keys.key("of"), "ed b")
    assert msgspec.msgpack.decode(packed) == [1, 7, "wolf", "0_-1", 1.5, -2]


def test_changed(run: Run) -> None:
    """A newer change moves a state between indices and leaves nothing behind; an older or equal one changes nothing."""
    run.index(listed("a", 5, 3, "wolf", "0_0"))
    before = run.snapshot()
    assert run.index(listed("a", 5, 4, "sheep"), listed("a", 4, 4, "sheep"), removed("a", 5)) == 0
    assert run.snapshot() == before
    assert run.index(listed("a", 6, 4, "sheep", "1_1")) == 1
    assert run.entries() == {
        "states": {("ed a", 4)},
        "type:sheep:states": {("ed a", 4)},
        "type:sheep:agents": {("ed", 4)},
        "place:1_1": {"ed a"},
    }
    assert run.index(removed("a", 7)) == 1
    assert run.entries() == {}
    assert not run.store.execute("EXISTS", run.keys.key("agents"), run.keys.key("counts"))


def test_an_agent_leaves_with_its_last_state(run: Run) -> None:
    """An agent stays while it has a state, and so in each type; a repeat counts once; a lost count keeps the agent."""
    run.index(listed("a", 1, 1, "wolf"), listed("b", 1, 2, "wolf"), listed("c", 1, 3))
    run.index(listed("a", 1, 1, "wolf"), removed("b", 2), removed("b", 2), removed("x", 1))
    assert run.entries()["type:wolf:agents"] == {("ed", 2)}
    run.index(removed("a", 2))
    assert "type:wolf:agents" not in run.entries()
    assert run.store.execute("ZSCORE", run.keys.key("agents"), "ed") == b"3"
    run.store.execute("DEL", run.keys.key("counts"))
    run.index(listed("d", 1, 4))
    run.index(removed("d", 2))
    assert run.store.execute("ZSCORE", run.keys.key("agents"), "ed") == b"4"


def test_late_change(run: Run) -> None:
    """A change that arrives after the removal of its state lists nothing, for an hour; then the number is forgotten."""
    run.index(removed("a", 2), listed("b", 9))
    assert run.index(listed("a", 1)) == 0
    run.sleep(HOUR_MS - 1)
    run.index(listed("b", 10))
    assert run.index(listed("a", 1)) == 0
    run.sleep(1)
    run.index(listed("b", 11))
    assert run.store.execute("HKEYS", run.keys.key("of")) == [b"ed b"]
    assert not run.store.execute("EXISTS", run.keys.key("gone"))
    assert run.index(listed("a", 1)) == 1


def test_listed_again(run: Run) -> None:
    """A state that is listed again after its removal stays when the number of the removal is forgotten."""
    run.index(listed("a", 1), removed("a", 2), listed("a", 3))
    run.sleep(HOUR_MS)
    run.index(listed("b", 1))
    assert run.entries() == {"states": {("ed a", 1), ("ed b", 1)}}
    assert run.index(listed("a", 3)) == 0


def test_lifetime(run: Run) -> None:
    """Each key lives as long as the longest-lived state in it, at least for the lifetime of a simulation."""
    run.index(listed("a", 1, 1, "wolf", "0_0", life_ms=5 * TTL_MS), listed("b", 1, 1, "sheep"))
    run.index(listed("c", 1, 1, "wolf", "0_0"))
    for suffix, most in {
        "states": 5, "agents": 5, "of": 5, "type:wolf:states": 5, "type:wolf:agents": 5, "place:0_0": 5,
        "type:sheep:states": 1,
    }.items():  # fmt: skip
        assert most * TTL_MS - 10_000 < run.left_ms(suffix) <= most * TTL_MS, suffix


def test_push(run: Run) -> None:
    """A buffer keeps the newest items up to its cap; a repeat appends nothing and tells the same."""
    assert run.push(b"1", b"2", op="a") == ("ok", 2, 0)
    assert run.push(b"\xff", b"4", op="b") == ("ok", 3, 1)
    before = run.snapshot()
    assert run.push(b"\xff", b"4", op="b") == ("duplicate", 3, 1)
    assert run.snapshot() == before
    assert run.store.execute("LRANGE", run.keys.key("buf:e%20"), 0, -1) == [b"2", b"\xff", b"4"]
    assert run.left_ms("buf:e%20") > TTL_MS - 10_000


def test_undeclared_keys(run: Run, redis_client: redis.Redis) -> None:
    """Everything that the scripts touch begins with the declared root, and stands in the table of keys."""
    marker, touched = f"{run.keys.root}:done", set[str]()
    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        run.index(listed("a", 1, 1, "wolf", "0_0"), listed("a", 2, 1, "sheep", "1_0"), removed("a", 3))
        run.push(b"1", op="a", cap=1)
        run.push(b"2", op="b", cap=1)
        redis_client.exists(marker)
        for seen in monitor.listen():
            if marker in seen["command"]:
                break
            if seen["client_type"] == "lua":
                touched |= {word for word in seen["command"].split(" ")[1:] if "{sim:" in word}
    suffixes = {key.removeprefix(f"{run.keys.root}:") for key in touched}
    known = [re.sub(r"\b[A-Z]+\b", "[^:]+", kind.suffix) for kind in SCOPE_KEYS]
    assert len(suffixes) > 8
    assert [suffix for suffix in suffixes if not any(re.fullmatch(one, suffix) for one in known)] == []


@dataclass
class Model:
    """The newest change of each state."""

    newest: dict[str, ListingRow] = field(default_factory=dict)

    def index(self, row: ListingRow) -> None:
        """Apply one row."""
        if row.state not in self.newest or self.newest[row.state].number < row.number:
            self.newest[row.state] = row

    def entries(self) -> dict[str, set[tuple[str, int]] | set[str]]:
        """The indices of the states that are listed."""
        found: dict[str, set[tuple[str, int]] | set[str]] = {}
        for row in self.newest.values():
            if row.listed:
                suffixes = ["states", *([f"type:{row.type}:states"] if row.type else [])]
                for suffix in suffixes:
                    found.setdefault(suffix, set()).add((f"ed {row.state}", row.step))  # type: ignore[arg-type]
                if row.cell:
                    found.setdefault(f"place:{row.cell}", set()).add(f"ed {row.state}")  # type: ignore[arg-type]
        return found


rows = st.builds(
    listed, st.sampled_from("abc"), st.integers(1, 6), st.integers(-2, 2),
    st.sampled_from(["", "wolf", "sheep"]), st.sampled_from(["", "0_0", "1_0"]),
) | st.builds(removed, st.sampled_from("abc"), st.integers(1, 6))  # fmt: skip


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(rows, min_size=1, max_size=3), max_size=12))
def test_model(run: Run, batches: list[list[ListingRow]]) -> None:
    """Random changes in random order leave exactly the entries of the newest change of each state."""
    clear(run.link, f"{run.keys.prefix}:")
    model = Model()
    for batch in batches:
        run.index(*batch)
        for row in batch:
            model.index(row)
        found = {suffix: members for suffix, members in run.entries().items() if not suffix.endswith(":agents")}
        assert found == model.entries()
        for type_ in ("", "wolf", "sheep"):
            part = f"type:{type_}:agents" if type_ else "agents"
            there = any(row.listed and type_ in ("", row.type) for row in model.newest.values())
            assert run.store.execute("ZCARD", run.keys.key(part)) == there, part
