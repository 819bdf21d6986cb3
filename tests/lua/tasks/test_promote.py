"""lua/tasks/promote.lua: what is due becomes ready, what did not start in time ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.model import Promoted
from tests.lua.pool import rank, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_nothing(pool: Pool) -> None:
    """An empty pool has nothing to promote and nothing to wait for."""
    with pool.unchanged():
        assert pool.promote() == Promoted(0, 0, None, left=False)


def test_promotes_what_is_due(pool: Pool) -> None:
    """A due task enters its queue with its due time; one that is not due stays and is what to wait for."""
    due, later = row(delay_ms=10, priority=3), row(delay_ms=30)
    pool.put(due, later)
    pool.sleep(9)
    with pool.unchanged():
        assert pool.promote() == Promoted(0, 0, 0.001, left=False)
    pool.sleep(1)
    pool.notifications()
    assert pool.promote() == Promoted(1, 0, 0.02, left=False)
    assert pool.state(due.id) == "ready"
    assert pool.score(pool.keys.queue("skill:sum"), due.id) == rank(3) + pool.now_ms
    assert pool.members(pool.keys.scheduled) == [later.id]
    assert pool.notifications() == ["queue:skill:sum"]


def test_repeat(pool: Pool) -> None:
    """What was promoted is not scheduled any more: a second call changes nothing."""
    pool.put(row(delay_ms=10), row(start_by_ms=pool.now_ms + 5))
    pool.sleep(10)
    pool.promote()
    with pool.unchanged():
        assert pool.promote() == Promoted(0, 0, None, left=False)


def test_bounded(pool: Pool) -> None:
    """One call moves at most `limit`, earliest first, and says that more is due."""
    tasks = [row(delay_ms=5 - i) for i in range(5)]
    pool.put(*tasks)
    pool.sleep(10)
    assert pool.promote(limit=2) == Promoted(2, 0, 0, left=True)
    assert set(pool.queue()) == {tasks[3].id, tasks[4].id}
    assert pool.promote(limit=3) == Promoted(3, 0, None, left=False)


def test_expires_what_waits(pool: Pool) -> None:
    """A ready or scheduled task that did not start by its time ends, leaves every index, and its client hears of it."""
    by = pool.now_ms + 10
    ready, scheduled = row(start_by_ms=by, reply="c1"), row(start_by_ms=by, delay_ms=50, reply="c1")
    pool.put(ready, scheduled)
    pool.sleep(9)
    assert pool.promote().expired == 0
    pool.sleep(1)
    assert pool.promote() == Promoted(0, 2, None, left=False)
    for task in (ready, scheduled):
        assert pool.task(task.id).items() >= {"state": "expired", "reason": "did not start in time"}.items()
        assert pool.ttl_s(pool.keys.task(task.id)) == 7200
    assert pool.queue() == pool.members(pool.keys.scheduled) == pool.members(f"{pool.keys.root}:expiring") == []
    assert pool.execute("EXISTS", pool.keys.queues) == 0
    assert sorted(pool.replies()) == sorted(pool.events()) == sorted([(ready.id, "e"), (scheduled.id, "e")])
    assert pool.stats() == {"submitted": 2, "expired": 2}


def test_expires_parked(pool: Pool) -> None:
    """A task that is parked for want of a skill expires too, and leaves no ghost among the parked."""
    pool.register()
    pool.put(row(queue="agent:ed", skill="other", start_by_ms=pool.now_ms + 10))
    pool.assign()
    assert pool.members(f"{pool.keys.root}:parked:ed") != []
    pool.sleep(10)
    assert pool.promote().expired == 1
    assert pool.execute("EXISTS", f"{pool.keys.root}:parked:ed") == 0


def test_leaves_a_started_task_alone(pool: Pool) -> None:
    """Once granted, a task has started: its `start_by` cannot end it, nor is it indexed by it."""
    pool.register()
    task = row(start_by_ms=pool.now_ms + 10)
    pool.put(task)
    pool.assign()
    assert pool.execute("EXISTS", f"{pool.keys.root}:expiring") == 0
    pool.sleep(20)
    assert pool.promote().expired == 0
    assert pool.state(task.id) == "assigned"


def test_drops_torn_entries(pool: Pool) -> None:
    """Index entries without a waiting task are dropped: the hash decides."""
    pool.register()
    task = row()
    pool.put(task)
    pool.assign()
    pool.execute("ZADD", pool.keys.scheduled, 1, task.id, 1, "ghost")
    pool.execute("ZADD", f"{pool.keys.root}:expiring", 1, task.id, 1, "ghost")
    assert pool.promote() == Promoted(0, 0, None, left=False)
    assert pool.queue() == []
    assert pool.state(task.id) == "assigned"


def test_full_batch(pool: Pool) -> None:
    """500 due and 500 late tasks fit into one call."""
    pool.put(*[row(delay_ms=1) for _ in range(500)])
    pool.put(*[row(start_by_ms=pool.now_ms + 1) for _ in range(500)])
    pool.sleep(1)
    assert pool.promote() == Promoted(500, 500, None, left=False)


def test_cost_does_not_grow(pool: Pool) -> None:
    """Promoting one task costs the same among thousands that are not due."""

    def cost() -> int:
        pool.put(row(delay_ms=1))
        pool.sleep(1)
        before = pool.commands()
        assert pool.promote().promoted == 1
        return pool.commands() - before

    pool.put(row(delay_ms=100_000))
    first = cost()
    for _ in range(4):
        pool.put(*[row(delay_ms=100_000) for _ in range(500)])
    assert cost() <= first
