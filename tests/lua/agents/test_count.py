"""Counters of attempts: added once per batch, in the minute of the server, for a bounded number of names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from orchestrator.agents.timings import MAX_NAMES, OTHER, Timings, sum_cells

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.both_servers


def stored(pool: Pool, minute: int | None = None) -> dict[str, Timings]:
    """What one minute has, by agent and skill."""
    minute = pool.now_ms // 60_000 if minute is None else minute
    flat = pool.execute("HGETALL", pool.keys.timings(minute))
    return {
        name.decode(): sum_cells([msgspec.msgpack.decode(packed)])
        for name, packed in zip(flat[::2], flat[1::2], strict=True)
    }


def test_adds_up(pool: Pool) -> None:
    """Batches of several workers add up within a minute, and begin again in the next."""
    pool.register("w1")
    pool.register("w2")
    first = pool.now_ms // 60_000
    assert pool.count(("ed", "sum", [0, 2, 17, 30, 68, 2]), ("ed", "other", [1, 1]))
    assert pool.count(("ed", "sum", [0, 1, 1, 1, 17, 5, 67, 1]), worker="w2")
    found = stored(pool)
    assert found["ed sum"].outcomes == {"succeeded": 3, "failed": 1}
    assert (found["ed sum"].ran.count, found["ed sum"].ran.total_ms) == (3, 35)
    assert found["ed other"].outcomes == {"failed": 1}
    pool.sleep(60_000)
    pool.count(("ed", "sum", [0, 1]), batch=2)
    assert stored(pool)["ed sum"].attempts == 1
    assert stored(pool, first)["ed sum"].attempts == 4


def test_sent_twice(pool: Pool) -> None:
    """A batch whose reply was lost is added once."""
    pool.register()
    for _ in range(2):
        assert pool.count(("ed", "sum", [0, 1]))
    pool.count(("ed", "sum", [0, 1]), batch=2)
    assert stored(pool)["ed sum"].attempts == 2


def test_unknown_worker(pool: Pool) -> None:
    """A worker that is not registered adds nothing, and leaves no record."""
    assert not pool.count(("ed", "sum", [0, 1]))
    assert pool.names() == []


def test_more_names_than_allowed(pool: Pool) -> None:
    """Names beyond the limit are counted together; a name of yesterday makes room."""
    pool.register()
    rows = [(f"a{number:03}", "sum", [0, 1]) for number in range(MAX_NAMES)]
    assert pool.count(*rows)
    pool.count(("late", "sum", [0, 1]), ("later", "sum", [1, 1]), ("a000", "sum", [0, 1]), batch=2)
    found = stored(pool)
    assert found[f"{OTHER} {OTHER}"].outcomes == {"succeeded": 1, "failed": 1}
    assert found["a000 sum"].attempts == 2
    assert len(found) == MAX_NAMES + 1
    pool.sleep(1441 * 60_000)
    pool.register()
    pool.count(("late", "sum", [0, 1]), batch=3)
    assert list(stored(pool)) == ["late sum"]
    assert len(pool.members(pool.keys.timed)) == MAX_NAMES


def test_lifetime_and_size(pool: Pool) -> None:
    """A minute is kept for a day; a name costs it less than 150 bytes."""
    pool.register()
    cells = [0, 900, 1, 30, 2, 3, 16, 40_000, 17, 90_000]
    cells += [value for bucket in (*range(36, 42), *range(70, 76)) for value in (bucket, 150)]
    pool.count(*[(f"agent-{number:03}", "summarise", cells) for number in range(100)])
    key = pool.keys.timings(pool.now_ms // 60_000)
    assert 86_460 <= pool.execute("TTL", key) <= 86_520
    assert 86_460 <= pool.execute("TTL", pool.keys.timed) <= 86_520
    assert pool.execute("MEMORY", "USAGE", key, "SAMPLES", 0) / 100 < 150
