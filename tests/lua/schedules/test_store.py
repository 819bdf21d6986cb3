"""lua/schedules: put, pause, resume, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.schedules.scripts import PutStatus, SwitchStatus

if TYPE_CHECKING:
    from tests.lua.pool import Pool
    from tests.lua.schedules.shelf import Shelf

pytestmark = pytest.mark.both_servers


def test_put(pool: Pool, shelf: Shelf) -> None:
    """A new one is listed at its next fire time; supervisors hear of the one that comes first, and of no other."""
    assert shelf.put("b", at=500, anchor=7) is PutStatus.OK
    assert shelf.record("b") == {
        "plan": '{"skill":"sum","args":{},"every_ms":1000}',
        "digest": "d1",
        "next": "500",
        "anchor": "7",
    }
    assert shelf.put("c", at=600) is PutStatus.OK
    assert shelf.put("a", at=400) is PutStatus.OK
    assert shelf.scores() == {"a": "400", "b": "500", "c": "600"}
    assert pool.notifications() == ["schedules", "schedules"]


def test_put_twice(pool: Pool, shelf: Shelf) -> None:
    """The same definition again changes nothing, whatever the caller saw, not even the next fire time."""
    shelf.put(at=500)
    with pool.unchanged():
        assert shelf.put(at=900) is PutStatus.SAME
        assert shelf.put(at=900, before="d0") is PutStatus.SAME


def test_put_over_another(pool: Pool, shelf: Shelf) -> None:
    """Another definition takes the place of the one that the caller saw, and of no other."""
    shelf.put(at=500)
    with pool.unchanged():
        assert shelf.put(at=900, digest="d2") is PutStatus.CHANGED
        assert shelf.put(at=900, digest="d2", before="d0") is PutStatus.CHANGED
    assert shelf.put(at=900, digest="d2", before="d1", anchor=3) is PutStatus.OK
    assert (shelf.record()["next"], shelf.record()["anchor"], shelf.scores()) == ("900", "3", {"n": "900"})
    assert shelf.put(at="", digest="d3", before="d2", anchor=9) is PutStatus.OK
    assert (shelf.record()["next"], shelf.record()["anchor"], shelf.record()["digest"]) == ("900", "3", "d3")


def test_pause_and_resume(pool: Pool, shelf: Shelf) -> None:
    """A paused one is listed behind all times; resumed it waits for the time that the caller computed."""
    assert shelf.pause() is SwitchStatus.UNKNOWN
    assert shelf.resume(at=5) is SwitchStatus.UNKNOWN
    shelf.put(at=500)
    with pool.unchanged():
        assert shelf.resume(at=5) is SwitchStatus.ALREADY
    assert shelf.pause() is SwitchStatus.DONE
    assert shelf.scores() == {"n": "inf"}
    assert shelf.record()["paused"] == str(pool.now_ms)
    pool.sleep(10)
    with pool.unchanged():
        assert shelf.pause() is SwitchStatus.ALREADY
        assert shelf.names() == []
        assert shelf.resume(at=900, before="d0") is SwitchStatus.CHANGED
    pool.notifications()
    assert shelf.resume(at=900) is SwitchStatus.DONE
    assert (shelf.scores(), "paused" in shelf.record()) == ({"n": "900"}, False)
    assert pool.notifications() == ["schedules"]


def test_put_over_a_paused_one(shelf: Shelf) -> None:
    """It stays paused, and keeps the time that it is resumed from."""
    shelf.put(at=500)
    shelf.pause()
    assert shelf.put(at=900, digest="d2", before="d1") is PutStatus.OK
    assert (shelf.scores(), shelf.record()["next"], "paused" in shelf.record()) == ({"n": "inf"}, "900", True)


def test_delete(pool: Pool, shelf: Shelf) -> None:
    """Record and place go; a second call finds nothing."""
    shelf.put(at=500)
    assert shelf.delete()
    assert (shelf.record(), shelf.scores()) == ({}, {})
    with pool.unchanged():
        assert not shelf.delete()
