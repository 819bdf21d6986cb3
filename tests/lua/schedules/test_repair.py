"""lua/schedules/repair.lua: schedules are listed as their records say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.lua.pool import Pool
    from tests.lua.schedules.schedule_pool import SchedulePool

pytestmark = pytest.mark.every_server


def test_sound(pool: Pool, schedule_pool: SchedulePool) -> None:
    """What is listed as it should be is no finding."""
    schedule_pool.put("a", at=500)
    schedule_pool.put("b", at="inf")
    schedule_pool.put("c", at=600)
    schedule_pool.pause("c")
    with pool.unchanged():
        assert schedule_pool.repair("a", "b", "c", "unknown") == []


def test_lost(pool: Pool, schedule_pool: SchedulePool) -> None:
    """One that is listed nowhere, or at another time, is listed again, and supervisors hear of it."""
    schedule_pool.put("a", at=500)
    schedule_pool.put("b", at=600)
    schedule_pool.put("c", at=700)
    schedule_pool.pause("c")
    pool.execute("DEL", pool.keys.schedules)
    pool.execute("ZADD", pool.keys.schedules, 9000, "b")
    pool.notifications()
    with pool.unchanged():
        assert schedule_pool.repair("a", "b", "c", repair=False) == ["lost-schedule"] * 3
    assert schedule_pool.repair("a", "b", "c") == ["lost-schedule"] * 3
    assert schedule_pool.scores() == {"a": "500", "b": "600", "c": "inf"}
    assert "schedules" in pool.notifications()
    assert schedule_pool.repair("a", "b", "c") == []


def test_gone(pool: Pool, schedule_pool: SchedulePool) -> None:
    """One that is listed and has no record leaves the list."""
    pool.execute("ZADD", pool.keys.schedules, 9, "a")
    with pool.unchanged():
        assert schedule_pool.repair("a", repair=False) == ["gone-schedule"]
    assert schedule_pool.repair("a") == ["gone-schedule"]
    assert schedule_pool.scores() == {}


@pytest.mark.parametrize(
    "damage", [("HDEL", "plan"), ("HDEL", "next"), ("HSET", "next", "soon"), ("HSET", "next", "-5")]
)
def test_damaged(pool: Pool, schedule_pool: SchedulePool, damage: tuple[str, ...]) -> None:
    """A record that nobody can work with is deleted."""
    schedule_pool.put("a", at=500)
    pool.execute(damage[0], pool.keys.schedule("a"), *damage[1:])
    assert schedule_pool.repair("a") == ["damaged-schedule"]
    assert (schedule_pool.record("a"), schedule_pool.scores()) == ({}, {})


def test_other_types(pool: Pool, schedule_pool: SchedulePool) -> None:
    """Where another type lies nothing is touched."""
    pool.execute("SET", pool.keys.schedule("a"), "text")
    pool.execute("ZADD", pool.keys.schedules, 9, "a")
    with pool.unchanged():
        assert schedule_pool.repair("a") == []
    pool.execute("DEL", pool.keys.schedules)
    pool.execute("SET", pool.keys.schedules, "text")
    with pool.unchanged():
        assert schedule_pool.repair("a", "b") == []
