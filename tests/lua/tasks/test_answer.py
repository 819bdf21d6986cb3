"""lua/tasks/answer.lua, and what the other scripts do with a task that waits for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.model import (
    AnswerStatus,
    CancelStatus,
    DeleteStatus,
    FinishStatus,
    TaskState,
    VerdictKind,
    WatchStatus,
)
from orchestrator.tasks.scripts import Answered
from tests.lua.pool import MAX_WAIT_S, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

ANSWERED = Answered(AnswerStatus.ANSWERED)


@pytest.fixture
def held(pool: Pool) -> Delivery:
    """A task in the hands of a worker."""
    pool.register()
    pool.put(row(idem="k", digest="d", start_by_ms=pool.now_ms + 99))
    return pool.one()


def asking(pool: Pool) -> list[str]:
    """The tasks that wait for a person, the first deadline first."""
    return pool.members(pool.keys.asking)


# ----------------------------------------------------------------------------------------------------------------- ask


def test_ask_frees_the_slot(pool: Pool, held: Delivery) -> None:
    """An attempt that asks ends without counting; its task waits in `asking` alone, in a new generation."""
    pool.sleep(5)
    assert pool.ask(held) is FinishStatus.OK
    stored = pool.task(held.task_id)
    assert stored["state"] == "awaiting_input"
    assert int(stored["gen"]) > int(held.generation)
    assert stored["ask:1"].startswith(f"{pool.now_ms} 0 ")
    assert {"fails", "by", "answer:1"}.isdisjoint(stored)
    assert (asking(pool), pool.queue(), pool.inbox_length()) == ([held.task_id], [], 0)
    assert pool.members(pool.keys.scheduled) == pool.members(pool.keys.expiring) == []
    assert pool.execute("ZSCORE", pool.keys.asking, held.task_id) == b"inf"
    assert pool.stats()["asked"] == 1
    assert pool.ttl_s(pool.keys.task(held.task_id)) == pool.ttl_s(f"{pool.keys.root}:idem:k") == MAX_WAIT_S


def test_ask_twice(pool: Pool, held: Delivery) -> None:
    """A question that is sent again changes nothing; one of an attempt that lost its task neither."""
    pool.ask(held)
    with pool.unchanged():
        assert pool.ask(held) is FinishStatus.ALREADY
    pool.answer(held.task_id)
    pool.end(pool.one(), VerdictKind.REQUEUE)
    with pool.unchanged():
        assert pool.ask(held) is FinishStatus.STALE


@pytest.mark.parametrize("when", ["delay", "at"])
def test_ask_with_a_deadline(pool: Pool, held: Delivery, when: str) -> None:
    """With a deadline it stands at that time, the promoter is rung, and the record lives beyond it."""
    pool.notifications()
    due_ms = pool.now_ms + 90_000_000
    pool.ask(held, delay_ms=90_000_000 if when == "delay" else 0, at_ms=due_ms if when == "at" else 0)
    assert pool.score(pool.keys.asking, held.task_id) == due_ms
    assert "scheduled" in pool.notifications()
    assert pool.ttl_s(pool.keys.task(held.task_id)) == MAX_WAIT_S + 90_000
    assert pool.promote().wait_s == 90_000


def test_ask_for_ever_is_never_due(pool: Pool, held: Delivery) -> None:
    """Without a deadline nothing is due, whatever the time."""
    pool.ask(held)
    pool.sleep(10**12)
    promoted = pool.promote()
    assert (promoted.promoted, promoted.wait_s, promoted.left) == (0, None, False)
    assert pool.state(held.task_id) == "awaiting_input"


def test_ask_of_a_cancelled_task(pool: Pool, held: Delivery) -> None:
    """A task that was told to stop while its handler asked ends as cancelled."""
    pool.cancel(held.task_id)
    pool.ask(held)
    assert (pool.state(held.task_id), asking(pool)) == ("cancelled", [])


# -------------------------------------------------------------------------------------------------------------- answer


def test_answer(pool: Pool, held: Delivery) -> None:
    """An answer is stored with who gave it and when; the task is ready at the place that it came from."""
    pool.ask(held)
    (later,) = pool.put()
    pool.notifications()
    pool.sleep(700)
    assert pool.answer(held.task_id, '{"ok":1}', actor="ada at home") == ANSWERED
    stored = pool.task(held.task_id)
    answered = {"state": "ready", "answer:1": '{"ok":1}', "answered:1": f"{pool.now_ms} ada at home", "asks": "1"}
    assert stored.items() >= answered.items()
    assert (pool.queue(), asking(pool)) == ([held.task_id, later], [])
    assert pool.stats()["answered"] == 1
    assert pool.ttl_s(pool.keys.task(held.task_id)) == pool.ttl_s(f"{pool.keys.root}:idem:k") == MAX_WAIT_S
    first, _ = pool.deliver()
    assert (first.task_id, first.attempt) == (held.task_id, 1)
    assert pool.end(first) is FinishStatus.OK


def test_answer_rings(pool: Pool, held: Delivery) -> None:
    """Somebody is told that the queue holds a task again."""
    pool.ask(held)
    pool.notifications()
    pool.answer(held.task_id)
    assert pool.notifications() == ["queue:skill:sum"]


def test_answer_twice(pool: Pool, held: Delivery) -> None:
    """The same answer again does nothing; another one is refused with what stands; the same after the end."""
    pool.ask(held)
    pool.answer(held.task_id, "1")
    stands = pool.task(held.task_id)["answered:1"]
    for _ in range(2):
        with pool.unchanged():
            assert pool.answer(held.task_id, "1", actor="bob") == Answered(AnswerStatus.ALREADY, stands)
            assert pool.answer(held.task_id, "2") == Answered(AnswerStatus.OTHER, stands, b"1")
        for delivery in pool.deliver():
            pool.end(delivery)


def test_answer_to_what_was_not_asked(pool: Pool, held: Delivery) -> None:
    """A task that asks nothing, or another question, takes no answer; what it is and how much it asked is told."""
    with pool.unchanged():
        assert pool.answer(held.task_id) == Answered(AnswerStatus.NOT_ASKING, state=TaskState.ASSIGNED)
        assert pool.answer("gone") == Answered(AnswerStatus.UNKNOWN)
    pool.ask(held)
    with pool.unchanged():
        found = pool.answer(held.task_id, number=2)
        assert found == Answered(AnswerStatus.NOT_ASKING, state=TaskState.AWAITING_INPUT, asks=1)
    pool.cancel(held.task_id)
    with pool.unchanged():
        found = pool.answer(held.task_id)
        assert found == Answered(AnswerStatus.NOT_ASKING, state=TaskState.CANCELLED, asks=1)


def test_answer_that_is_no_option(pool: Pool, held: Delivery) -> None:
    """With options, one of them is taken and nothing else."""
    pool.ask(held, options=['"yes"', '{"no":1}'])
    with pool.unchanged():
        assert pool.answer(held.task_id, "true") == Answered(AnswerStatus.INVALID)
    assert pool.answer(held.task_id, '{"no":1}') == ANSWERED


def test_two_questions(pool: Pool, held: Delivery) -> None:
    """Each question keeps its own answer."""
    pool.ask(held, question="one")
    pool.answer(held.task_id, "1")
    pool.ask(pool.one(), 2, "two", options=["2", "3"])
    with pool.unchanged():
        assert pool.answer(held.task_id, "3", number=1).status is AnswerStatus.OTHER
    assert pool.answer(held.task_id, "3", number=2) == ANSWERED
    assert pool.task(held.task_id).items() >= {"asks": "2", "answer:1": "1", "answer:2": "3"}.items()


def test_answer_of_any_bytes(pool: Pool, held: Delivery) -> None:
    """Question and answer are passed on as they are, whatever stands in them."""
    text = "1 2 \n\0 € " + "x" * 20_000
    pool.ask(held, question=text, options=['"1 2 \\n"', "9007199254740993"])
    found = pool.why(held.task_id)
    assert found is not None
    assert found.question is not None
    assert found.question.question == text
    assert found.question.options == ("1 2 \n", 9007199254740993)
    assert pool.answer(held.task_id, "9007199254740993") == ANSWERED
    assert pool.task(held.task_id)["answer:1"] == "9007199254740993"


# ------------------------------------------------------------------------------------------------------- its deadline


def test_unanswered(pool: Pool, held: Delivery) -> None:
    """After its deadline the task is ready at its place, marked as not answered, and takes no answer any more."""
    pool.ask(held, delay_ms=50)
    (later,) = pool.put()
    pool.sleep(49)
    assert pool.promote().promoted == 0
    pool.sleep(1)
    assert pool.promote().promoted == 1
    stored = pool.task(held.task_id)
    assert stored.items() >= {"state": "ready", "answered:1": str(pool.now_ms)}.items()
    assert "answer:1" not in stored
    assert (pool.queue(), asking(pool)) == ([held.task_id, later], [])
    assert pool.stats()["unanswered"] == 1
    with pool.unchanged():
        assert pool.answer(held.task_id) == Answered(AnswerStatus.LATE, str(pool.now_ms))
        assert pool.promote().promoted == 0


def test_answer_behind_the_deadline(pool: Pool, held: Delivery) -> None:
    """As long as nobody has noticed that the time is over, an answer counts."""
    pool.ask(held, delay_ms=50)
    pool.sleep(60)
    assert pool.answer(held.task_id) == ANSWERED
    assert pool.promote().promoted == 0


def test_many_deadlines(pool: Pool) -> None:
    """500 of them are promoted in one call, bounded like others."""
    pool.register(slots=500)
    pool.put(*[row() for _ in range(500)])
    for delivery in pool.deliver(limit=500):
        pool.ask(delivery, delay_ms=10)
    pool.sleep(10)
    first = pool.promote(200)
    assert (first.promoted, first.left) == (200, True)
    assert (pool.promote().promoted, asking(pool)) == (300, [])


# ------------------------------------------------------------------------------------------------ the other scripts


def test_cancel_and_delete(pool: Pool, held: Delivery) -> None:
    """A task that asks cannot be deleted; cancelled, it ends at once, and all of it goes with it."""
    pool.ask(held)
    assert pool.delete(held.task_id) == [(DeleteStatus.REFUSED, TaskState.AWAITING_INPUT)]
    assert pool.cancel(held.task_id, reason="no") == [(CancelStatus.ENDED, TaskState.CANCELLED)]
    assert asking(pool) == []
    pool.delete(held.task_id)
    assert set(pool.task(held.task_id)) == {"deleted", "ended_as"}


def test_what_it_asked_in_vain_is_asked_again_when_requeued(pool: Pool, held: Delivery) -> None:
    """A dead letter for want of an answer asks anew when it is requeued; answers that were given stay."""
    pool.ask(held)
    pool.answer(held.task_id, "1")
    pool.ask(pool.one(), 2, delay_ms=10)
    pool.sleep(10)
    pool.promote()
    pool.end(pool.one(), VerdictKind.DEAD)
    pool.retry(held.task_id)
    stored = pool.task(held.task_id)
    assert {"answer:1", "answered:1", "ask:2"} <= set(stored)
    assert "answered:2" not in stored
    pool.ask(pool.one(), 2)
    assert pool.answer(held.task_id, number=2) == ANSWERED


@pytest.mark.parametrize("delay_ms", [0, 5000])
def test_repair(pool: Pool, held: Delivery, delay_ms: int) -> None:
    """A task that `asking` has lost goes back there, with its deadline; who does not ask leaves it."""
    pool.ask(held, delay_ms=delay_ms)
    score = pool.execute("ZSCORE", pool.keys.asking, held.task_id)
    assert pool.repair(held.task_id, (held.task_id, "asking")) == []
    pool.execute("DEL", pool.keys.asking)
    assert pool.repair(held.task_id) == [(held.task_id, "lost-asking")]
    assert pool.execute("ZSCORE", pool.keys.asking, held.task_id) == score
    pool.answer(held.task_id)
    pool.execute("ZADD", pool.keys.asking, 1, held.task_id, 2, "gone")
    found = pool.repair((held.task_id, "asking"), ("gone", "asking"))
    assert found == [(held.task_id, "misplaced"), ("gone", "gone")]
    assert asking(pool) == []


def test_repair_a_lifetime(pool: Pool, held: Delivery) -> None:
    """A record without a lifetime gets one beyond its deadline."""
    pool.ask(held, delay_ms=90_000_000)
    pool.execute("PERSIST", pool.keys.task(held.task_id))
    assert pool.repair(held.task_id) == [(held.task_id, "no-lifetime")]
    assert pool.ttl_s(pool.keys.task(held.task_id)) == MAX_WAIT_S + 90_000


def test_followers(pool: Pool, held: Delivery) -> None:
    """Whoever follows a task sees what it asks, who answers what, and that nobody did."""
    pool.watch(held.task_id)
    pool.ask(held)
    pool.answer(held.task_id, '"y"', actor="ada")
    second = pool.one()
    pool.ask(second, 2, delay_ms=5)
    pool.sleep(5)
    pool.promote()
    told = [(kind, attempt) for kind, _, attempt, _ in pool.out(held.task_id)]
    assert told[1:] == [("asked", 1), ("answered", 1), ("assigned", 1), ("asked", 1), ("unanswered", 1)]
    texts = [data for kind, _, _, data in pool.out(held.task_id) if kind in {"answered", "unanswered"}]
    assert texts == ['1 "y"\nada', "2"]


def test_watch_what_asks(pool: Pool, held: Delivery) -> None:
    """A task that asks already can be followed."""
    pool.ask(held)
    ((status, _),) = pool.watch(held.task_id)
    assert status is WatchStatus.LIVE
    assert [kind for kind, *_ in pool.out(held.task_id)] == ["awaiting_input"]


def test_why(pool: Pool, held: Delivery) -> None:
    """What it asks, and until when, is found."""
    pool.ask(held, question="Go on?", options=["true"], delay_ms=70)
    found = pool.why(held.task_id)
    assert found is not None
    assert (found.state, found.due_ms) == (TaskState.AWAITING_INPUT, pool.now_ms + 70)
    assert found.question is not None
    assert (found.question.number, found.question.question, found.question.options) == (1, "Go on?", (True,))
    assert found.question.asked_at.timestamp() * 1000 == pool.now_ms
