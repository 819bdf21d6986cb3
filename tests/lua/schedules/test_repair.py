"""lua/schedules/repair.lua: schedules are listed as their records say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.lua.pool import Pool
    from tests.lua.schedules.shelf import Shelf

pytestmark = pytest.mark.both_servers


def test_sound(pool: Pool, shelf: Shelf) -> None:
    """What is listed as it should be is no finding."""
    shelf.put("a", at=500)
    shelf.put("b", at="inf")
    shelf.put("c", at=600)
    shelf.pause("c")
    with pool.unchanged():
        assert shelf.repair("a", "b", "c", "unknown") == []


def test_lost(pool: Pool, shelf: Shelf) -> None:
    """One that is listed nowhere, or at another time, is listed again, and supervisors hear of it."""
    shelf.put("a", at=500)
    shelf.put("b", at=600)
    shelf.put("c", at=700)
    shelf.pause("c")
    pool.execute("DEL", pool.keys.schedules)
    pool.execute("ZADD", pool.keys.schedules, 9000, "b")
    pool.notifications()
    with pool.unchanged():
        assert shelf.repair("a", "b", "c", repair=False) == ["lost-schedule"] * 3
    assert shelf.repair("a", "b", "c") == ["lost-schedule"] * 3
    assert shelf.scores() == {"a": "500", "b": "600", "c": "inf"}
    assert "schedules" in pool.notifications()
    assert shelf.repair("a", "b", "c") == []


def test_gone(pool: Pool, shelf: Shelf) -> None:
    """One that is listed and has no record leaves the list."""
    pool.execute("ZADD", pool.keys.schedules, 9, "a")
    with pool.unchanged():
        assert shelf.repair("a", repair=False) == ["gone-schedule"]
    assert shelf.repair("a") == ["gone-schedule"]
    assert shelf.scores() == {}


@pytest.mark.parametrize(
    "damage", [("HDEL", "plan"), ("HDEL", "next"), ("HSET", "next", "soon"), ("HSET", "next", "-5")]
)
def test_damaged(pool: Pool, shelf: Shelf, damage: tuple[str, ...]) -> None:
    """A record that nobody can work with is deleted."""
    shelf.put("a", at=500)
    pool.execute(damage[0], pool.keys.schedule("a"), *damage[1:])
    assert shelf.repair("a") == ["damaged-schedule"]
    assert (shelf.record("a"), shelf.scores()) == ({}, {})


def test_other_types(pool: Pool, shelf: Shelf) -> None:
    """Where another type lies nothing is touched."""
    pool.execute("SET", pool.keys.schedule("a"), "text")
    pool.execute("ZADD", pool.keys.schedules, 9, "a")
    with pool.unchanged():
        assert shelf.repair("a") == []
    pool.execute("DEL", pool.keys.schedules)
    pool.execute("SET", pool.keys.schedules, "text")
    with pool.unchanged():
        assert shelf.repair("a", "b") == []
