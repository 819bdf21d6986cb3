"""lua/tasks/abandon.lua: what a dead worker held goes back to where it came from."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.model import FinishStatus
from tests.lua.pool import DEAD_TTL_S, Team, rank, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_nothing_to_give_back(pool: Pool) -> None:
    """Unknown agents and workers hold nothing, and nothing changes."""
    with pool.unchanged():
        assert pool.abandon("w1") == (0, [])
    pool.register()
    with pool.unchanged():
        assert pool.abandon("nobody") == (0, [])


def test_gives_back(pool: Pool) -> None:
    """The tasks return to the head of their queue with a death each; their generations are told for the locks."""
    pool.register()
    pool.put(row(), row(), row())
    deliveries = pool.deliver()
    (waiting,) = pool.put()
    pool.sleep(1)
    pool.notifications()
    assert pool.abandon("w1") == (3, [(delivery.task_id, delivery.generation) for delivery in deliveries])
    assert pool.queue() == [*[delivery.task_id for delivery in deliveries], waiting]
    for delivery in deliveries:
        found = pool.task(delivery.task_id)
        others = [other.task_id for other in deliveries if other is not delivery]
        death = f"{pool.now_ms} w1 killed, with {' '.join(others)}"
        assert found.items() >= {"state": "ready", "deaths": "1", "death:1": death}.items()
        assert int(found["gen"]) > int(delivery.generation)
        score = pool.score(pool.keys.queue("skill:sum"), delivery.task_id)
        assert score == rank(2) + pool.now_ms - 1
        with pool.unchanged():
            assert pool.end(delivery) == FinishStatus.STALE
    assert (pool.pending(), pool.inbox_length()) == ([], 0)
    assert pool.stats()["abandoned"] == 3
    assert [delivery.attempt for delivery in pool.deliver()] == [2, 2, 2, 1]


def test_rings_for_an_empty_queue(pool: Pool) -> None:
    """A queue that was empty is announced."""
    pool.register()
    pool.put()
    pool.one()
    pool.notifications()
    pool.abandon("w1")
    assert pool.notifications() == ["queue:skill:sum"]


def test_repeat(pool: Pool) -> None:
    """The second call finds nothing, or what the dead worker's last read swallowed since."""
    pool.register()
    pool.put()
    pool.one()
    pool.abandon("w1")
    with pool.unchanged():
        assert pool.abandon("w1") == (0, [])
    late = pool.one("w1")
    assert pool.abandon("w1")[0] == 1
    assert pool.task(late.task_id)["deaths"] == "2"


def test_leaves_others_alone(pool: Pool) -> None:
    """The entries of other workers, unread ones and other agents' inboxes stay."""
    pool.register(slots=3)
    pool.register("w1", Team(agent="other"))
    pool.put(row(), row(), row(), row(queue="agent:other", skill="sum"))
    pool.assign()
    mine, theirs = pool.read("w1", limit=1)[0], pool.read("w2", limit=1)[0]
    elsewhere = pool.one("w1", agent="other")
    assert pool.abandon("w1")[1] == [(mine.task_id, mine.generation)]
    assert pool.pending() == [(theirs.entry, "w2")]
    assert pool.pending("other") == [(elsewhere.entry, "w1")]
    assert pool.inbox_length() == 2


def test_bounded(pool: Pool) -> None:
    """One call gives back at most `limit`."""
    pool.register()
    pool.put(row(), row(), row())
    pool.deliver()
    assert [pool.abandon("w1", limit=2)[0] for _ in range(3)] == [2, 1, 0]


def test_deaths(pool: Pool) -> None:
    """The second death alone goes through `scheduled`; the last one makes a dead letter that names each."""
    pool.register()
    (task_id,) = pool.put(row(reply="c1"))
    pool.one()
    pool.abandon("w1")
    pool.one("w2")
    pool.now_us = (pool.now_us or 0) + 500
    pool.abandon("w2")
    assert pool.state(task_id) == "scheduled"
    due = pool.score(pool.keys.scheduled, task_id)
    assert due is not None
    assert 0 <= due - pool.now_ms < 1000
    pool.sleep(1000)
    pool.promote()
    assert pool.one("w3").deaths == 2
    assert pool.dead == []
    assert pool.abandon("w3") == (1, [])
    assert pool.dead == [(task_id, "sum", 3, 3)]
    found = pool.task(task_id)
    assert found.items() >= {"state": "dead", "reason": "deaths", "deaths": "3"}.items()
    assert [found[f"death:{i}"].split()[1] for i in (1, 2, 3)] == ["w1", "w2", "w3"]
    assert pool.members(pool.keys.dead) == [task_id]
    assert pool.ttl_s(pool.keys.task(task_id)) == DEAD_TTL_S
    assert pool.replies() == [(task_id, "d")]


def test_a_task_that_a_worker_read_does_not_expire(pool: Pool) -> None:
    """A task that began in time runs again when its worker dies, before or after its `start_by`."""
    pool.register()
    now = pool.now_ms
    before, after = pool.put(row(start_by_ms=now + 50), row(start_by_ms=now + 10))
    pool.deliver()
    pool.sleep(10)
    pool.abandon("w1")
    assert sorted(pool.queue()) == sorted([before, after])
    assert pool.members(f"{pool.keys.root}:expiring") == []
    pool.sleep(100)
    assert {one.task_id for worker in ("w2", "w3") for one in pool.deliver(worker)} == {before, after}


def test_removes_what_is_no_attempt(pool: Pool) -> None:
    """Entries whose task is gone or of another attempt are removed; no task is changed by them."""
    pool.register()
    gone, ended = pool.put(row(), row())
    pool.deliver()
    pool.execute("DEL", pool.keys.task(gone))
    pool.execute("HSET", pool.keys.task(ended), "state", "succeeded")
    assert pool.abandon("w1") == (2, [])
    assert (pool.state(gone), pool.state(ended)) == ("gone", "succeeded")
    assert (pool.pending(), pool.inbox_length()) == ([], 0)


def test_batch_of_500(pool: Pool) -> None:
    """A full batch fits into one call; all that died before are judged by the same counts."""
    pool.register(slots=500)
    ids = pool.put(*[row(reply="c1", start_by_ms=pool.now_ms + 9) for _ in range(500)])
    deliveries = pool.deliver(limit=500)
    for i, task_id in enumerate(ids):
        pool.execute("HSET", pool.keys.task(task_id), "deaths", i % 3)
    pool.begin(*deliveries)
    pool.abandon("w1")
    tasks = [pool.task(task_id) for task_id in ids]
    assert {task["state"] for task in tasks} == {"ready"}
    assert [task.get("group") for task in tasks[:3]] == [None, str(333 // 4), str(333 // 4)]
    assert Counter(task.get("group") for task in tasks) == {None: 167, "83": 333}


def test_cost_does_not_grow(pool: Pool) -> None:
    """Giving back one task costs the same among many."""

    def cost() -> int:
        pool.put(row(priority=0))
        pool.assign(limit=1)
        pool.read("dying", limit=1)
        before = pool.commands()
        assert pool.abandon("dying")[0] == 1
        cost = pool.commands() - before
        pool.cancel(*pool.queue()[:1])
        return cost

    pool.register(slots=1000)
    pool.put()
    first = cost()
    pool.put(*[row(reply=f"c{i}") for i in range(300)])
    pool.deliver("w2", limit=200)
    pool.put()
    for i in range(30):
        pool.register(f"w{i}", Team(agent=f"a{i}"))
    assert cost() <= first
