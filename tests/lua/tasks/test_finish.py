"""lua/tasks/finish.lua: each verdict, the fence, and that a verdict counts once however often it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from orchestrator.core.ids import new_task_id
from orchestrator.core.rates import Rate
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.model import Envelope, FinishStatus, TaskState, Verdict, VerdictKind, encode_envelope
from tests.helpers.cases import each_case
from tests.lua.pool import DEAD_TTL_S, MAX_WAIT_S, START_US, USUAL_TTL_S, Team, node, rank, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

OK, ALREADY, STALE = FinishStatus.OK, FinishStatus.ALREADY, FinishStatus.STALE
AGAIN = [VerdictKind.RETRY, VerdictKind.SNOOZE, VerdictKind.REQUEUE, VerdictKind.RELEASED]
FINAL = [VerdictKind.SUCCEEDED, VerdictKind.DEAD, VerdictKind.CANCELLED]


def start(pool: Pool, **fields: Any) -> Delivery:
    """One task, delivered to w1."""
    pool.register()
    pool.put(row(**fields))
    delivery = pool.one()
    pool.sleep(1)
    pool.notifications()
    return delivery


def test_succeeded(pool: Pool) -> None:
    """A result is stored with the task's own lifetime; reply, event and counters follow; the entry is gone."""
    delivery = start(pool, reply="c1", ttl_s=7200, idem="k", digest="d")
    assert pool.end(delivery, payload=b'{"n":1}') == OK
    found = pool.task(delivery.task_id)
    assert (found["state"], found["result"], found["ended"]) == ("succeeded", '{"n":1}', str(pool.now_ms))
    assert pool.ttl_s(pool.keys.task(delivery.task_id)) == pool.ttl_s(f"{pool.keys.root}:idem:k") == 7200
    assert pool.replies() == [(delivery.task_id, 's{"n":1}')]
    assert pool.ttl_s(pool.keys.replies(node("c1"))) == 3600
    assert pool.events() == [(delivery.task_id, "s")]
    assert pool.stats()["succeeded"] == 1
    assert (pool.inbox_length(), pool.pending()) == (0, [])
    assert pool.notifications() == []


def test_streams_that_take_no_more(pool: Pool) -> None:
    """Behind an entry with the highest id, which a client may add, no other fits: events and replies begin anew."""
    delivery = start(pool, reply="c1")
    for key in (pool.keys.events, pool.keys.replies(node("c1"))):
        pool.execute("XADD", key, "18446744073709551615-18446744073709551615", "x", "s")
        pool.execute("EXPIRE", key, 60)
    assert pool.end(delivery, payload=b"1") == OK
    assert pool.replies() == [(delivery.task_id, "s1")]
    assert pool.events() == [(delivery.task_id, "s")]


@pytest.mark.parametrize("kept", [b"\x92\xa3sum\xc4\x00", b""])
@pytest.mark.parametrize("fields", [{"ttl_s": USUAL_TTL_S}, {"lane": "l"}, {"idem": "k", "digest": "d"}])
def test_a_success_may_replace_its_envelope(pool: Pool, fields: dict[str, Any], kept: bytes) -> None:
    """The worker decides what stays of an envelope; without its word the stored one stays."""
    delivery = start(pool, **fields)
    whole = pool.execute("HGET", pool.keys.task(delivery.task_id), "env")
    assert pool.end(delivery, payload=b"1", envelope=kept) == OK
    assert pool.execute("HGET", pool.keys.task(delivery.task_id), "env") == (kept or whole)
    assert pool.task(delivery.task_id)["result"] == "1"


@pytest.mark.parametrize("fields", [{"ttl_s": USUAL_TTL_S}, {"lane": "l"}, {"idem": "k", "digest": "d"}])
def test_a_success_may_write_its_record_again(pool: Pool, fields: dict[str, Any]) -> None:
    """Only a plain record is written again, so that its hash table becomes a listpack; no record loses a field."""
    delivery = start(pool, **fields)
    key = pool.keys.task(delivery.task_id)
    pool.execute("HSET", key, "env", encode_envelope(Envelope("sum", b"{%s}" % (b" " * 1200))))
    assert pool.execute("OBJECT", "ENCODING", key) == b"hashtable"
    before = pool.task(delivery.task_id).keys()
    verdict = Verdict(VerdictKind.SUCCEEDED, b"1", envelope=b"\x92\xa3sum\xc4\x00")
    rows = [(msgspec.structs.replace(delivery, envelope=b"x" * 1200), verdict)]
    call = task_scripts.finish(pool.keys, rows=rows, worker="w1", dead_ttl_s=1000, max_wait_s=1000, listpack_bytes=64)
    assert pool.call(call).statuses == [OK]
    found = pool.task(delivery.task_id)
    assert found.keys() == before | {"ended", "result"}
    assert (found["state"], found["gen"], found["result"]) == ("succeeded", delivery.generation, "1")
    assert pool.execute("OBJECT", "ENCODING", key) == (b"listpack" if "ttl_s" in fields else b"hashtable")
    assert pool.ttl_s(key) == fields.get("ttl_s", 7200)
    assert pool.call(call).statuses == [ALREADY]


def test_dead(pool: Pool) -> None:
    """A dead letter keeps its error and reason for the longer of both lifetimes and is listed by time."""
    delivery = start(pool, reply="c1")
    assert pool.end(delivery, VerdictKind.DEAD, payload=b"traceback", reason="ValueError: no") == OK
    found = pool.task(delivery.task_id)
    assert (found["state"], found["error:1"], found["reason"]) == ("dead", "traceback", "ValueError: no")
    assert pool.ttl_s(pool.keys.task(delivery.task_id)) == DEAD_TTL_S
    assert pool.score(pool.keys.dead, delivery.task_id) == pool.now_ms
    assert pool.replies() == pool.events() == [(delivery.task_id, "d")]
    assert pool.stats()["dead"] == 1


def test_dead_letters_are_forgotten_with_their_tasks(pool: Pool) -> None:
    """The list of dead letters drops those whose tasks are gone by then."""
    first = start(pool)
    pool.end(first, VerdictKind.DEAD)
    pool.sleep(DEAD_TTL_S * 1000 + 1)
    second = start(pool)
    pool.end(second, VerdictKind.DEAD)
    assert pool.members(pool.keys.dead) == [second.task_id]


def test_dead_letters_are_listed_until_then(pool: Pool) -> None:
    """A new dead letter takes none off the list that is still kept."""
    first = start(pool)
    pool.end(first, VerdictKind.DEAD)
    pool.sleep(DEAD_TTL_S * 1000 - 10)
    second = start(pool)
    pool.end(second, VerdictKind.DEAD)
    assert pool.members(pool.keys.dead) == [first.task_id, second.task_id]


def test_cancelled(pool: Pool) -> None:
    """A worker that obeyed a cancel ends the task as cancelled, for the reason that the canceller gave."""
    delivery = start(pool, reply="c1")
    pool.cancel(delivery.task_id, reason="not needed")
    assert pool.end(delivery, VerdictKind.CANCELLED, reason="stopped") == OK
    assert pool.task(delivery.task_id).items() >= {"state": "cancelled", "reason": "not needed"}.items()
    assert pool.replies() == pool.events() == [(delivery.task_id, "c")]


def test_lifetime_has_a_floor(pool: Pool) -> None:
    """However short the result is to be kept, the stub stays five minutes, against late repeats (protocol rule 22)."""
    delivery = start(pool, ttl_s=1)
    pool.end(delivery)
    assert pool.ttl_s(pool.keys.task(delivery.task_id)) == 300


def test_retry(pool: Pool) -> None:
    """A failure goes to `scheduled`, counts an attempt, keeps its error, and raises the generation."""
    delivery = start(pool)
    pool.sleep(10)
    assert pool.end(delivery, VerdictKind.RETRY, payload=b"tb", delay_ms=500, reason="boom") == OK
    found = pool.task(delivery.task_id)
    assert found.items() >= {"state": "scheduled", "fails": "1", "error:1": "tb", "reason": "boom"}.items()
    assert int(found["gen"]) == pool.now_ms > int(delivery.generation)
    assert pool.score(pool.keys.scheduled, delivery.task_id) == pool.now_ms + 500
    assert pool.notifications() == ["scheduled"]
    assert pool.stats()["retried"] == 1
    assert pool.pending() == []
    pool.sleep(500)
    pool.promote()
    again = pool.one()
    assert (again.task_id, int(again.generation), again.attempt) == (delivery.task_id, pool.now_ms, 2)
    pool.end(again, VerdictKind.DEAD, payload=b"tb2")
    assert pool.task(delivery.task_id).items() >= {"fails": "2", "error:1": "tb", "error:2": "tb2"}.items()


def test_snooze(pool: Pool) -> None:
    """A snooze waits for its delay or its time, whichever is later, and counts no attempt."""
    delivery = start(pool)
    pool.end(delivery, VerdictKind.SNOOZE, delay_ms=100, at_ms=pool.now_ms + 300)
    assert pool.score(pool.keys.scheduled, delivery.task_id) == pool.now_ms + 300
    pool.sleep(300)
    pool.promote()
    assert pool.one().attempt == 1
    assert pool.stats()["snoozed"] == 1


@pytest.mark.parametrize("kind", [VerdictKind.RETRY, VerdictKind.SNOOZE])
@pytest.mark.parametrize("ago_ms", [0, 5])
def test_without_delay_ready_at_once(pool: Pool, kind: VerdictKind, ago_ms: int) -> None:
    """Without a delay, or with a time that has come, the task queues up behind those that wait."""
    delivery = start(pool)
    waiting = pool.put()
    pool.sleep(1)
    pool.end(delivery, kind, at_ms=pool.now_ms - ago_ms)
    assert pool.queue() == [*waiting, delivery.task_id]
    assert pool.score(pool.keys.queue("skill:sum"), delivery.task_id) == rank(2) + pool.now_ms


@pytest.mark.parametrize("kind", [VerdictKind.REQUEUE, VerdictKind.RELEASED, VerdictKind.AWAIT_LOCK])
def test_back(pool: Pool, kind: VerdictKind) -> None:
    """A task that is given back goes to the very place it came from, and counts no attempt."""
    delivery = start(pool)
    waiting = pool.put()
    pool.notifications()
    assert pool.end(delivery, kind) == OK
    assert pool.queue() == [delivery.task_id, *waiting]
    assert pool.score(pool.keys.queue("skill:sum"), delivery.task_id) == rank(2) + START_US // 1000
    assert pool.stats()["given_back"] == 1
    assert pool.deliver()[0].attempt == 1


@each_case("kind", AGAIN, fresh="pool")
def test_waits_again_for_as_long(pool: Pool, kind: VerdictKind) -> None:
    """A task that goes back may wait as long as a new one, and its key with it."""
    delivery = start(pool, idem="k", digest="d")
    record, key = pool.keys.task(delivery.task_id), f"{pool.keys.root}:idem:k"
    for name in (record, key):
        pool.execute("EXPIRE", name, 10)
    pool.end(delivery, kind, delay_ms=2000 if kind is VerdictKind.RETRY else 0)
    expected = MAX_WAIT_S + (2 if kind is VerdictKind.RETRY else 0)
    assert pool.ttl_s(record) == pool.ttl_s(key) == expected


@each_case("kind", list(VerdictKind), fresh="pool")
def test_repeat(pool: Pool, kind: VerdictKind) -> None:
    """The very same verdict again, later or within one call, is `already` and changes nothing."""
    delivery = start(pool, reply="c1")
    verdict = Verdict(kind, b"x", delay_ms=10, reason="r")
    assert pool.finish((delivery, verdict), (delivery, verdict)) == [OK, ALREADY]
    pool.sleep(1)
    with pool.unchanged():
        assert pool.finish((delivery, verdict)) == [ALREADY]


def test_two_verdicts_of_one_attempt(pool: Pool) -> None:
    """The first verdict of an attempt counts; another one for the same attempt is refused, in the same call too."""
    delivery = start(pool, reply="c1")
    answers = pool.finish((delivery, Verdict(VerdictKind.RETRY)), (delivery, Verdict(VerdictKind.SUCCEEDED, b"1")))
    assert answers == [OK, ALREADY]
    assert pool.state(delivery.task_id) == "ready"
    assert pool.replies() == []
    again = pool.one()
    answers = pool.finish((again, Verdict(VerdictKind.SUCCEEDED, b"1")), (again, Verdict(VerdictKind.DEAD)))
    assert answers == [OK, ALREADY]
    assert pool.replies() == [(again.task_id, "s1")]
    assert pool.stats() == {"submitted": 1, "assigned": 2, "retried": 1, "succeeded": 1}


@each_case("kind", list(VerdictKind), fresh="pool")
def test_stale(pool: Pool, kind: VerdictKind) -> None:
    """An attempt whose task was taken away can change nothing any more, whatever it says."""
    delivery = start(pool)
    (taken,) = pool.adopt("w1", own=True)
    assert int(taken.generation) > int(delivery.generation)
    with pool.unchanged():
        assert pool.end(delivery, kind) == STALE
    pool.end(taken)
    with pool.unchanged():
        assert pool.end(delivery, kind) == STALE
        assert pool.end(msgspec.structs.replace(taken, task_id="gone"), kind) == STALE


def test_stale_before_delivery(pool: Pool) -> None:
    """A verdict for a task that only waits, be its generation right by guess, is refused."""
    delivery = start(pool)
    pool.end(delivery, VerdictKind.RETRY)
    guess = msgspec.structs.replace(delivery, generation=pool.task(delivery.task_id)["gen"])
    with pool.unchanged():
        assert pool.end(guess) == STALE


@each_case("kind", AGAIN, fresh="pool")
def test_cancel_mark_wins_over_going_back(pool: Pool, kind: VerdictKind) -> None:
    """A task that somebody asked to cancel does not go back: it ends, for the reason given, and its slot is free."""
    delivery = start(pool, reply="c1")
    pool.cancel(delivery.task_id, reason="stop it")
    assert pool.end(delivery, kind, delay_ms=10) == OK
    assert pool.task(delivery.task_id).items() >= {"state": "cancelled", "reason": "stop it"}.items()
    assert pool.replies() == [(delivery.task_id, "c")]
    assert (pool.queue(), pool.members(pool.keys.scheduled), pool.pending()) == ([], [], [])
    with pool.unchanged():
        assert pool.end(delivery, kind, delay_ms=10) == ALREADY


@each_case("fields", [{}, {"idem": "k", "digest": "d"}, {"ttl_s": 7200, "priority": 3}], fresh="pool")
def test_every_field_of_a_task_in_a_lane_counts(pool: Pool, fields: dict[str, Any]) -> None:
    """A lane beside any other fields hides none: the cancel mark, the failures, the rank, the key, the lifetime."""
    retried = start(pool, lane="x", **fields)
    pool.end(retried, VerdictKind.RETRY)
    assert pool.score(pool.keys.queue("skill:sum"), retried.task_id) == rank(fields.get("priority", 2)) + pool.now_ms
    again = pool.one()
    assert again.attempt == 2
    pool.cancel(again.task_id, reason="stop it")
    (next_,) = pool.put(row(lane="x"))
    assert pool.end(again, VerdictKind.RETRY) == OK
    found = pool.task(again.task_id)
    assert found.items() >= {"state": "cancelled", "reason": "stop it", "fails": "1"}.items()
    keys = [pool.keys.task(again.task_id), *([f"{pool.keys.root}:idem:k"] if "idem" in fields else [])]
    assert {pool.ttl_s(key) for key in keys} == {fields.get("ttl_s", 7200)}
    assert pool.one().task_id == next_


def test_a_cancel_mark_beside_a_lane(pool: Pool) -> None:
    """The mark counts in the first attempt of a task that has a lane and nothing else."""
    delivery = start(pool, lane="x", ttl_s=USUAL_TTL_S)
    pool.cancel(delivery.task_id, reason="stop it")
    assert len(pool.task(delivery.task_id)) == 6
    pool.end(delivery, VerdictKind.RETRY)
    assert pool.state(delivery.task_id) == "cancelled"


def test_deaths_count_as_attempts(pool: Pool) -> None:
    """The error of an attempt after a death has the number of that attempt."""
    lost = start(pool)
    pool.abandon("w1")
    pool.register("w2")
    again = pool.one("w2")
    assert (again.task_id, again.attempt) == (lost.task_id, 2)
    pool.end(again, VerdictKind.DEAD, payload=b"tb")
    assert pool.task(lost.task_id).items() >= {"fails": "1", "deaths": "1", "error:2": "tb"}.items()


def test_a_reason_of_an_earlier_attempt_stays(pool: Pool) -> None:
    """A verdict without a reason leaves the one before; a snooze without one clears it."""
    delivery = start(pool)
    pool.end(delivery, VerdictKind.RETRY, reason="first")
    pool.end(pool.one(), VerdictKind.RETRY)
    assert pool.task(delivery.task_id)["reason"] == "first"
    pool.end(pool.one(), VerdictKind.SNOOZE)
    assert pool.task(delivery.task_id)["reason"] == ""


@each_case(("delay_ms", "waits"), [(0, False), (1, True), (2, True)], fresh="pool")
def test_the_shortest_delay(pool: Pool, delay_ms: int, waits: bool) -> None:  # noqa: FBT001
    """One millisecond is a delay; `due` and `left` are written for a task that waits, and for no other."""
    delivery = start(pool)
    pool.end(delivery, VerdictKind.RETRY, delay_ms=delay_ms)
    found = pool.task(delivery.task_id)
    waiting = {"state": "scheduled", "due": str(pool.now_ms + delay_ms), "left": "retry"}
    assert {name: found.get(name) for name in waiting} == (
        waiting if waits else {"state": "ready", "due": None, "left": None}
    )


def test_success_wins_over_a_cancel_mark(pool: Pool) -> None:
    """A task that succeeded before its worker heard of the cancel has succeeded."""
    delivery = start(pool)
    pool.cancel(delivery.task_id)
    pool.end(delivery)
    assert pool.state(delivery.task_id) == TaskState.SUCCEEDED


def test_start_by_is_met_by_a_start(pool: Pool) -> None:
    """Who started in time may be retried later; who never started still has to start in time."""
    pool.register()
    by = pool.now_ms + 10
    retried, released = pool.put(row(start_by_ms=by), row(start_by_ms=by))
    first, second = pool.deliver()
    pool.finish((first, Verdict(VerdictKind.RETRY)), (second, Verdict(VerdictKind.RELEASED)))
    assert pool.members(f"{pool.keys.root}:expiring") == [released]
    pool.sleep(10)
    assert pool.promote().expired == 1
    assert (pool.state(retried), pool.state(released)) == ("ready", "expired")
    assert pool.one().task_id == retried


def test_returned_slots(pool: Pool) -> None:
    """Only `released` returns the slots of the grant, and says so at the doorbell."""
    pool.register(team=Team(rate=Rate(3, 60_000_000)))
    pool.put(row(), row(), row())
    first, second, third = pool.deliver()
    pool.notifications()
    pool.finish((first, Verdict(VerdictKind.REQUEUE)), (second, Verdict(VerdictKind.RETRY)))
    assert len(pool.members(pool.keys.limit("@ed"))) == 3
    assert "agent:ed" not in pool.notifications()
    pool.finish((third, Verdict(VerdictKind.RELEASED)))
    assert pool.members(pool.keys.limit("@ed")) == sorted(f"{d.task_id}:{d.generation}" for d in (first, second))
    assert "agent:ed" in pool.notifications()
    with pool.unchanged():
        assert pool.finish((third, Verdict(VerdictKind.RELEASED))) == [ALREADY]


@each_case(("digit", "hears"), [("7", False), ("8", True), ("9", True), ("a", True), ("f", True)], fresh="pool")
def test_only_a_maker_that_listens_hears(pool: Pool, digit: str, hears: bool) -> None:  # noqa: FBT001
    """The last group of an id is the address of the reply, if its first digit says that somebody listens there."""
    pool.register()
    client = f"{digit}{0:011}"
    pool.put(row(new_task_id()[:24] + client))
    delivery = pool.one()
    pool.end(delivery, payload=b"1")
    expected = [[delivery.task_id, "s1"]] if hears else []
    assert [fields for _, fields in pool.entries(pool.keys.replies(client))] == expected
    assert [name for name in pool.names() if ":replies:" in name] == ([pool.keys.replies(client)] if hears else [])


@pytest.mark.parametrize("task_id", ["t", "x" * 24, "f" * 24])
def test_no_client_hears_of_an_id_that_is_none(pool: Pool, task_id: str) -> None:
    """A task whose id an older `submit` accepted ends like any other, and no client gets a reply."""
    pool.register()
    (made,) = pool.put()
    pool.execute("RENAME", pool.keys.task(made), pool.keys.task(task_id))
    pool.execute("ZREM", pool.keys.queue("skill:sum"), made)
    pool.execute("ZADD", pool.keys.queue("skill:sum"), 1, task_id)
    pool.end(pool.one(), payload=b"1")
    assert pool.state(task_id) == "succeeded"
    assert [name for name in pool.names() if ":replies:" in name] == []


def test_large_results_do_not_travel(pool: Pool) -> None:
    """Results too large for a reply stay in the task: the reply says where to look, for each task of the call."""
    pool.register()
    pool.put(*[row(reply="c1") for _ in range(3)])
    first, second, third = pool.deliver()
    sizes = [(first, 10), (second, 300_000), (third, 20)]
    pool.finish(*[(delivery, Verdict(VerdictKind.SUCCEEDED, b"7" * size)) for delivery, size in sizes])
    assert pool.replies() == [(first.task_id, "s" + "7" * 10), (second.task_id, "S"), (third.task_id, "s" + "7" * 20)]
    assert len(pool.task(second.task_id)["result"]) == 300_000


def test_results_of_one_call_travel_up_to_64_kib(pool: Pool) -> None:
    """The replies of a call hold 65,536 bytes of results together, and not a byte more."""
    pool.register()
    pool.put(*[row(reply="c1") for _ in range(4)])
    deliveries = pool.deliver()
    sizes = [30_000, 35_536, 1, 1]
    rows = zip(deliveries, sizes, strict=True)
    pool.finish(*[(delivery, Verdict(VerdictKind.SUCCEEDED, b"7" * size)) for delivery, size in rows])
    assert [(reply[0], len(reply) - 1) for _, reply in pool.replies()] == [
        ("s", 30_000),
        ("s", 35_536),
        ("S", 0),
        ("S", 0),
    ]


@pytest.mark.parametrize("kind", list(VerdictKind))
def test_batch_of_500(pool: Pool, kind: VerdictKind) -> None:
    """A full batch with payloads, clients, keys and `start_by` over two agents fits into one call."""
    pool.register(slots=250)
    pool.register("w1", Team(agent="other", rate=Rate(500, 60_000_000)), slots=250)
    for agent in ("ed", "other"):
        pool.put(
            *[
                row(
                    queue=f"agent:{agent}",
                    skill="sum",
                    reply=f"c{i % 7}",
                    idem=f"{agent}{i}",
                    digest="d",
                    start_by_ms=pool.now_ms + 9,
                )
                for i in range(250)
            ]
        )
    deliveries = pool.deliver(limit=250) + pool.deliver(agent="other", limit=250)
    rows = [(delivery, Verdict(kind, b"x" * 2000, delay_ms=5, reason="r")) for delivery in deliveries]
    assert pool.finish(*rows) == [OK] * 500
    with pool.unchanged():
        assert pool.finish(*rows) == [ALREADY] * 500
    assert pool.pending() == pool.pending("other") == []


def test_one_event_and_one_reply_per_call(pool: Pool) -> None:
    """What a batch shares is written once: one event entry, one reply entry per client."""
    pool.register()
    pool.put(*[row(reply=f"c{i % 2}") for i in range(10)])
    pool.finish(*[(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in pool.deliver()])
    assert len(pool.entries(pool.keys.events)) == 1
    assert [len(pool.entries(pool.keys.replies(node(client)))) for client in ("c0", "c1")] == [1, 1]
    assert len(pool.events()) == 10


@pytest.mark.parametrize("lost", ["inbox", "group"])
def test_survives_a_lost_inbox(pool: Pool, lost: str) -> None:
    """A verdict counts even when data loss took the inbox or its group meanwhile."""
    delivery = start(pool, reply="c1")
    if lost == "inbox":
        pool.execute("DEL", pool.keys.inbox("ed"))
    else:
        pool.execute("XGROUP", "DESTROY", pool.keys.inbox("ed"), "workers")
    assert pool.end(delivery, payload=b"1") == OK
    assert pool.replies() == [(delivery.task_id, "s1")]


@pytest.mark.every_server(alone=True)
def test_cost_does_not_grow(pool: Pool) -> None:
    """Finishing one task costs the same among many others."""

    def cost() -> int:
        pool.put()
        (delivery,) = pool.deliver(limit=1)
        before = pool.commands()
        pool.end(delivery)
        return pool.commands() - before

    pool.register(slots=1000)
    first = cost()
    pool.put(*[row(reply=f"c{i}") for i in range(300)])
    pool.deliver("w2", limit=300)
    for i in range(30):
        pool.register(f"w{i}", Team(agent=f"a{i}"))
    assert cost() <= first


class TestReady:
    """The reply tells since when a task was ready, unless that was its submit."""

    def ready(self, pool: Pool, *ended: tuple[Delivery, Verdict]) -> dict[int, int]:
        """What the reply tells, by row."""
        call = task_scripts.finish(pool.keys, rows=ended, worker="w1", dead_ttl_s=1000, max_wait_s=1000)
        return pool.call(call).ready_ms

    def test_plain_task(self, pool: Pool) -> None:
        """The id of a plain task has its time."""
        pool.register()
        pool.put()
        (delivery,) = pool.deliver()
        assert self.ready(pool, (delivery, Verdict(VerdictKind.RETRY, b"x", delay_ms=100))) == {}
        due_ms = pool.now_ms + 100
        pool.sleep(150)
        pool.promote()
        (again,) = pool.deliver()
        assert self.ready(pool, (again, Verdict(VerdictKind.SUCCEEDED, b"1"))) == {0: due_ms}

    def test_delayed_task(self, pool: Pool) -> None:
        """A delayed task is ready when it is due; a repeat of the call does not tell it again."""
        pool.register()
        pool.put(row(delay_ms=500), row())
        due_ms = pool.now_ms + 500
        pool.sleep(700)
        pool.promote()
        ended = [(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in pool.deliver()]
        assert list(self.ready(pool, *ended).values()) == [due_ms]
        assert self.ready(pool, *ended) == {}

    def test_unknown(self, pool: Pool) -> None:
        """A task that a worker gave back was ready before its attempt; since when it waits again is not stored."""
        pool.register()
        pool.put()
        (delivery,) = pool.deliver()
        pool.end(delivery, VerdictKind.REQUEUE)
        (again,) = pool.deliver()
        assert self.ready(pool, (again, Verdict(VerdictKind.SUCCEEDED, b"1"))) == {0: 0}


def test_a_key_without_a_lifetime_lives_a_day(pool: Pool) -> None:
    """Programs of format 2 store no lifetime for a keyed task, which lives a day; one without a key lives an hour."""
    pool.register()
    pool.put(row(idem="k", digest="d", ttl_s=USUAL_TTL_S), row(ttl_s=USUAL_TTL_S))
    keyed, plain = sorted(pool.deliver(), key=lambda one: "idem" not in pool.task(one.task_id))
    assert (pool.end(keyed), pool.end(plain)) == (FinishStatus.OK, FinishStatus.OK)
    lives = [pool.ttl_s(pool.keys.task(one.task_id)) for one in (keyed, plain)]
    assert (lives, pool.ttl_s(f"{pool.keys.root}:idem:k")) == ([86_400, 3600], 86_400)


def test_tracebacks_are_bounded(pool: Pool) -> None:
    """A record keeps those of its last 20 attempts, and cuts one that is longer than a worker sends."""
    pool.register()
    (task,) = pool.put()
    for number in range(1, 26):
        pool.assign()
        assert pool.end(pool.one(), VerdictKind.RETRY, payload=b"%d" % number + b"x" * 100_000) == OK
    kept = {name for name in pool.task(task) if name.startswith("error:")}
    assert kept == {f"error:{number}" for number in range(6, 26)}
    assert pool.task(task)["error:25"].startswith("25xx")
    assert sum(len(pool.task(task)[name]) for name in kept) == 20 * 16_384
    pool.assign()
    pool.end(pool.one(), VerdictKind.DEAD, payload=b"last")
    assert "error:6" not in pool.task(task)
    assert pool.task(task)["error:26"] == "last"


KINDS: dict[str, dict[str, Any]] = {
    "plain": {}, "key": {"idem": "", "digest": "d"}, "urgent": {"priority": 0}, "session": {"session": "s"},
    "short": {"ttl_s": 400}, "key, short": {"idem": "", "digest": "d", "ttl_s": 400}, "lane": {"lane": ""},
    "late": {"start_by_ms": START_US // 1000 + 60_000}, "stray": {}, "key, stray": {"idem": "", "digest": "d"},
    "budget": {"budget": "b"}, "session, urgent": {"session": "s", "priority": 0},
}  # fmt: skip
"""Options of tasks with the same number of fields and others; a stray field is none that a program writes."""


def test_tasks_of_one_call_differ(pool: Pool) -> None:
    """A call reads each task as it is, also when the one before had as many fields, but others."""

    def lives(*kinds: str) -> list[dict[str, Any]]:
        """Records, lifetimes and what is left of other keys, of tasks that live in the same calls."""
        rows = []
        for number, kind in enumerate(kinds):
            # Unique in the test: the pool is emptied in between.
            options = dict(KINDS[kind])
            options |= {name: f"{name}-{number}" for name in ("idem", "lane") if name in options}
            rows.append(row(**options))
        pool.put(*rows)
        for made, kind in zip(rows, kinds, strict=True):
            if "stray" in kind:
                pool.execute("HSET", pool.keys.task(made.id), "stray", "1")
        assert pool.assign().count == len(rows)
        deliveries = pool.read(limit=len(rows))
        pool.finish(*[(one, Verdict(VerdictKind.SUCCEEDED, payload=b"1")) for one in deliveries])
        found = []
        for number, made in enumerate(rows):
            key = pool.keys.task(made.id)
            record = {name: value for name, value in pool.task(made.id).items() if name not in ("at", "idem", "lane")}
            kept = [pool.execute("TTL", key), pool.execute("TTL", pool.keys.idempotency(f"idem-{number}"))]
            left = pool.execute("EXISTS", pool.keys.lane(f"lane-{number}"))
            expiring = pool.execute("ZSCORE", pool.keys.expiring, made.id)
            found.append({**record, "kept": kept, "left": left, "expiring": expiring})
        return found

    def fresh() -> None:
        pool.start_afresh()
        pool.set_budget(usd=1)
        pool.register(slots=100)

    alone = {}
    for kind in KINDS:
        fresh()
        (alone[kind],) = lives(kind)
    assert alone["late"]["expiring"] is None
    fresh()
    kinds = [kind for first in KINDS for second in KINDS for kind in (first, second)]
    assert lives(*kinds[:100]) == [alone[kind] for kind in kinds[:100]]
