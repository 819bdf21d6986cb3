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


def test_another_type(pool: Pool) -> None:
    """It is found and left to a person."""
    pool.execute("SET", pool.keys.queues, "x", "EX", 100)
    with pool.unchanged():
        assert pool.check_keys(("queues", "set", 0)) == [("queues", "wrong-type")]
