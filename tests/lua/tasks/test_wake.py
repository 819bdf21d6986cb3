"""tasks/wake: a task that waits for a lock continues at its original place; no wake-up is lost on the way there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.model import VerdictKind
from tests.helpers.cases import each_case
from tests.lua.pool import row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

WAITS_MS = 15_000


def start(pool: Pool) -> Delivery:
    """A task that a worker has read."""
    pool.register()
    pool.put()
    return pool.one()


def test_woken(pool: Pool) -> None:
    """It goes to the place that it came from, counts no attempt, and the supervisor hears of it."""
    delivery = start(pool)
    pool.end(delivery, VerdictKind.AWAIT_LOCK, delay_ms=WAITS_MS, reason="busy")
    assert pool.state(delivery.task_id) == "scheduled"
    assert pool.score(pool.keys.scheduled, delivery.task_id) == pool.now_ms + WAITS_MS
    assert pool.queue() == []
    pool.notifications()
    pool.sleep(5)
    later = pool.put()
    assert pool.wake(delivery.task_id)
    assert pool.queue() == [delivery.task_id, *later]
    assert pool.score(pool.keys.scheduled, delivery.task_id) is None
    with pool.unchanged():
        assert pool.wake(delivery.task_id)
    assert pool.deliver()[0].attempt == 1
    assert pool.stats()["given_back"] == 1


def test_rings_for_an_empty_queue(pool: Pool) -> None:
    """Nothing else waits: the supervisor is woken."""
    delivery = start(pool)
    pool.end(delivery, VerdictKind.AWAIT_LOCK, delay_ms=WAITS_MS)
    pool.notifications()
    pool.wake(delivery.task_id)
    assert pool.notifications() == ["queue:skill:sum"]


def test_woken_before_it_waits(pool: Pool) -> None:
    """The lock is free before the verdict of the attempt arrives: the task does not wait at all, this once."""
    delivery = start(pool)
    assert pool.wake(delivery.task_id)
    pool.end(delivery, VerdictKind.AWAIT_LOCK, delay_ms=WAITS_MS)
    assert pool.queue() == [delivery.task_id]
    pool.end(pool.one(), VerdictKind.AWAIT_LOCK, delay_ms=WAITS_MS)
    assert pool.state(delivery.task_id) == "scheduled"


def test_looks_again(pool: Pool) -> None:
    """Without a wake-up it is due in the end."""
    delivery = start(pool)
    pool.end(delivery, VerdictKind.AWAIT_LOCK, delay_ms=WAITS_MS)
    pool.sleep(WAITS_MS)
    pool.promote()
    assert pool.queue() == [delivery.task_id]


def test_has_not_started(pool: Pool) -> None:
    """It still has to start in time, and expires while it waits."""
    pool.register()
    (id_,) = pool.put(row(start_by_ms=pool.now_ms + 100))
    pool.end(pool.one(), VerdictKind.AWAIT_LOCK, delay_ms=WAITS_MS)
    pool.sleep(101)
    pool.promote()
    assert pool.state(id_) == "expired"
    assert not pool.wake(id_)


def test_of_a_key(pool: Pool) -> None:
    """It is the first of its key, because the lock is kept for it: others of the key do not start before."""
    pool.register(slots=1)
    (id_,) = pool.put(row(fair="a"))
    pool.end(pool.one(), VerdictKind.AWAIT_LOCK, delay_ms=WAITS_MS)
    pool.sleep(5)
    pool.put(row(fair="a"), row(fair="a"))
    assert pool.wake(id_)
    assert pool.one().task_id == id_


@each_case(
    "kind",
    [VerdictKind.SUCCEEDED, VerdictKind.DEAD, VerdictKind.CANCELLED, VerdictKind.RETRY, VerdictKind.SNOOZE],
    fresh="pool",
)
def test_gone(pool: Pool, kind: VerdictKind) -> None:
    """A task that has ended, or waits for something else, is not touched."""
    delivery = start(pool)
    pool.end(delivery, kind, delay_ms=WAITS_MS)
    with pool.unchanged():
        assert not pool.wake(delivery.task_id)


def test_unknown(pool: Pool) -> None:
    """There is no such task."""
    with pool.unchanged():
        assert not pool.wake("unknown")
