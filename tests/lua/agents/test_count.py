"""Counters of attempts: added once per batch, in the minute of the server, for a bounded number of names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from orchestrator.agents.timings import MAX_NAMES, OTHER, RECENT_RUNS, RECENT_US, Timings, sum_cells

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


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


def totals(pool: Pool) -> dict[str, dict[int, int]]:
    """The cells since the first attempt, by agent and skill."""
    flat = pool.execute("HGETALL", pool.keys.attempt_totals)
    cells = {name.decode(): msgspec.msgpack.decode(packed) for name, packed in zip(flat[::2], flat[1::2], strict=True)}
    return {name: dict(zip(each[::2], each[1::2], strict=True)) for name, each in cells.items()}


class TestTotals:
    """What a scrape reads: it never steps back while a name is counted."""

    def test_outlive_the_minute(self, pool: Pool) -> None:
        """Totals add up over minutes, workers and restarts."""
        pool.register("w1")
        pool.count(("ed", "sum", [0, 2, 17, 30, 68, 2]))
        pool.sleep(180_000)
        pool.register("w2")
        pool.count(("ed", "sum", [0, 1, 1, 1, 17, 5, 67, 1]), worker="w2")
        pool.count(("ed", "sum", [0, 1, 1, 1, 17, 5, 67, 1]), worker="w2")  # sent twice
        counted = {cell: count for cell, count in totals(pool)["ed sum"].items() if not 18 <= cell <= 20}
        assert counted == {0: 3, 1: 1, 17: 35, 67: 1, 68: 2}
        assert 29 * 86_400 < pool.execute("TTL", pool.keys.attempt_totals) <= 30 * 86_400

    def test_recent_running_time(self, pool: Pool) -> None:
        """An attempt counts half after ten minutes, so that the mean follows a handler that has changed."""
        pool.register()
        pool.count(("ed", "sum", [0, 100, 17, 1000, 68, 100]))

        def mean_ms() -> float:
            cells = totals(pool)["ed sum"]
            return cells[RECENT_US] / cells[RECENT_RUNS]

        assert mean_ms() == 10
        pool.sleep(600_000)
        pool.register()
        pool.count(("ed", "sum", [0, 50, 17, 5000, 71, 50]), batch=2)
        assert mean_ms() == (1000 / 2 + 5000) / (100 / 2 + 50)
        pool.sleep(7_200_000)
        pool.register()
        pool.count(("ed", "sum", [0, 1, 17, 5, 67, 1]), batch=3)
        assert 5 < mean_ms() < 7
        pool.count(("ed", "sum", [8, 1]), batch=4)
        assert 5 < mean_ms() < 7

    def test_a_name_that_is_given_away(self, pool: Pool) -> None:
        """The totals of a name of yesterday go with it, so that there are never more names than allowed."""
        pool.register()
        pool.count(*[(f"a{number:03}", "sum", [0, 1]) for number in range(MAX_NAMES)])
        pool.sleep(1441 * 60_000)
        pool.register()
        pool.count(("late", "sum", [0, 1]), batch=2)
        assert len(totals(pool)) == MAX_NAMES
        assert "a000 sum" not in totals(pool)

    def test_bounded(self, pool: Pool) -> None:
        """Totals keep as many names as the minutes, also beside programs that know of no totals."""
        pool.register()
        pool.count(*[(f"a{number:03}", "sum", [0, 1]) for number in range(MAX_NAMES)])
        pool.count(("late", "sum", [0, 1]), batch=2)
        assert len(totals(pool)) == MAX_NAMES + 1
        assert totals(pool)[f"{OTHER} {OTHER}"] == {0: 1, 18: 0, 19: 0, 20: pool.now_ms}
        pool.sleep(1441 * 60_000)
        pool.register()
        pool.count(("late", "sum", [0, 1]), batch=3)
        assert "a000 sum" not in totals(pool)
        # An older program forgets the names of yesterday, and knows others.
        pool.execute("ZREMRANGEBYRANK", pool.keys.timed, 0, 99)
        pool.count(("later", "sum", [0, 1]), batch=4)
        assert len(totals(pool)) <= MAX_NAMES + 1
        assert totals(pool)["later sum"][0] == 1
