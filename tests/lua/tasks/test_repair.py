"""lua/tasks/repair.lua: the record is the truth about a task; what points at it can be made again from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.rates import Rate
from orchestrator.tasks.model import FinishStatus, Verdict, VerdictKind
from tests.helpers.cases import each_case
from tests.lua.pool import DEAD_TTL_S, MAX_WAIT_S, STRICT_MS, Pool, Team, chunk, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery

pytestmark = pytest.mark.every_server

DAY_S = 86_400


def deliver(pool: Pool, **fields: int | str) -> Delivery:
    """One task in the hands of w1."""
    pool.register()
    pool.put(row(**fields))  # type: ignore[arg-type]
    return pool.one()


def every_place(pool: Pool) -> list[str | tuple[str, str]]:
    """All that a walk would ask about the pool."""
    root = f"{pool.keys.root}:"
    rows: list[str | tuple[str, str]] = []
    for name in pool.names():
        kind, _, rest = name.removeprefix(root).partition(":")
        if kind == "task":
            rows.append(rest)
        elif kind == "out":
            rows.append((rest, "out"))
        elif kind == "idem":
            rows.append(("", f"idem:{rest}"))
        elif kind in {"queue", "scheduled", "expiring", "parked", "dead"} or (kind == "suspects" and rest):
            place = name.removeprefix(root)
            rows += [(id_, place) for id_ in pool.members(name)]
            if kind in {"queue", "suspects"}:
                rows.append(("", place))
    return rows


def suspects(pool: Pool) -> list[str]:
    """Two tasks that died together with a worker whose host saw it, among the suspects of their queue."""
    ids = pool.put(row(priority=0), row(priority=0))
    pool.assign(limit=2)
    pool.read("dies")
    pool.abandon("dies")
    pool.assign(limit=2)
    assert pool.members(pool.keys.suspects("skill:sum")) == ids
    return ids


def test_sound_tasks_are_left_alone(pool: Pool) -> None:
    """Tasks in each state and each place: nothing is found, nothing changes, however often one looks."""
    pool.register(slots=9)
    suspects(pool)
    pool.put(row(idem="k", digest="d"), row(start_by_ms=pool.now_ms + 10**6), row(delay_ms=100), row(priority=0))
    pool.put(row(queue="agent:ed", skill="unknown"))
    for delivery, kind in zip(pool.deliver(limit=3), (VerdictKind.RETRY, VerdictKind.DEAD), strict=False):
        pool.emit(chunk(delivery, 1))
        pool.finish((delivery, Verdict(kind, b"x", delay_ms=50)))
    pool.put(row(), row(queue="skill:nobody", start_by_ms=pool.now_ms + 10**6))
    pool.assign(limit=1)
    rows = every_place(pool)
    states = {pool.state(each) for each in rows if isinstance(each, str)}
    assert states == {"ready", "scheduled", "assigned", "dead"}
    with pool.unchanged():
        assert pool.repair(*rows) == []
        assert pool.repair(*rows, repair=False) == []


def test_a_ready_task_without_a_queue(pool: Pool) -> None:
    """It returns to the very place it had, and its queue rings; without the repair nobody finds it."""
    first, second, third = pool.put(row(), row(), row(priority=0))
    pool.sleep(100)
    (later,) = pool.put()
    order = pool.queue()
    scores = [pool.score(pool.keys.queue("skill:sum"), id_) for id_ in order]
    pool.execute("DEL", pool.keys.queue("skill:sum"), pool.keys.queues)
    pool.notifications()
    with pool.unchanged():
        assert pool.repair(first, repair=False) == [(first, "lost-ready")]
    pool.register()
    assert pool.deliver() == []
    pool.notifications()
    assert pool.repair(first, second, third, later) == [(id_, "lost-ready") for id_ in (first, second, third, later)]
    assert pool.queue() == order
    assert [pool.score(pool.keys.queue("skill:sum"), id_) for id_ in order] == scores
    assert pool.notifications() == ["queue:skill:sum"]
    assert pool.repair(first, second, third, later) == []
    assert [delivery.task_id for delivery in pool.deliver()] == order
    assert pool.stats()["repaired"] == 4


def test_a_task_that_was_given_back_keeps_its_place(pool: Pool) -> None:
    """What had been assigned before goes back to the score that it came from."""
    delivery = deliver(pool)
    before = int(pool.task(delivery.task_id)["at"].rpartition(" ")[2])
    pool.sleep(5000)
    pool.end(delivery, VerdictKind.REQUEUE)
    pool.execute("DEL", pool.keys.queue("skill:sum"))
    assert pool.repair(delivery.task_id) == [(delivery.task_id, "lost-ready")]
    assert pool.score(pool.keys.queue("skill:sum"), delivery.task_id) == before


def test_a_promoted_task_keeps_its_place(pool: Pool) -> None:
    """A delayed task queues up by the time at which it was due."""
    (id_,) = pool.put(row(delay_ms=300))
    pool.sleep(400)
    pool.promote()
    before = pool.score(pool.keys.queue("skill:sum"), id_)
    pool.execute("DEL", pool.keys.queue("skill:sum"))
    pool.repair(id_)
    assert pool.score(pool.keys.queue("skill:sum"), id_) == before == 2 * STRICT_MS + pool.now_ms - 100


def test_a_scheduled_task(pool: Pool) -> None:
    """It is due when it was to be due, after a submit, a retry and a second death alone; and the promoter is rung."""
    pool.register(slots=9)
    (delayed,) = pool.put(row(delay_ms=5000))
    pool.put(row(), row())
    retried, dies = pool.deliver()
    pool.end(retried, VerdictKind.RETRY, delay_ms=700)
    pool.abandon("w1")
    pool.deliver("w2")
    pool.abandon("w2")
    ids = [delayed, retried.task_id, dies.task_id]
    assert {pool.state(id_) for id_ in ids} == {"scheduled"}
    scores = [pool.score(pool.keys.scheduled, id_) for id_ in ids]
    pool.execute("DEL", pool.keys.scheduled)
    pool.notifications()
    pool.sleep(10)
    assert pool.promote().wait_s is None
    assert pool.repair(*ids) == [(id_, "lost-scheduled") for id_ in ids]
    assert [pool.score(pool.keys.scheduled, id_) for id_ in ids] == scores
    assert pool.notifications() == ["scheduled"]
    assert pool.repair(*ids) == []


def test_a_scheduled_task_of_an_older_version(pool: Pool) -> None:
    """A record without the time is due now: early is better than never."""
    (id_,) = pool.put(row(delay_ms=5000))
    pool.execute("HDEL", pool.keys.task(id_), "due")
    pool.execute("DEL", pool.keys.scheduled)
    pool.repair(id_)
    assert pool.score(pool.keys.scheduled, id_) == pool.now_ms


def test_an_assigned_task_without_an_entry(pool: Pool) -> None:
    """It is ready again at the head, in a new generation, without a death; who held it can change nothing."""
    delivery = deliver(pool)
    id_ = delivery.task_id
    score = int(pool.task(id_)["at"].rpartition(" ")[2])
    pool.sleep(1000)
    pool.put()
    pool.execute("DEL", pool.keys.inbox("ed"))
    pool.register()
    assert pool.adopt(own=True) == []
    assert pool.recover() == (0, False)
    with pool.unchanged():
        assert pool.repair(id_, repair=False) == [(id_, "lost-entry")]
    assert pool.repair(id_) == [(id_, "lost-entry")]
    assert pool.queue()[0] == id_
    assert pool.score(pool.keys.queue("skill:sum"), id_) == score
    task = pool.task(id_)
    assert task["state"] == "ready"
    assert int(task["gen"]) > int(delivery.generation)
    assert "deaths" not in task
    assert pool.repair(id_) == []
    with pool.unchanged():
        assert pool.end(delivery) == FinishStatus.STALE
    again = pool.deliver()[0]
    assert (again.task_id, again.attempt) == (id_, 1)
    assert pool.end(again) == FinishStatus.OK


def test_an_entry_that_nobody_will_read(pool: Pool) -> None:
    """Its consumer was deleted with it in hand: it lies behind what was read, and is in nobody's hands."""
    delivery = deliver(pool)
    pool.execute("XGROUP", "DELCONSUMER", pool.keys.inbox("ed"), "workers", "w1")
    assert pool.read("w1") == []
    assert pool.adopt("w1", own=True) == []
    assert pool.repair(delivery.task_id) == [(delivery.task_id, "lost-entry")]
    assert pool.inbox_length() == 0
    assert pool.one().task_id == delivery.task_id


def test_entries_that_will_be_read_are_no_finding(pool: Pool) -> None:
    """Unread, read, and in an inbox whose group was lost."""
    pool.register(slots=3)
    pool.put(row(), row())
    pool.assign()
    pool.read(limit=1)
    ids = [fields[1] for _, fields in pool.entries(pool.keys.inbox("ed"))]
    assert pool.repair(*ids) == []
    pool.execute("XGROUP", "DESTROY", pool.keys.inbox("ed"), "workers")
    assert pool.repair(*ids) == []


def test_what_was_to_end_ends(pool: Pool) -> None:
    """A lost entry of a task that is cancelled, or may not start any more, ends it as it would have."""
    pool.register()
    pool.put(row(), row(start_by_ms=pool.now_ms + 500))
    one, other = pool.deliver()
    pool.cancel(one.task_id)
    pool.execute("DEL", pool.keys.inbox("ed"))
    pool.sleep(1000)
    pool.repair(one.task_id, other.task_id)
    assert pool.task(one.task_id).items() >= {"state": "cancelled", "reason": "because"}.items()
    assert pool.state(other.task_id) == "expired"
    assert pool.stats().items() >= {"cancelled": 1, "expired": 1, "repaired": 2}.items()


def test_a_start_that_was_granted_stays_granted(pool: Pool) -> None:
    """Whether a lost entry was read is not known, so its rate-limit slot stays taken."""
    pool.register(team=Team(rate=Rate(1, 60_000_000)))
    pool.put()
    delivery = pool.one()
    pool.execute("DEL", pool.keys.inbox("ed"))
    pool.register(team=Team(rate=Rate(1, 60_000_000)))
    pool.repair(delivery.task_id)
    assert pool.deliver() == []


def test_deadlines(pool: Pool) -> None:
    """A waiting task that must start by some time is found by the promoter again."""
    by = pool.now_ms + 1000
    ids = pool.put(row(start_by_ms=by), row(start_by_ms=by, delay_ms=500))
    pool.execute("DEL", pool.keys.expiring)
    assert pool.repair(*ids) == [(id_, "lost-deadline") for id_ in ids]
    assert [pool.score(pool.keys.expiring, id_) for id_ in ids] == [by, by]
    pool.sleep(1000)
    assert pool.promote().expired == 2


def test_dead_letters(pool: Pool) -> None:
    """A dead letter that is not listed is listed by the time of its end."""
    delivery = deliver(pool)
    pool.end(delivery, VerdictKind.DEAD)
    died_ms = pool.now_ms
    pool.execute("DEL", pool.keys.dead)
    pool.sleep(5000)
    assert pool.repair(delivery.task_id) == [(delivery.task_id, "lost-letter")]
    assert pool.score(pool.keys.dead, delivery.task_id) == died_ms
    assert 0 < pool.ttl_s(pool.keys.dead) <= DEAD_TTL_S


def test_second_places(pool: Pool) -> None:
    """Each index lists only what is there according to its record."""
    pool.register(slots=9)
    pool.put()
    done = pool.one()
    pool.end(done)
    pool.put()
    held = pool.one().task_id
    ready, delayed = pool.put(row(), row(delay_ms=9000))
    places = ("queue:skill:sum", "queue:agent:ed", "suspects:skill:sum", "scheduled", "expiring", "parked:ed", "dead")
    for place in places:
        for id_ in (done.task_id, held, ready, delayed):
            pool.execute("ZADD", f"{pool.keys.root}:{place}", "NX", 1, id_)
    pool.execute("SADD", pool.keys.queues, "agent:ed")
    pool.execute("SADD", pool.keys.suspected_queues, "skill:sum")
    right = {(ready, "queue:skill:sum"), (delayed, "scheduled")}
    asked = [(id_, place) for place in places for id_ in (done.task_id, held, ready, delayed)]
    found = pool.repair(*asked)
    assert found == [(id_, "misplaced") for id_, place in asked if (id_, place) not in right]
    assert pool.queue() == [ready]
    assert pool.members(pool.keys.scheduled) == [delayed]
    emptied = (":expiring", ":parked:ed", ":dead", ":agent:ed", ":suspects", ":suspects:skill:sum")
    assert [name for name in pool.names() if name.endswith(emptied)] == [pool.keys.agent("ed")]
    assert [name.decode() for name in pool.execute("SMEMBERS", pool.keys.queues)] == ["skill:sum"]
    assert pool.repair(*asked) == []


def test_tasks_whose_records_are_gone(pool: Pool) -> None:
    """Their ids leave every index, and do not count against the cap of the queue any more."""
    gone = pool.put(row(queue="skill:nobody"), row(queue="skill:nobody"))
    pool.execute("DEL", *[pool.keys.task(id_) for id_ in gone])
    assert pool.submit(row(queue="skill:nobody"), max_tasks=2) == [("full", "skill:nobody")]
    assert pool.repair(*[(id_, "queue:skill:nobody") for id_ in gone]) == [(id_, "gone") for id_ in gone]
    assert pool.stats()["cleaned"] == 2
    assert "repaired" not in pool.stats()
    assert not pool.execute("EXISTS", pool.keys.queues)
    assert pool.submit(row(queue="skill:nobody"), max_tasks=2)[0][0] == "created"


def test_the_list_of_queues(pool: Pool) -> None:
    """A queue that holds something is listed, and rung; one that does not is not."""
    pool.put()
    pool.execute("DEL", pool.keys.queues)
    pool.notifications()
    assert pool.repair(("", "queue:skill:sum"), ("", "queue:skill:other")) == [("queue:skill:sum", "unlisted-queue")]
    assert pool.notifications() == ["queue:skill:sum"]
    pool.execute("SADD", pool.keys.queues, "skill:other")
    assert pool.repair(("", "queue:skill:sum"), ("", "queue:skill:other")) == [("queue:skill:other", "listed-empty")]
    assert pool.repair(("", "queue:skill:sum"), ("", "queue:skill:other")) == []


def test_a_suspect_without_a_place(pool: Pool) -> None:
    """It returns to its queue, whence `assign` moves it to the suspects again."""
    pool.register(slots=9)
    first, second = suspects(pool)
    scores = [pool.score(pool.keys.suspects("skill:sum"), id_) for id_ in (first, second)]
    pool.execute("DEL", pool.keys.suspects("skill:sum"), pool.keys.suspected_queues)
    with pool.unchanged():
        assert pool.repair(first, repair=False) == [(first, "lost-ready")]
    assert pool.repair(first, second) == [(first, "lost-ready"), (second, "lost-ready")]
    assert pool.queue() == [first, second]
    assert pool.repair(*every_place(pool)) == []
    pool.assign()
    assert [pool.score(pool.keys.suspects("skill:sum"), id_) for id_ in (first, second)] == scores
    assert pool.repair(*every_place(pool)) == []


def test_a_suspect_in_two_places(pool: Pool) -> None:
    """A task that stands in its queue and among the suspects stays in the queue; another queue's suspect leaves it."""
    pool.register(slots=9)
    first, second = suspects(pool)
    pool.execute("ZADD", pool.keys.queue("skill:sum"), 1, first)
    pool.execute("SADD", pool.keys.queues, "skill:sum")
    pool.execute("ZADD", pool.keys.suspects("skill:other"), 1, second)
    pool.execute("SADD", pool.keys.suspected_queues, "skill:other")
    found = pool.repair((first, "suspects:skill:sum"), (second, "suspects:skill:sum"), (second, "suspects:skill:other"))
    assert found == [(first, "misplaced"), (second, "misplaced")]
    assert (pool.queue(), pool.members(pool.keys.suspects("skill:sum"))) == ([first], [second])
    assert [name.decode() for name in pool.execute("SMEMBERS", pool.keys.suspected_queues)] == ["skill:sum"]


def test_the_list_of_queues_with_suspects(pool: Pool) -> None:
    """A queue is listed exactly when it has suspects, so that workers find them."""
    pool.register(slots=9)
    suspects(pool)
    pool.execute("DEL", pool.keys.suspected_queues)
    rows = [("", "suspects:skill:sum"), ("", "suspects:skill:other")]
    assert pool.repair(*rows) == [("suspects:skill:sum", "unlisted-queue")]
    assert len(pool.take_suspects()) == 1
    pool.execute("SADD", pool.keys.suspected_queues, "skill:other")
    assert pool.repair(*rows) == [("suspects:skill:other", "listed-empty")]
    assert pool.repair(*rows) == []


def test_lifetimes(pool: Pool) -> None:
    """A record that would stay for ever gets the lifetime of its state, and its key with it."""
    pool.register(slots=9)
    pool.put(row(), row(), row(idem="k", digest="d"))
    done, dead, held = pool.deliver()
    pool.end(done)
    pool.end(dead, VerdictKind.DEAD)
    waits, delayed, deleted = pool.put(row(), row(delay_ms=5000), row())
    pool.cancel(deleted)
    pool.delete(deleted)
    kept_s = {done.task_id: 7200, dead.task_id: DEAD_TTL_S, held.task_id: DAY_S, waits: MAX_WAIT_S}
    kept_s |= {delayed: MAX_WAIT_S + 5, deleted: 300}
    for id_ in kept_s:
        pool.execute("PERSIST", pool.keys.task(id_))
    pool.execute("PERSIST", f"{pool.keys.root}:idem:k")
    assert pool.repair(*kept_s, repair=False) == pool.repair(*kept_s) == [(id_, "no-lifetime") for id_ in kept_s]
    assert {id_: pool.ttl_s(pool.keys.task(id_)) for id_ in kept_s} == kept_s
    assert pool.ttl_s(f"{pool.keys.root}:idem:k") == DAY_S
    assert pool.repair(*kept_s) == []


def test_what_belongs_to_no_task(pool: Pool) -> None:
    """Output and keys of tasks that are gone go; those of tasks that are there stay, with a lifetime."""
    pool.register()
    pool.put(row(idem="k", digest="d"), row(idem="l", digest="d"))
    kept, lost = pool.deliver()
    pool.emit(chunk(kept, 1), chunk(lost, 1))
    rows = [(kept.task_id, "out"), (lost.task_id, "out"), ("", "idem:k"), ("", "idem:l")]
    assert pool.repair(*rows) == []
    pool.execute("DEL", pool.keys.task(lost.task_id))
    found = [(lost.task_id, "orphan-output"), ("idem:l", "orphan-key")]
    assert pool.repair(*rows) == found
    assert pool.ttl_s(pool.keys.out(lost.task_id)) == 300
    assert pool.submit(row(idem="l", digest="d"))[0][0] == "created"
    pool.execute("PERSIST", pool.keys.out(kept.task_id))
    pool.execute("PERSIST", f"{pool.keys.root}:idem:k")
    assert pool.repair(*rows) == [(kept.task_id, "no-lifetime"), ("idem:k", "no-lifetime")]
    assert pool.ttl_s(pool.keys.out(kept.task_id)) > 300
    assert pool.repair(*rows) == []


@each_case("field", ["gen", "env", "state", "by", "fails", "deaths", "due", "queue", "group"], fresh="pool")
@each_case("value", [b"\xff\xfe{garbage", b""], fresh="pool")
def test_a_damaged_record(pool: Pool, field: str, value: bytes) -> None:
    """It becomes a dead letter that says why, and stops nobody any more."""
    pool.register()
    damaged, sound = pool.put(row(), row())
    pool.execute("HSET", pool.keys.task(damaged), field, value)
    with pool.unchanged():
        assert (damaged, "damaged") in pool.repair(damaged, repair=False)
    rows = (damaged, (damaged, "queue:skill:sum"))
    assert pool.repair(*rows) == [(damaged, "damaged"), (damaged, "misplaced")]
    assert pool.task(damaged).items() >= {"state": "dead", "reason": f"its record is damaged: {field}"}.items()
    assert pool.members(pool.keys.dead) == [damaged]
    assert pool.one().task_id == sound
    assert pool.repair(*rows) == []


def test_a_damaged_place(pool: Pool) -> None:
    """An assigned task whose `at` says nothing goes back to its queue by its age."""
    delivery = deliver(pool)
    pool.execute("HSET", pool.keys.task(delivery.task_id), "at", b"\x00")
    assert pool.repair(delivery.task_id) == [(delivery.task_id, "lost-entry")]
    assert pool.score(pool.keys.queue("skill:sum"), delivery.task_id) == 2 * STRICT_MS + int(delivery.generation)


def test_another_type_in_place_of_a_record(pool: Pool) -> None:
    """It cannot be repaired; its id leaves the index, where it would stop whoever meets it."""
    bad, good = pool.put(row(), row())
    pool.execute("SET", pool.keys.task(bad), "x", "EX", 100)
    assert pool.repair(bad, good) == [(bad, "unreadable")]
    assert pool.repair((bad, "queue:skill:sum")) == [(bad, "unreadable")]
    assert pool.queue() == [good]
    pool.execute("DEL", pool.keys.task(bad))


@each_case(
    "key",
    ["scheduled", "expiring", "dead", "queues", "events", "doorbell", "stats:TOTAL", "queue:skill:sum"],
    fresh="pool",
)
def test_another_type_in_place_of_an_index(pool: Pool, key: str) -> None:
    """Nothing is written where a repair could be torn in the middle; what is wrong is found all the same."""
    pool.register()
    ready, delayed = pool.put(row(), row(delay_ms=5000))
    pool.execute("DEL", pool.keys.queue("skill:sum"), pool.keys.scheduled)
    pool.execute("DEL", f"{pool.keys.root}:{key}")
    pool.execute("SET", f"{pool.keys.root}:{key}", "x", "EX", 100)
    if key == "queue:skill:sum":
        assert pool.repair(ready, delayed) == [(ready, "lost-ready"), (delayed, "lost-scheduled")]
        assert pool.members(pool.keys.scheduled) == [delayed]
    else:
        with pool.unchanged():
            assert pool.repair(ready, delayed) == [(ready, "lost-ready"), (delayed, "lost-scheduled")]
    pool.execute("DEL", f"{pool.keys.root}:{key}")
    pool.repair(ready, delayed, ("", "queue:skill:sum"))
    assert pool.queue() == [ready]


def test_bounded_in_bytes(pool: Pool) -> None:
    """Large records are judged in several calls; none is left out."""
    from orchestrator.store.calls import opaque
    from orchestrator.tasks import scripts
    from tests.lua.pool import envelope

    big = opaque(envelope(args=b'"' + b"x" * 400_000 + b'"'))
    ids = pool.put(*[row(envelope=big) for _ in range(8)])
    pool.execute("DEL", pool.keys.queue("skill:sum"))
    call = scripts.repair(
        pool.keys, rows=[(id_.encode(), b"") for id_ in ids], repair=False, max_wait_s=1, dead_ttl_s=1
    )
    assert pool.call(call).rows == 3


def test_cost_does_not_grow(pool: Pool) -> None:
    """What a call looks at is what it was asked about, however much else is there."""
    (one,) = pool.put()
    pool.repair(one)
    before = pool.commands()
    pool.repair(one)
    small = pool.commands() - before
    pool.put(*[row() for _ in range(500)])
    before = pool.commands()
    pool.repair(one)
    assert pool.commands() - before == small
