"""lua/schedules: put, pause, resume, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.schedules.scripts import PutStatus, SwitchStatus

if TYPE_CHECKING:
    from tests.lua.pool import Pool
    from tests.lua.schedules.schedule_pool import SchedulePool

pytestmark = pytest.mark.every_server


def test_put(pool: Pool, schedule_pool: SchedulePool) -> None:
    """A new one is listed at its next fire time; supervisors hear of the one that comes first, and of no other."""
    assert schedule_pool.put("b", at=500, anchor=7) is PutStatus.OK
    assert schedule_pool.record("b") == {
        "plan": '{"skill":"sum","args":{},"every_ms":1000}',
        "digest": "d1",
        "next": "500",
        "anchor": "7",
    }
    assert schedule_pool.put("c", at=600) is PutStatus.OK
    assert schedule_pool.put("a", at=400) is PutStatus.OK
    assert schedule_pool.scores() == {"a": "400", "b": "500", "c": "600"}
    assert pool.notifications() == ["schedules", "schedules"]


def test_put_twice(pool: Pool, schedule_pool: SchedulePool) -> None:
    """The same definition again changes nothing, whatever the caller saw, not even the next fire time."""
    schedule_pool.put(at=500)
    with pool.unchanged():
        assert schedule_pool.put(at=900) is PutStatus.SAME
        assert schedule_pool.put(at=900, before="d0") is PutStatus.SAME


def test_put_over_another(pool: Pool, schedule_pool: SchedulePool) -> None:
    """Another definition takes the place of the one that the caller saw, and of no other."""
    schedule_pool.put(at=500)
    with pool.unchanged():
        assert schedule_pool.put(at=900, digest="d2") is PutStatus.CHANGED
        assert schedule_pool.put(at=900, digest="d2", before="d0") is PutStatus.CHANGED
    assert schedule_pool.put(at=900, digest="d2", before="d1", anchor=3) is PutStatus.OK
    assert (schedule_pool.record()["next"], schedule_pool.record()["anchor"], schedule_pool.scores()) == (
        "900",
        "3",
        {"n": "900"},
    )
    assert schedule_pool.put(at="", digest="d3", before="d2", anchor=9) is PutStatus.OK
    assert (schedule_pool.record()["next"], schedule_pool.record()["anchor"], schedule_pool.record()["digest"]) == (
        "900",
        "3",
        "d3",
    )


def test_pause_and_resume(pool: Pool, schedule_pool: SchedulePool) -> None:
    """A paused one is listed behind all times; resumed it waits for the time that the caller computed."""
    assert schedule_pool.pause() is SwitchStatus.UNKNOWN
    assert schedule_pool.resume(at=5) is SwitchStatus.UNKNOWN
    schedule_pool.put(at=500)
    with pool.unchanged():
        assert schedule_pool.resume(at=5) is SwitchStatus.ALREADY
    assert schedule_pool.pause() is SwitchStatus.DONE
    assert schedule_pool.scores() == {"n": "inf"}
    assert schedule_pool.record()["paused"] == str(pool.now_ms)
    pool.sleep(10)
    with pool.unchanged():
        assert schedule_pool.pause() is SwitchStatus.ALREADY
        assert schedule_pool.names() == []
        assert schedule_pool.resume(at=900, before="d0") is SwitchStatus.CHANGED
    pool.notifications()
    assert schedule_pool.resume(at=900) is SwitchStatus.DONE
    assert (schedule_pool.scores(), "paused" in schedule_pool.record()) == ({"n": "900"}, False)
    assert pool.notifications() == ["schedules"]


def test_put_over_a_paused_one(schedule_pool: SchedulePool) -> None:
    """It stays paused, and keeps the time that it is resumed from."""
    schedule_pool.put(at=500)
    schedule_pool.pause()
    assert schedule_pool.put(at=900, digest="d2", before="d1") is PutStatus.OK
    assert (schedule_pool.scores(), schedule_pool.record()["next"], "paused" in schedule_pool.record()) == (
        {"n": "inf"},
        "900",
        True,
    )


def test_delete(pool: Pool, schedule_pool: SchedulePool) -> None:
    """Record and place go; a second call finds nothing."""
    schedule_pool.put(at=500)
    assert schedule_pool.delete()
    assert (schedule_pool.record(), schedule_pool.scores()) == ({}, {})
    with pool.unchanged():
        assert not schedule_pool.delete()
