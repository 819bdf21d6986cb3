"""Earlier attempts in the record of a task: who ran it, when, how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.durations import from_instant_ms
from orchestrator.tasks.history import KEPT_ATTEMPTS, AttemptOutcome, TaskAttempt
from orchestrator.tasks.model import TaskState, Verdict, VerdictKind
from orchestrator.tasks.records import TaskRecord
from tests.helpers.cases import each_case
from tests.lua.pool import DEAD_TTL_S, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def history(pool: Pool, task_id: str, state: TaskState | None = None) -> tuple[TaskAttempt, ...]:
    """The attempts that the record of a task tells."""
    record = TaskRecord(task_id, {name: value.encode() for name, value in pool.task(task_id).items()})
    return record.history(state or record.state)


def begin(pool: Pool, worker: str = "w1") -> Delivery:
    """The task that there is, read by a worker ten seconds ago."""
    pool.register(worker)
    delivery = pool.one(worker)
    pool.sleep(10_000)
    return delivery


@each_case(
    "kind, fields, outcome",
    [
        (VerdictKind.RETRY, {}, AttemptOutcome.FAILED),
        (VerdictKind.RETRY, {"timed_out": True}, AttemptOutcome.TIMED_OUT),
        (VerdictKind.DEAD, {}, AttemptOutcome.FAILED),
        (VerdictKind.DEAD, {"timed_out": True}, AttemptOutcome.TIMED_OUT),
        (VerdictKind.SNOOZE, {}, AttemptOutcome.SNOOZED),
        (VerdictKind.REQUEUE, {}, AttemptOutcome.INTERRUPTED),
        (VerdictKind.INVALID, {"version": "v", "names": ("n",)}, AttemptOutcome.REFUSED),
        (VerdictKind.CANCELLED, {}, AttemptOutcome.CANCELLED),
    ],
    fresh="pool",
)
def test_each_end(pool: Pool, kind: VerdictKind, fields: dict[str, object], outcome: AttemptOutcome) -> None:
    """An attempt that does not succeed is kept with agent, worker, times, outcome and reason."""
    (task,) = pool.put(row())
    delivery = begin(pool)
    verdict = Verdict(kind, b"trace", reason="ValueError: no", began_ago_ms=4000, **fields)  # type: ignore[arg-type]
    pool.finish((delivery, verdict), worker="host-7")
    assert history(pool, task) == (
        TaskAttempt(
            number=1,
            attempt=1,
            outcome=outcome,
            agent="ed",
            worker="host-7",
            assigned_at=from_instant_ms(int(delivery.generation)),
            began_at=from_instant_ms(pool.now_ms - 4000),
            ended_at=from_instant_ms(pool.now_ms),
            reason="ValueError: no",
        ),
    )


def test_a_question(pool: Pool) -> None:
    """An attempt that asks is kept; the text of the question is not part of it."""
    (task,) = pool.put(row())
    pool.ask(begin(pool))
    (found,) = history(pool, task)
    assert (found.outcome, found.reason) == (AttemptOutcome.ASKED, "")


def test_a_cancel_by_an_operator(pool: Pool) -> None:
    """A handler that fails after the cancel of its task was requested is kept as cancelled, with the reason."""
    (task,) = pool.put(row())
    delivery = begin(pool)
    pool.cancel(task, reason="ann: enough")
    pool.end(delivery, VerdictKind.RETRY, payload=b"E", reason="KeyError: k")
    assert [(one.outcome, one.reason) for one in history(pool, task)] == [(AttemptOutcome.CANCELLED, "ann: enough")]


@each_case("kind", [VerdictKind.RELEASED, VerdictKind.AWAIT_LOCK], fresh="pool")
def test_what_did_not_begin(pool: Pool, kind: VerdictKind) -> None:
    """An attempt whose handler never began is none."""
    (task,) = pool.put(row())
    pool.end(begin(pool), kind, reason="later")
    assert history(pool, task) == ()
    assert "ran" not in pool.task(task)


def test_success_after_a_failure(pool: Pool) -> None:
    """The attempt that succeeds after others is kept with its worker, in the order of the attempts."""
    (task,) = pool.put(row())
    pool.finish((begin(pool), Verdict(VerdictKind.RETRY, b"E", reason="KeyError")), worker="w1")
    pool.finish((begin(pool), Verdict(VerdictKind.SNOOZE, delay_ms=0)), worker="w1")
    pool.finish((begin(pool), Verdict(VerdictKind.SUCCEEDED, b"1")), worker="w2")
    found = history(pool, task)
    assert [(one.number, one.attempt, one.outcome, one.worker) for one in found] == [
        (1, 1, AttemptOutcome.FAILED, "w1"),
        (2, 2, AttemptOutcome.SNOOZED, "w1"),
        (3, 2, AttemptOutcome.SUCCEEDED, "w2"),
    ]


def test_success_at_once(pool: Pool) -> None:
    """A plain task stores nothing about its attempt; the record tells agent and times all the same."""
    (task,) = pool.put(row())
    delivery = begin(pool)
    pool.end(delivery, payload=b"1")
    assert "ran" not in pool.task(task)
    (found,) = history(pool, task)
    assert (found.outcome, found.agent, found.worker) == (AttemptOutcome.SUCCEEDED, "ed", None)
    assert found.assigned_at == from_instant_ms(int(delivery.generation))
    assert found.ended_at == from_instant_ms(pool.now_ms)


def test_running(pool: Pool) -> None:
    """The attempt that runs comes last, without an outcome."""
    (task,) = pool.put(row())
    pool.end(begin(pool), VerdictKind.RETRY, payload=b"E")
    begin(pool)
    assert [one.outcome for one in history(pool, task, TaskState.RUNNING)] == [AttemptOutcome.FAILED, None]
    assert [one.outcome for one in history(pool, task, TaskState.ASSIGNED)] == [AttemptOutcome.FAILED]


def test_death_that_its_host_saw(pool: Pool) -> None:
    """A death is kept with worker and cause."""
    (task,) = pool.put(row())
    begin(pool)
    pool.abandon("w1")
    (found,) = history(pool, task)
    assert (found.outcome, found.worker, found.reason, found.began_at) == (AttemptOutcome.DIED, "w1", "killed", None)


def test_last_death(pool: Pool) -> None:
    """The deaths that end a task are kept; the one that ends it is not there twice."""
    (task,) = pool.put(row())
    for _ in range(2):
        begin(pool)
        pool.abandon("w1", max_deaths={"sum": 2})
        pool.sleep(60_000)
        pool.promote()
    assert pool.state(task) == "dead"
    assert [(one.number, one.attempt, one.outcome) for one in history(pool, task)] == [
        (1, 1, AttemptOutcome.DIED),
        (2, 2, AttemptOutcome.DIED),
    ]


def test_bounds(pool: Pool) -> None:
    """The record keeps the latest attempts, and the beginning of a long reason."""
    (task,) = pool.put(row())
    ends = KEPT_ATTEMPTS + 3
    for _ in range(ends):
        pool.end(begin(pool), VerdictKind.SNOOZE, reason="é" * 500)
    found = history(pool, task)
    assert [one.number for one in found] == list(range(4, ends + 1))
    assert {one.reason for one in found} == {"é" * 100}
    assert len([name for name in pool.task(task) if name.startswith("ran:")]) == KEPT_ATTEMPTS


def test_sent_twice(pool: Pool) -> None:
    """A repeated verdict adds no attempt."""
    (task,) = pool.put(row())
    delivery = begin(pool)
    for _ in range(2):
        pool.end(delivery, VerdictKind.RETRY, payload=b"E")
    assert len(history(pool, task)) == 1


def test_after_an_operators_retry(pool: Pool) -> None:
    """A task that an operator retries keeps its attempts."""
    (task,) = pool.put(row())
    pool.end(begin(pool), VerdictKind.DEAD, payload=b"E", reason="no")
    assert pool.ttl_s(pool.keys.task(task)) == DEAD_TTL_S
    pool.retry(task)
    pool.end(begin(pool), payload=b"1")
    assert [one.outcome for one in history(pool, task)] == [AttemptOutcome.FAILED, AttemptOutcome.SUCCEEDED]


def test_damaged(pool: Pool) -> None:
    """A damaged field hides one attempt, not the others."""
    (task,) = pool.put(row())
    for _ in range(2):
        pool.end(begin(pool), VerdictKind.RETRY, payload=b"E")
    pool.execute("HSET", pool.keys.task(task), "ran:1", "nonsense")
    assert [one.number for one in history(pool, task)] == [2]
