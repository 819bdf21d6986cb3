"""lua/tasks/check_keys.lua: keys hold what they should, and go away if they should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_sound_keys(pool: Pool) -> None:
    """What has a lifetime keeps it, what may stay stays, what is not there is no finding."""
    pool.register()
    with pool.unchanged():
        assert pool.check_keys(("agent:ed", "hash", 5), ("agents", "zset", 0), ("dead", "zset", 5)) == []


def test_what_would_stay_for_ever(pool: Pool) -> None:
    """It gets the lifetime that is named."""
    pool.register()
    pool.execute("PERSIST", pool.keys.agent("ed"))
    with pool.unchanged():
        assert pool.check_keys(("agent:ed", "hash", 77), repair=False) == [("agent:ed", "no-lifetime")]
    assert pool.check_keys(("agent:ed", "hash", 77)) == [("agent:ed", "no-lifetime")]
    assert pool.ttl_s(pool.keys.agent("ed")) == 77
    assert pool.check_keys(("agent:ed", "hash", 77)) == []
    assert pool.stats()["repaired"] == 1


@pytest.mark.parametrize(("lived_s", "left_s"), [(None, 30 * 86_400), (100, 100)])
def test_another_type(pool: Pool, lived_s: int | None, left_s: int) -> None:
    """It is renamed once, and lives for 30 days or as long as before. Twin: a look at it changes nothing."""
    pool.execute("SET", pool.keys.queues, "x")
    if lived_s is not None:
        pool.execute("EXPIRE", pool.keys.queues, lived_s)
    with pool.unchanged():
        assert pool.check_keys(("queues", "set", 0), repair=False) == [("queues", "wrong-type")]
    assert pool.check_keys(("queues", "set", 0), ("queues", "set", 0)) == [("queues", "wrong-type")]
    (renamed,) = [name for name in pool.names() if ":mistyped:" in name]
    assert renamed == f"{pool.keys.root}:mistyped:queues:{pool.now_us}"
    assert pool.execute("GET", renamed) == b"x"
    assert left_s - 2 <= pool.ttl_s(renamed) <= left_s
    assert pool.execute("EXISTS", pool.keys.queues) == 0
    assert pool.stats()["repaired"] == 1
    kept = renamed.removeprefix(f"{pool.keys.root}:")
    with pool.unchanged():
        assert pool.check_keys(("queues", "set", 0), (kept, "any", 5)) == []


def test_a_key_that_guards(pool: Pool) -> None:
    """Without the key of the stops everything would start: it stays, for a person to look at."""
    pool.execute("SET", pool.keys.desired, "x")
    with pool.unchanged():
        assert pool.check_keys(("desired", "hash", 0), guards=True) == [("desired", "guarded-type")]
