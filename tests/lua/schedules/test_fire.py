"""lua/schedules: due and skip, and the fire that is a part of lua/tasks/submit.lua."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.schedules.model import FireOutcome
from orchestrator.schedules.scripts import DueSchedule, SkipStatus
from tests.lua.pool import row
from tests.lua.schedules.schedule_pool import PLAN, SchedulePool

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_nothing_is_due(pool: Pool, schedule_pool: SchedulePool) -> None:
    """Without schedules there is nothing to wait for; with one it says how long."""
    with pool.unchanged():
        assert schedule_pool.due() == (pool.now_ms, None, [])
    schedule_pool.put(at=pool.now_ms + 1500)
    schedule_pool.put("never", at="inf")
    with pool.unchanged():
        assert schedule_pool.due() == (pool.now_ms, 1.5, [])


def test_due(pool: Pool, schedule_pool: SchedulePool) -> None:
    """What is due comes with its definition, its time, and the state of its newest task."""
    at = pool.now_ms
    schedule_pool.put("a", at=at, anchor=7)
    schedule_pool.put("b", at=at + 1)
    with pool.unchanged():
        assert schedule_pool.due() == (at, 0.001, [DueSchedule("a", PLAN, at, 7, "", "")])
    first = row()
    assert schedule_pool.fire(first, name="a", due=at, following=at + 1) == ("created", "")
    pool.sleep(1)
    assert schedule_pool.due().schedules == [
        DueSchedule("a", PLAN, at + 1, 7, first.id, "ready"),
        DueSchedule("b", PLAN, at + 1, 0, "", ""),
    ]
    pool.execute("DEL", pool.keys.task(first.id))
    assert schedule_pool.due().schedules[0].state == ""


def test_due_is_bounded(pool: Pool, schedule_pool: SchedulePool) -> None:
    """One call looks at `limit`, those put aside not counted, and stops behind 1 MiB; it says that there is more."""
    for i in range(5):
        schedule_pool.put(f"n{i}", at=pool.now_ms - 10 + i)
    found = schedule_pool.due(limit=2)
    assert ([each.name for each in found.schedules], found.wait_s) == (["n0", "n1"], 0)
    found = schedule_pool.due("n0", "n1", limit=2)
    assert ([each.name for each in found.schedules], found.wait_s) == (["n2", "n3"], 0)
    found = schedule_pool.due("n0", "n1", "n2", "n3")
    assert ([each.name for each in found.schedules], found.wait_s) == (["n4"], None)
    for i in range(5):
        schedule_pool.put(f"n{i}", at="", plan=b"x" * 400_000, digest="d2", before="d1")
    found = schedule_pool.due()
    assert ([each.name for each in found.schedules], found.wait_s) == (["n0", "n1", "n2"], 0)


def test_the_record_is_believed(pool: Pool, schedule_pool: SchedulePool) -> None:
    """What the index has wrong is put right, and keeps nobody else waiting."""
    for name, at_ms in [("late", pool.now_ms + 5), ("paused", 1), ("odd", 1), ("fine", pool.now_ms)]:
        schedule_pool.put(name, at=at_ms)
    schedule_pool.pause("paused")
    pool.execute("HSET", pool.keys.schedule("odd"), "next", "soon")
    for name in ("late", "paused", "gone", "typed"):
        pool.execute("ZADD", pool.keys.schedules, 5, name)
    pool.execute("SET", pool.keys.schedule("typed"), "text")
    assert schedule_pool.names() == ["fine"]
    at = str(pool.now_ms)
    assert schedule_pool.scores() == {"fine": at, "late": str(pool.now_ms + 5), "odd": "inf", "paused": "inf"}


def test_fire(pool: Pool, schedule_pool: SchedulePool) -> None:
    """The task is there, the schedule waits for its next time and knows task, time and count: all in one call."""
    at = pool.now_ms
    schedule_pool.put(at=at - 5)
    pool.sleep(3)
    task = row(idem="k", digest="d")
    assert schedule_pool.fire(task, due=at - 5, fired=at - 1, following=at + 60, missed=4) == ("created", "")
    assert pool.state(task.id) == "ready"
    assert schedule_pool.scores() == {"n": str(at + 60)}
    found = schedule_pool.record()
    assert {name: found[name] for name in ("next", "task", "last", "at", "fired", "missed")} == {
        "next": str(at + 60),
        "task": task.id,
        "last": str(at - 1),
        "at": str(at + 3),
        "fired": "1",
        "missed": "4",
    }


def test_fire_twice(pool: Pool, schedule_pool: SchedulePool) -> None:
    """The same row again is the same task; another one for the same time is refused and changes nothing."""
    at = pool.now_ms
    schedule_pool.put(at=at)
    task = row()
    schedule_pool.fire(task, due=at, following=at + 60)
    with pool.unchanged():
        assert schedule_pool.fire(task, due=at, following=at + 60) == ("duplicate", task.id)
        assert schedule_pool.fire(row(), due=at, following=at + 60) == ("stale", "n")
        assert schedule_pool.fire(row(), due=at, following=at + 90) == ("stale", "n")


def test_fire_too_late(pool: Pool, schedule_pool: SchedulePool) -> None:
    """Of a schedule that was paused, moved or deleted meanwhile nothing is fired."""
    at = pool.now_ms
    schedule_pool.put(at=at)
    schedule_pool.pause()
    with pool.unchanged():
        assert schedule_pool.fire(row(), due=at, following=at + 60) == ("stale", "n")
    schedule_pool.resume(at=at + 10)
    with pool.unchanged():
        assert schedule_pool.fire(row(), due=at, following=at + 60) == ("stale", "n")
    schedule_pool.delete()
    with pool.unchanged():
        assert schedule_pool.fire(row(), due=at + 10, following=at + 60) == ("stale", "n")


def test_the_clock_steps_back(pool: Pool, schedule_pool: SchedulePool) -> None:
    """What was fired is not due again; the schedule waits until the clock has caught up."""
    at = pool.now_ms
    schedule_pool.put(at=at)
    schedule_pool.fire(row(), due=at, following=at + 60)
    pool.sleep(-3_600_000)
    found = schedule_pool.due()
    assert (found.schedules, found.wait_s) == ([], 3600.06)


def test_refused(pool: Pool, schedule_pool: SchedulePool) -> None:
    """A full queue, and a key that says something else, leave the schedule as it is: the caller writes down why."""
    at = pool.now_ms
    schedule_pool.put(at=at)
    (other,) = pool.put(row(idem="k", digest="d"))
    with pool.unchanged():
        assert SchedulePool(pool, cap=1).fire(row(), due=at, following=at + 60) == ("full", "skill:sum")
        assert schedule_pool.fire(row(idem="k", digest="e"), due=at, following=at + 60) == ("conflict", other)
        assert schedule_pool.fire(row(idem="k", digest="d"), due=at, following=at + 60) == ("duplicate", other)


def test_trigger(pool: Pool, schedule_pool: SchedulePool) -> None:
    """What a person fires becomes the newest task and moves no time, also of a paused one; of none it is refused."""
    at = pool.now_ms
    schedule_pool.put(at=at + 60)
    schedule_pool.pause()
    task = row()
    assert schedule_pool.fire(task, due="", following="") == ("created", "")
    found = schedule_pool.record()
    assert (found["task"], found["last"], found["fired"], found["next"]) == (task.id, str(at), "1", str(at + 60))
    assert schedule_pool.scores() == {"n": "inf"}
    assert schedule_pool.fire(row(), name="other", due="", following="") == ("stale", "other")


@pytest.mark.parametrize("outcome", [FireOutcome.SKIPPED, FireOutcome.REFUSED])
def test_skip(pool: Pool, schedule_pool: SchedulePool, outcome: FireOutcome) -> None:
    """A time without a task is counted, with the reason and how many were missed before; again it changes nothing."""
    at = pool.now_ms
    schedule_pool.put(at=at)
    assert schedule_pool.skip(outcome, due=at, following=at + 60, missed=2, error="why") is SkipStatus.OK
    found = schedule_pool.record()
    assert (found[outcome.value], found["missed"], found["error"], found["error_at"]) == ("1", "2", "why", str(at))
    assert (found["next"], schedule_pool.scores(), "task" in found) == (str(at + 60), {"n": str(at + 60)}, False)
    with pool.unchanged():
        assert schedule_pool.skip(outcome, due=at, following=at + 60, missed=2) is SkipStatus.STALE


def test_forgo_missed(pool: Pool, schedule_pool: SchedulePool) -> None:
    """Times that are only missed are counted once each."""
    at = pool.now_ms
    schedule_pool.put(at=at)
    assert schedule_pool.skip(FireOutcome.MISSED, due=at, following="inf", missed=3) is SkipStatus.OK
    assert (schedule_pool.record()["missed"], schedule_pool.scores()) == ("3", {"n": "inf"})


def test_forgo_nowhere(pool: Pool, schedule_pool: SchedulePool) -> None:
    """A time that is left as it is gets the reason and no count: it will be tried again."""
    at = pool.now_ms
    schedule_pool.put(at=at)
    assert schedule_pool.skip(FireOutcome.REFUSED, due=at, following=at, error="why") is SkipStatus.OK
    found = schedule_pool.record()
    assert (found["error"], found["next"], "refused" in found) == ("why", str(at), False)
    assert schedule_pool.names() == ["n"]
