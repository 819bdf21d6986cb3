"""lua/tasks/cancel.lua: what waits ends at once, what a worker has is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from orchestrator.core.rates import Rate
from orchestrator.tasks.model import CancelStatus, TaskState, VerdictKind
from tests.lua.pool import Team, row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

ENDED = (CancelStatus.ENDED, TaskState.CANCELLED)


@pytest.mark.parametrize("fields", [{}, {"delay_ms": 50}], ids=["ready", "scheduled"])
def test_ends_what_waits(pool: Pool, fields: dict[str, Any]) -> None:
    """A waiting task ends at once, leaves every index, and its client hears of it."""
    task = row(reply="c1", idem="k", digest="d", start_by_ms=pool.now_ms + 99, **fields)
    pool.put(task)
    assert pool.cancel(task.id, reason="no need") == [ENDED]
    assert pool.task(task.id).items() >= {"state": "cancelled", "reason": "no need", "ended": str(pool.now_ms)}.items()
    assert pool.queue() == pool.members(pool.keys.scheduled) == pool.members(f"{pool.keys.root}:expiring") == []
    assert pool.execute("EXISTS", pool.keys.queues) == 0
    assert pool.ttl_s(pool.keys.task(task.id)) == pool.ttl_s(f"{pool.keys.root}:idem:k") == 7200
    assert pool.replies() == pool.events() == [(task.id, "c")]
    assert pool.stats() == {"submitted": 1, "cancelled": 1}


def test_repeat(pool: Pool) -> None:
    """Cancelling again, in one call or later, tells the state and changes nothing."""
    (task_id,) = pool.put()
    assert pool.cancel(task_id, task_id) == [ENDED, (CancelStatus.ALREADY, TaskState.CANCELLED)]
    with pool.unchanged():
        assert pool.cancel(task_id) == [(CancelStatus.ALREADY, TaskState.CANCELLED)]


def test_unknown(pool: Pool) -> None:
    """An unknown id is said to be unknown and leaves nothing behind."""
    with pool.unchanged():
        assert pool.cancel("gone") == [(CancelStatus.UNKNOWN, None)]


def test_already(pool: Pool) -> None:
    """A task that has ended stays as it ended."""
    pool.register()
    pool.put()
    delivery = pool.one()
    pool.end(delivery)
    with pool.unchanged():
        assert pool.cancel(delivery.task_id) == [(CancelStatus.ALREADY, TaskState.SUCCEEDED)]


def test_signals_what_runs(pool: Pool) -> None:
    """A task that a worker has is marked and nothing else; repeating marks it again, and takes no reason away."""
    pool.register()
    pool.put(row(reply="c1"))
    delivery = pool.one()
    for reason in ("why", "why", ""):
        assert pool.cancel(delivery.task_id, reason=reason) == [(CancelStatus.SIGNALLED, TaskState.ASSIGNED)]
        assert pool.task(delivery.task_id).items() >= {"state": "assigned", "cancel": "why"}.items()
    assert (pool.replies(), pool.pending()) == ([], [(delivery.entry, "w1")])


def test_leaves_a_note(pool: Pool) -> None:
    """The worker that has the entry gets a note for each cancel, no other one does, and notes do not pile up."""
    pool.register()
    pool.register("w2")
    pool.put(row(), row())
    pool.assign()
    (mine,), (other,) = pool.read("w1", limit=1), pool.read("w2", limit=1)
    pool.cancel(mine.task_id)
    assert pool.entries(pool.keys.notes("w1")) == [
        (ANY, ["k", "cancel", "t", mine.task_id, "g", mine.generation]),
    ]
    assert pool.execute("EXISTS", pool.keys.notes("w2")) == 0
    assert 0 < pool.ttl_s(pool.keys.notes("w1")) <= 60
    for _ in range(1500):
        pool.cancel(mine.task_id)
    assert pool.execute("XLEN", pool.keys.notes("w1")) < 1200
    pool.end(other)
    pool.cancel(other.task_id)
    assert pool.execute("EXISTS", pool.keys.notes("w2")) == 0


def test_ends_what_lies_unread(pool: Pool) -> None:
    """A task that no worker has read ends at once and returns its entry and its limit slots (protocol rule 14)."""
    pool.register(team=Team(rate=Rate(2, 60_000_000)))
    read, unread = pool.put(row(), row(reply="c1"))
    pool.assign()
    (delivery,) = pool.read(limit=1)
    assert delivery.task_id == read
    pool.notifications()
    assert pool.cancel(unread, read) == [ENDED, (CancelStatus.SIGNALLED, TaskState.ASSIGNED)]
    assert pool.inbox_length() == 1
    assert pool.members(pool.keys.limit("@ed")) == [f"{read}:{delivery.generation}"]
    assert pool.notifications() == ["agent:ed"]
    assert pool.replies() == [(unread, "c")]
    assert pool.read() == []


def test_ends_what_is_parked(pool: Pool) -> None:
    """A parked task is cancelled like any other that waits and leaves no ghost."""
    pool.register()
    (task_id,) = pool.put(row(queue="agent:ed", skill="other"))
    pool.assign()
    assert pool.cancel(task_id) == [ENDED]
    assert pool.execute("EXISTS", f"{pool.keys.root}:parked:ed") == 0


@pytest.mark.parametrize("lost", ["inbox", "group"])
def test_lost_inbox(pool: Pool, lost: str) -> None:
    """A task whose inbox was lost with some data can still be cancelled."""
    pool.register()
    pool.put()
    delivery = pool.one()
    if lost == "inbox":
        pool.execute("DEL", pool.keys.inbox("ed"))
    else:
        pool.execute("XGROUP", "DESTROY", pool.keys.inbox("ed"), "workers")
    assert pool.cancel(delivery.task_id) == [ENDED]
    assert pool.end(delivery).value == "already"


def test_goes_nowhere_afterwards(pool: Pool) -> None:
    """A marked task ends when it is taken back, whichever way (protocol rule 8)."""
    pool.register()
    ways: list[Callable[[], object]] = [lambda: pool.abandon("w1"), lambda: pool.adopt("w1", own=True)]
    for i, take_back in enumerate(ways):
        pool.put()
        delivery = pool.one()
        pool.cancel(delivery.task_id, reason="why")
        take_back()
        assert pool.task(delivery.task_id).items() >= {"state": "cancelled", "reason": "why"}.items()
        assert pool.stats()["cancelled"] == i + 1
        assert (pool.queue(), pool.pending()) == ([], [])


def test_batch_of_500(pool: Pool) -> None:
    """A full batch, ready, scheduled, unread and running, fits into one call."""
    pool.register(slots=200)
    ids = pool.put(*[row(reply="c1") for _ in range(200)])
    pool.assign()
    running = [delivery.task_id for delivery in pool.read(limit=100)]
    ids += pool.put(*[row(start_by_ms=pool.now_ms + 9) for _ in range(150)], *[row(delay_ms=9) for _ in range(150)])
    answers = dict(zip(ids, pool.cancel(*ids), strict=True))
    assert {task_id for task_id, (status, _) in answers.items() if status == CancelStatus.SIGNALLED} == set(running)
    assert pool.stats()["cancelled"] == 400
    assert pool.inbox_length() == 100


def test_cost_does_not_grow(pool: Pool) -> None:
    """Cancelling one task costs the same among many."""

    def cost() -> int:
        (task_id,) = pool.put()
        before = pool.commands()
        pool.cancel(task_id)
        return pool.commands() - before

    pool.put()
    first = cost()
    pool.put(*[row(queue=f"skill:{i}") for i in range(100)], *[row(delay_ms=i + 1) for i in range(300)])
    assert cost() <= first


def test_retry_after_cancel_of_another_attempt(pool: Pool) -> None:
    """A cancel that found an earlier attempt is not forgotten by a later one."""
    pool.register()
    pool.put()
    delivery = pool.one()
    pool.cancel(delivery.task_id)
    (status,) = pool.renew([delivery])[1]
    assert status.value == "cancelled"
    assert pool.end(delivery, VerdictKind.RETRY).value == "ok"
    assert pool.state(delivery.task_id) == "cancelled"
