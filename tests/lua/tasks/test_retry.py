"""lua/tasks/retry.lua: ended tasks run again as the same tasks; what they failed and died before counts no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.model import FinishStatus, RequeueStatus, TaskState, VerdictKind, WatchStatus
from orchestrator.why.explanation import explain
from tests.lua.pool import DEAD_TTL_S, MAX_WAIT_S, Team, chunk, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

REQUEUED = RequeueStatus.REQUEUED


def dead(pool: Pool, *, key: str = "") -> str:
    """A dead letter after one failed attempt."""
    pool.register()
    (id_,) = pool.put(row(idem=key, digest="d" if key else "", reply="c1"))
    pool.end(pool.one(), VerdictKind.DEAD, payload=b"trace 1", reason="boom")
    pool.notifications()
    return id_


def test_dead_letter(pool: Pool) -> None:
    """It lines up again with a new generation, is no dead letter any more, and supervisors hear of it."""
    id_ = dead(pool)
    before = pool.task(id_)
    pool.sleep(1000)
    assert pool.retry(id_) == [(REQUEUED, TaskState.DEAD)]
    task = pool.task(id_)
    assert (task["state"], int(task["gen"]), task["was"]) == ("ready", pool.now_ms, before["gen"])
    assert (task["error:1"], task["fails"], task["env"]) == ("trace 1", "1", before["env"])
    assert task["requeue:1"] == f"{pool.now_ms} dead ann: fixed"
    assert "ended" not in task
    assert pool.queue() == [id_]
    assert pool.members(pool.keys.dead) == []
    assert pool.notifications() == ["queue:skill:sum"]
    assert pool.stats()["requeued"] == 1
    assert pool.ttl_s(pool.keys.task(id_)) == MAX_WAIT_S
    assert pool.repair(id_) == []


def test_history_goes_on_and_failures_count_anew(pool: Pool) -> None:
    """Attempts are numbered on; the worker is told how many of them do not count."""
    id_ = dead(pool)
    pool.retry(id_)
    second = pool.one()
    assert (second.attempt, second.deaths, second.forgiven_failures, second.failures) == (2, 0, 1, 1)
    pool.end(second, VerdictKind.RETRY, payload=b"trace 2")
    third = pool.one()
    assert (third.attempt, third.forgiven_failures, third.failures) == (3, 1, 2)
    pool.end(third, VerdictKind.DEAD, payload=b"trace 3")
    pool.retry(id_, token="t2")
    assert pool.one().failures == 1
    task = pool.task(id_)
    assert [task[f"error:{n}"] for n in (1, 2, 3)] == ["trace 1", "trace 2", "trace 3"]
    assert {"requeue:1", "requeue:2"} < set(task)


def test_who_takes_over_is_told_too(pool: Pool) -> None:
    """An attempt that is adopted knows of the forgiven failures as one that was assigned."""
    id_ = dead(pool)
    pool.retry(id_)
    pool.one()
    pool.look("w2")
    pool.age(20_000)
    (adopted,) = pool.adopt("w2")
    assert (adopted.attempt, adopted.deaths, adopted.forgiven_failures, adopted.failures) == (3, 1, 1, 1)


def test_deaths_count_anew(pool: Pool) -> None:
    """A task that died too often may die as often again; its evidence stays; a limit of one is one again."""
    pool.register(team=Team())
    (id_,) = pool.put()

    def die(worker: str) -> None:
        pool.deliver(worker)
        pool.abandon(worker, max_deaths={"sum": 2})

    for number in range(1, 7):
        die(f"d{number}")
        task = pool.task(id_)
        assert task["deaths"] == str(number)
        assert f"death:{number}" in task
        # With one death since it was requeued it waits for nothing; a second one would be its end.
        assert task["state"] == ("dead" if number % 2 == 0 else "ready")
        if task["state"] == "dead":
            assert pool.retry(id_, token=f"t{number}") == [(REQUEUED, TaskState.DEAD)]
            assert not {"blamed", "group", "alone"} & set(pool.task(id_))
    assert pool.one().deaths == 6


def test_a_retried_task_is_no_suspect(pool: Pool) -> None:
    """Deaths from before the retry count no more: beside a task that never died, both are judged alike."""
    pool.register()
    (id_,) = pool.put()
    for worker in ("d1", "d2", "d3"):
        pool.deliver(worker)
        pool.abandon(worker)
        pool.sleep(5000)
        pool.promote()
    pool.retry(id_)
    (other,) = pool.put()
    assert len(pool.deliver("d4")) == 2
    pool.abandon("d4")
    for each in (id_, other):
        task = pool.task(each)
        assert (task["group"], task.get("blamed")) == ("1", None)


def test_backoff_of_deaths_begins_anew(pool: Pool) -> None:
    """How long a task waits after a death follows the deaths since it was requeued."""
    pool.register()
    (id_,) = pool.put()
    for worker in ("d1", "d2", "d3"):
        pool.deliver(worker)
        pool.abandon(worker)
        pool.sleep(5000)
        pool.promote()
    assert pool.state(id_) == "dead"
    pool.retry(id_)
    pool.deliver("d4")
    pool.abandon("d4")
    assert pool.state(id_) == "ready"
    pool.deliver("d5")
    pool.abandon("d5")
    assert pool.state(id_) == "scheduled"
    assert int(pool.task(id_)["due"]) - pool.now_ms <= 1000


@pytest.mark.parametrize("state", [TaskState.CANCELLED, TaskState.EXPIRED])
def test_cancelled_and_expired(pool: Pool, state: TaskState) -> None:
    """They run again too: the mark of the cancel is gone, and the deadline of the start."""
    pool.register()
    (id_,) = pool.put(row(start_by_ms=pool.now_ms + 1000))
    if state is TaskState.CANCELLED:
        delivery = pool.one()
        pool.cancel(id_)
        pool.end(delivery, VerdictKind.REQUEUE)
    else:
        pool.sleep(2000)
        pool.promote()
    assert pool.state(id_) == state
    pool.sleep(5000)
    assert pool.retry(id_) == [(REQUEUED, state)]
    assert not {"cancel", "by", "ended"} & set(pool.task(id_))
    pool.promote()
    delivery = pool.one()
    assert pool.renew([delivery])[1][0].value == "kept"
    assert pool.end(delivery) is FinishStatus.OK
    assert pool.state(id_) == "succeeded"


def test_what_has_not_ended(pool: Pool) -> None:
    """A task that waits or runs is left as it is, one that succeeded is refused, an unknown one is called so."""
    pool.register()
    (succeeded,) = pool.put()
    pool.end(pool.one())
    (running,) = pool.put()
    pool.one()
    ready, scheduled = pool.put(row(queue="skill:odd"), row(delay_ms=5))
    (deleted,) = pool.put(row(queue="skill:odd"))
    pool.cancel(deleted)
    pool.delete(deleted)
    with pool.unchanged():
        assert pool.retry(ready, scheduled, running, succeeded, deleted, "gone") == [
            (RequeueStatus.ALREADY, TaskState.READY),
            (RequeueStatus.ALREADY, TaskState.SCHEDULED),
            (RequeueStatus.ALREADY, TaskState.ASSIGNED),
            (RequeueStatus.REFUSED, TaskState.SUCCEEDED),
            (RequeueStatus.UNKNOWN, None),
            (RequeueStatus.UNKNOWN, None),
        ]


@pytest.mark.parametrize(("field", "value"), [("env", "no envelope"), ("fails", "many"), ("queue", "odd")])
def test_damaged(pool: Pool, field: str, value: str) -> None:
    """A record that nobody could work with stays a dead letter."""
    id_ = dead(pool)
    pool.execute("HSET", pool.keys.task(id_), field, value)
    with pool.unchanged():
        assert pool.retry(id_) == [(RequeueStatus.DAMAGED, TaskState.DEAD)]


def test_repeat(pool: Pool) -> None:
    """A call that is sent twice retries once, even if the task has died again since; another call retries it again."""
    id_ = dead(pool)
    assert pool.retry(id_, id_) == [(REQUEUED, TaskState.DEAD), (REQUEUED, TaskState.READY)]
    with pool.unchanged():
        assert pool.retry(id_) == [(REQUEUED, TaskState.READY)]
        assert pool.retry(id_, token="t2") == [(RequeueStatus.ALREADY, TaskState.READY)]
    pool.end(pool.one(), VerdictKind.DEAD, payload=b"again")
    with pool.unchanged():
        assert pool.retry(id_) == [(REQUEUED, TaskState.DEAD)]
    assert pool.retry(id_, token="t2") == [(REQUEUED, TaskState.DEAD)]
    assert pool.state(id_) == "ready"


def test_late_verdicts(pool: Pool) -> None:
    """The verdict that ended it, sent once more, is known; one of an older attempt is stale; both change nothing."""
    pool.register()
    (id_,) = pool.put()
    first = pool.one()
    pool.end(first, VerdictKind.RETRY, payload=b"1")
    second = pool.one()
    pool.end(second, VerdictKind.DEAD, payload=b"2")
    pool.retry(id_)
    with pool.unchanged():
        assert pool.end(second, VerdictKind.DEAD, payload=b"2") is FinishStatus.ALREADY
        assert pool.end(first) is FinishStatus.STALE


def test_key_goes_on(pool: Pool) -> None:
    """Its idempotency key lives as long as the task, and still names it."""
    id_ = dead(pool, key="k")
    pool.retry(id_)
    assert pool.ttl_s(f"{pool.keys.root}:idem:k") == MAX_WAIT_S
    assert pool.submit(row(idem="k", digest="d")) == [("duplicate", id_)]


def test_key_of_another(pool: Pool) -> None:
    """A key that ran out and belongs to a later task by now is left to that."""
    id_ = dead(pool, key="k")
    pool.execute("DEL", f"{pool.keys.root}:idem:k")
    (later,) = pool.put(row(idem="k", digest="d", queue="skill:odd"), max_wait_s=50)
    pool.retry(id_)
    assert pool.ttl_s(f"{pool.keys.root}:idem:k") == 50
    assert pool.submit(row(idem="k", digest="d")) == [("duplicate", later)]


def test_place(pool: Pool) -> None:
    """It stands behind what became ready earlier at its priority, in the queue that it was submitted for."""
    id_ = dead(pool)
    (addressed,) = pool.put(row(queue="agent:ann", skill="sum", priority=0))
    pool.cancel(addressed)
    before = pool.put(row(), row())
    pool.sleep(10)
    pool.retry(id_, addressed)
    (after,) = pool.put(row())
    assert pool.queue() == [*sorted(before), *sorted([id_, after])]
    assert pool.queue("agent:ann") == [addressed]


def test_output_goes_on(pool: Pool) -> None:
    """Who follows it sees its end, the retry and what comes then; the stream lives as long as the task."""
    pool.register()
    (id_,) = pool.put()
    delivery = pool.one()
    pool.emit(chunk(delivery, 1))
    pool.end(delivery, VerdictKind.DEAD, payload=b"t", reason="boom")
    pool.sleep(5)
    pool.retry(id_)
    assert pool.watch(id_)[0][0] is WatchStatus.LIVE
    pool.emit(chunk(pool.one(), 1))
    assert [(kind, attempt, data) for kind, _, attempt, data in pool.out(id_)] == [
        ("output", 1, "1"),
        ("dead", 1, "boom"),
        ("requeued", 2, "ann: fixed"),
        ("assigned", 2, "ed"),
        ("output", 2, "1"),
    ]
    assert pool.ttl_s(pool.keys.out(id_)) == MAX_WAIT_S


def test_dies_again(pool: Pool) -> None:
    """It is buried again, told of again, and kept as a dead letter is."""
    id_ = dead(pool)
    pool.retry(id_)
    pool.end(pool.one(), VerdictKind.DEAD, payload=b"trace 2")
    assert pool.members(pool.keys.dead) == [id_]
    assert pool.replies() == [(id_, "d"), (id_, "d")]
    assert pool.ttl_s(pool.keys.task(id_)) == DEAD_TTL_S


def test_batch_of_500(pool: Pool) -> None:
    """A full batch fits into one call and keeps its order."""
    ids = pool.put(*[row(idem=f"k{i}", digest="d") for i in range(500)])
    pool.cancel(*ids)
    assert set(pool.retry(*ids)) == {(REQUEUED, TaskState.CANCELLED)}
    assert pool.queue() == sorted(ids)


def test_cost_does_not_grow(pool: Pool) -> None:
    """Retrying one task costs the same among many."""

    def cost() -> int:
        (task_id,) = pool.put(row(queue="skill:odd"))
        pool.cancel(task_id)
        before = pool.commands()
        pool.retry(task_id)
        done = pool.commands() - before
        pool.cancel(task_id)
        return done

    cost()  # now the server knows the scripts
    first = cost()
    pool.put(*[row(queue=f"skill:{i}") for i in range(100)], *[row(delay_ms=i + 1) for i in range(300)])
    pool.cancel(*pool.put(*[row() for _ in range(200)]))
    assert cost() == first


def test_why_counts_what_counts(pool: Pool) -> None:
    """What a task waits for after another failure tells of the failures since it was requeued."""
    id_ = dead(pool)
    pool.retry(id_)
    pool.end(pool.one(), VerdictKind.RETRY, payload=b"trace 2", delay_ms=1000, reason="boom")
    found = pool.why(id_)
    assert found is not None
    why = explain(found)
    assert (why.failures, why.text.startswith("1 attempt failed")) == (1, True)
