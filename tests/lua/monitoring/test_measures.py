"""The scripts of a scrape: what they count, on every server of the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import DrainQueue, PauseAgent, Start, Stop
from orchestrator.monitoring.scripts import ReadyPlace, measure_agents, measure_pool, measure_queues
from tests.lua.pool import Team, rank, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_an_empty_pool(pool: Pool) -> None:
    """Nothing is there, and nothing is written."""
    found = pool.call(measure_pool(pool.keys, now_us=str(pool.now_ms * 1000)))
    assert (found.now_ms, found.leader, found.counters, found.agents) == (pool.now_ms, "", {}, [])
    assert (found.scheduled, found.dead, found.commands, found.next_fire_ms) == (0, 0, 0, None)
    place = ReadyPlace("skill", "sum")
    assert pool.call(measure_queues(pool.keys, places=[place]))[place] == (0, 0)
    assert pool.call(measure_agents(pool.keys, agents=["ed"]))["ed"] == (0, b"", 0, 0, 0)
    assert pool.names() == []


def test_a_pool(pool: Pool) -> None:
    """Sizes, counters and streams."""
    pool.register("w1", slots=2)
    pool.put(row(), row(delay_ms=50), row(queue="agent:ed"))
    pool.append(Stop())
    found = pool.call(measure_pool(pool.keys, now_us=str(pool.now_ms * 1000)))
    assert found.counters["submitted"] == 3
    assert (found.scheduled, found.workers, found.agents, found.commands) == (1, 1, ["ed"], 1)


def test_active_stops(pool: Pool) -> None:
    """Stops and pauses by slot until they end; stopped sessions as a number, because there may be thousands."""
    for command in (
        Stop(),
        Stop(skill="sum"),
        Stop(session="s-1"),
        Stop(session="s-2"),
        PauseAgent(agent="ed"),
        DrainQueue(queue="skill:sum"),
    ):
        pool.append(command)
    found = pool.call(measure_pool(pool.keys))
    assert (set(found.stops), found.stopped_sessions) == ({"stop:all", "stop:skill:sum", "pause:agent:ed"}, 2)
    for start in (Start(), Start(session="s-1")):
        pool.append(start)
    found = pool.call(measure_pool(pool.keys))
    assert (set(found.stops), found.stopped_sessions) == ({"stop:skill:sum", "pause:agent:ed"}, 1)
    pool.execute("DEL", pool.keys.desired)
    pool.execute("SET", pool.keys.desired, "damaged")
    found = pool.call(measure_pool(pool.keys))
    assert (found.stops, found.stopped_sessions) == (frozenset(), 0)


def test_entries_of_an_agent(pool: Pool) -> None:
    """Entries that a worker has read run; the others wait. Parked tasks have no slot."""
    pool.register("w1", Team(), slots=3)
    pool.put(*[row() for _ in range(3)], row(queue="agent:ed", skill="other", priority=1))
    pool.assign("ed")
    pool.assign("ed")
    pool.read("w1", limit=2)
    assert pool.call(measure_agents(pool.keys, agents=["ed", "bob"])) == {
        "ed": (3, b"sum", 1, 2, 1),
        "bob": (0, b"", 0, 0, 0),
    }


def age_ms(pool: Pool, queue: str) -> int:
    """How long the oldest task of a queue is ready."""
    place = ReadyPlace.of_queue(queue)
    return pool.now_ms - pool.call(measure_queues(pool.keys, places=[place]))[place].since_ms


def test_ages(pool: Pool) -> None:
    """The age is that of the first task of the highest or of the lowest priority, whichever waits longer."""
    pool.put(row(priority=3))
    pool.sleep(1000)
    assert age_ms(pool, "skill:sum") == 1000
    pool.put(row(priority=1), row(priority=3))
    pool.sleep(500)
    assert age_ms(pool, "skill:sum") == 1500
    # With aging the record has what the priority adds; the first task is at most nine levels younger than the oldest.
    pool.put(row(queue="agent:ed", skill="sum", rank=rank(3, 60_000)))
    pool.sleep(200)
    pool.put(row(queue="agent:ed", skill="sum", rank=rank(1, 60_000)))
    pool.sleep(100)
    assert age_ms(pool, "agent:ed") == 100
