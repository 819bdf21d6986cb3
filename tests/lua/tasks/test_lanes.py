"""Lanes in the scripts: strict order, the turn stays with its owner until that has ended, what a busy lane does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.tasks.model import CancelStatus, TaskState, Verdict, VerdictKind
from tests.helpers.cases import each_case
from tests.lua.pool import LEASE_MS, Row, row

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def three(pool: Pool, lane: str = "x", **fields: Any) -> list[str]:
    """Three tasks of one lane, submitted together."""
    return pool.put(*[row(lane=lane, **fields) for _ in range(3)])


def lane(pool: Pool, name: str = "x") -> list[str]:
    """Members of a lane, in their order."""
    return pool.members(pool.keys.lane(name))


def states(pool: Pool, *ids: str) -> list[str]:
    """The stored states of tasks."""
    return [pool.state(id_) for id_ in ids]


def test_first_has_the_turn(pool: Pool) -> None:
    """Of tasks submitted together the first is ready, the others wait in the lane and in no queue."""
    ids = three(pool)
    assert lane(pool) == ids
    assert states(pool, *ids) == ["ready", "waiting", "waiting"]
    assert pool.queue() == ids[:1]
    assert pool.notifications() == ["queue:skill:sum"]
    assert pool.task(ids[0])["lane"] == "x"


def test_one_after_another(pool: Pool) -> None:
    """The end of the owner gives the turn to the next, with one ring; the last one leaves no key."""
    pool.register()
    ids = three(pool)
    for place, id_ in enumerate(ids):
        pool.notifications()
        delivery = pool.one()
        assert delivery.task_id == id_
        pool.sleep(5)
        pool.end(delivery)
        assert lane(pool) == ids[place + 1 :]
        assert pool.queue() == ids[place + 1 : place + 2]
        assert pool.notifications() == ["queue:skill:sum"] * (place < 2)
    assert pool.execute("EXISTS", pool.keys.lane("x")) == 0


def test_becomes_ready_when_its_turn_comes(pool: Pool) -> None:
    """Its place in the queue is that of the moment at which its turn came, by its own priority."""
    pool.register()
    first, second = pool.put(row(lane="x"), row(lane="x", priority=0))
    delivery = pool.one()
    pool.sleep(70)
    pool.end(delivery)
    assert pool.score(pool.keys.queue("skill:sum"), second) == pool.now_ms
    assert first not in pool.queue()


def test_lanes_do_not_wait_for_each_other(pool: Pool) -> None:
    """Each lane has its own owner; tasks without a lane wait for none."""
    pool.register()
    rows = [row(lane="x"), row(lane="y"), row(lane="x"), row(lane="y"), row()]
    pool.put(*rows)
    assert [each.task_id for each in pool.deliver()] == [rows[0].id, rows[1].id, rows[4].id]


def test_any_queue(pool: Pool) -> None:
    """Members of a lane may be for different queues; the turn goes from one to the other."""
    pool.register()
    first, second = pool.put(row(lane="x"), row(lane="x", queue="agent:ed", skill="sum"))
    pool.end(pool.one())
    assert pool.queue("agent:ed") == [second]
    assert pool.one().task_id == second
    assert first not in lane(pool)


@each_case(
    ("kind", "fields"),
    [
        (VerdictKind.RETRY, {"payload": b"broken"}),
        (VerdictKind.RETRY, {"payload": b"broken", "delay_ms": 500}),
        (VerdictKind.SNOOZE, {"delay_ms": 500}),
        (VerdictKind.REQUEUE, {}),
        (VerdictKind.RELEASED, {}),
    ],
    fresh="pool",
)
def test_keeps_the_turn(pool: Pool, kind: VerdictKind, fields: dict[str, Any]) -> None:
    """A task that is tried again, snoozes or goes back keeps the turn: nothing of its lane overtakes it."""
    pool.register()
    ids = three(pool)
    pool.end(pool.one(), kind, **fields)
    assert lane(pool) == ids
    assert pool.state(ids[1]) == "waiting"
    pool.sleep(500)
    pool.promote()
    assert pool.one().task_id == ids[0]


def died(pool: Pool, delivery: Delivery) -> None:
    """Its host saw the worker die."""
    pool.abandon("w1")


def frozen(pool: Pool, delivery: Delivery) -> None:
    """Nobody renewed it, and a peer adopts it and gives it back."""
    pool.register("w2")
    pool.look("w2")
    pool.age(LEASE_MS + 1)
    (adopted,) = pool.adopt("w2")
    pool.end(adopted, VerdictKind.REQUEUE)


@pytest.mark.parametrize("lose", [died, frozen])
def test_keeps_the_turn_over_a_crash(pool: Pool, lose: Callable[[Pool, Delivery], None]) -> None:
    """A task whose worker died or froze keeps the turn."""
    pool.register()
    ids = three(pool)
    lose(pool, pool.one())
    assert lane(pool) == ids
    assert states(pool, *ids) == ["ready", "waiting", "waiting"]
    assert pool.queue() == ids[:1]


@pytest.mark.parametrize("end", ["succeeded", "dead", "cancelled", "deaths"])
def test_any_end_gives_the_turn_on(pool: Pool, end: str) -> None:
    """However the owner ends, the next one gets the turn."""
    pool.register()
    ids = three(pool)
    delivery = pool.one()
    if end == "deaths":
        pool.abandon("w1", max_deaths={"sum": 1})
    else:
        pool.end(delivery, VerdictKind(end))
    assert lane(pool) == pool.queue() + ids[2:] == ids[1:]
    assert states(pool, *ids[1:]) == ["ready", "waiting"]


def test_repeated_end_gives_nothing_on(pool: Pool) -> None:
    """The same verdict again moves nobody."""
    pool.register()
    three(pool)
    delivery = pool.one()
    pool.end(delivery)
    with pool.unchanged():
        pool.end(delivery)


def test_passes_by_who_has_ended(pool: Pool) -> None:
    """A member that ended while it waited is not waited for, nor is one whose record is gone."""
    pool.register()
    ids = [*three(pool), *three(pool)]
    delivery = pool.one()
    assert pool.cancel(ids[2]) == [(CancelStatus.ENDED, TaskState.CANCELLED)]
    assert lane(pool) == [id_ for id_ in ids if id_ != ids[2]]
    pool.execute("DEL", pool.keys.task(ids[1]))
    pool.execute("ZADD", pool.keys.lane("x"), 1, ids[2], 0, ids[0])  # a torn script left it there
    pool.end(delivery)
    assert lane(pool) == ids[3:]
    assert pool.queue() == ids[3:4]


def test_gives_on_within_bounds(pool: Pool) -> None:
    """Of very many lost members a hundred are passed by in one call; the rest is for the reconciler."""
    pool.register()
    ids = pool.put(*[row(lane="x") for _ in range(150)])
    delivery = pool.one()
    pool.execute("DEL", *[pool.keys.task(id_) for id_ in ids[1:149]])
    pool.end(delivery)
    assert lane(pool) == ids[100:]
    found = pool.repair(*[(id_, "lane:x") for id_ in ids[100:]], ("", "lane:x"))
    assert [code for _, code in found] == [*["gone"] * 49, "lost-turn"]
    assert lane(pool) == pool.queue() == ids[149:]


def test_clock_that_steps_back(pool: Pool) -> None:
    """The order is that of the submits, whatever the clock does."""
    first = three(pool)
    pool.sleep(-60_000)
    second = three(pool)
    pool.sleep(90_000)
    third = three(pool)
    assert lane(pool) == [*first, *second, *third]


def test_delayed_joins_when_due(pool: Pool) -> None:
    """A delayed task has no place in its lane before it is due; then it stands behind those that are there."""
    pool.register()
    delayed, alone = pool.put(row(lane="x", delay_ms=100), row(lane="y", delay_ms=100))
    ids = three(pool)
    assert lane(pool) == ids
    pool.sleep(100)
    assert pool.promote().promoted == 2
    assert lane(pool) == [*ids, delayed]
    assert pool.state(delayed) == "waiting"
    assert pool.state(alone) == "ready"
    assert set(pool.queue()) == {ids[0], alone}


def test_start_by_ends_who_waits(pool: Pool) -> None:
    """A member that did not get the turn in time expires; the order of the others stays."""
    pool.register()
    first, late, last = (row(lane="x"), row(lane="x", start_by_ms=pool.now_ms + 50), row(lane="x"))
    pool.put(first, late, last)
    delivery = pool.one()
    pool.sleep(50)
    assert pool.promote().expired == 1
    assert pool.state(late.id) == "expired"
    assert lane(pool) == [first.id, last.id]
    assert pool.members(pool.keys.expiring) == []
    pool.end(delivery)
    assert pool.queue() == [last.id]


def test_owner_that_does_not_start_in_time(pool: Pool) -> None:
    """An owner that expires in its queue gives the turn on."""
    first, second = pool.put(row(lane="x", start_by_ms=pool.now_ms + 50), row(lane="x"))
    pool.sleep(50)
    pool.register()
    assert pool.assign().count == 0
    assert pool.queue() == [second]
    assert pool.state(first) == "expired"


def test_requeued_joins_at_the_end(pool: Pool) -> None:
    """A requeued task stands behind those that are in its lane by then."""
    pool.register()
    ids = three(pool)
    pool.end(pool.one(), VerdictKind.DEAD)
    assert [status.value for status, _ in pool.retry(ids[0])] == ["requeued"]
    assert lane(pool) == [*ids[1:], ids[0]]
    assert states(pool, *ids) == ["waiting", "ready", "waiting"]
    assert pool.queue() == ids[1:2]


def test_deleting_who_waits_is_refused(pool: Pool) -> None:
    """What waits for its turn has not ended: it is ready."""
    ids = three(pool)
    assert [(status.value, state) for status, state in pool.delete(ids[1])] == [("refused", TaskState.READY)]


def test_foreign_names(pool: Pool) -> None:
    """Any text names a lane."""
    name = "a b/{c}:ü"
    encoded = pool.keys.lane(name).rpartition(":")[2]
    ids = pool.put(row(lane=encoded), row(lane=encoded))
    assert lane(pool, name) == ids
    assert states(pool, *ids) == ["ready", "waiting"]


# ---------------------------------------------------------------------------------------------------------- a busy lane


def test_reject(pool: Pool) -> None:
    """A busy lane refuses, and names the task that it is busy with; a free one takes the task."""
    first, second, third = (row(lane="x", on_busy="reject") for _ in range(3))
    assert pool.submit(first, second) == [("created", ""), ("busy", first.id)]
    with pool.unchanged():
        assert pool.submit(third) == [("busy", first.id)]
    pool.cancel(first.id)
    assert pool.submit(third) == [("created", "")]


def test_reject_by_what_retries(pool: Pool) -> None:
    """A task that waits for its next attempt keeps the lane busy."""
    pool.register()
    (first,) = pool.put(row(lane="x"))
    pool.end(pool.one(), VerdictKind.RETRY, payload=b"broken", delay_ms=1000)
    assert pool.submit(row(lane="x", on_busy="reject")) == [("busy", first)]


def test_lost_tasks_keep_nobody_out(pool: Pool) -> None:
    """A lane that lists only tasks that are gone is free."""
    pool.execute("DEL", *[pool.keys.task(id_) for id_ in three(pool)])
    task = row(lane="x", on_busy="reject")
    assert pool.submit(task) == [("created", "")]
    assert lane(pool) == [task.id]
    assert pool.state(task.id) == "ready"


def test_interrupts_what_waits(pool: Pool) -> None:
    """An owner that does not run ends at once, and the new task has the turn, ahead of those that wait."""
    ids = three(pool)
    (new,) = pool.put(row(lane="x", on_busy="interrupt"))
    assert pool.task(ids[0]).items() >= {"state": "cancelled", "reason": f"interrupted by task {new}"}.items()
    assert lane(pool) == [new, *ids[1:]]
    assert pool.queue() == [new]
    assert states(pool, new, *ids[1:]) == ["ready", "waiting", "waiting"]


def test_interrupts_what_runs(pool: Pool) -> None:
    """A running owner is marked and its worker gets a note; the new task is next."""
    pool.register()
    ids = three(pool)
    delivery = pool.one()
    (new,) = pool.put(row(lane="x", on_busy="interrupt"))
    assert pool.task(ids[0])["cancel"] == f"interrupted by task {new}"
    assert [flat[3] for _, flat in pool.entries(pool.keys.notes("w1"))] == [ids[0]]
    assert lane(pool) == [ids[0], new, *ids[1:]]
    assert pool.queue() == []
    pool.end(delivery, VerdictKind.CANCELLED)
    assert pool.queue() == [new]


def test_interrupts_what_nobody_has_read(pool: Pool) -> None:
    """An owner in an inbox that nobody has read ends at once and leaves the inbox."""
    pool.register()
    first, *others = three(pool)
    pool.assign()
    (new,) = pool.put(row(lane="x", on_busy="interrupt"))
    assert pool.state(first) == "cancelled"
    assert pool.inbox_length() == 0
    assert lane(pool) == [new, *others]


def test_the_last_to_interrupt_is_next(pool: Pool) -> None:
    """Of several that interrupt a running task the last one runs next."""
    pool.register()
    ids = three(pool)
    pool.one()
    (second,) = pool.put(row(lane="x", on_busy="interrupt"))
    (third,) = pool.put(row(lane="x", on_busy="interrupt"))
    assert lane(pool) == [ids[0], third, second, *ids[1:]]


def test_interrupt_within_one_call(pool: Pool) -> None:
    """Tasks of one call meet each other in their order, as if they had come one by one."""
    first, second, third, last = (
        row(lane="x", start_by_ms=pool.now_ms + 99),
        row(lane="x"),
        row(lane="x", on_busy="interrupt"),
        row(lane="x"),
    )
    pool.put(first, second, third, last)
    assert pool.state(first.id) == "cancelled"
    assert lane(pool) == [third.id, second.id, last.id]
    assert pool.queue() == [third.id]
    assert pool.members(pool.keys.expiring) == []
    assert pool.events() == [(first.id, "c")]


def test_replaces_who_has_not_begun(pool: Pool) -> None:
    """All that have not begun end with a reason that names the new task, which is next."""
    pool.register()
    ids = three(pool)
    delivery = pool.one()
    (new,) = pool.put(row(lane="x", on_busy="replace"))
    assert states(pool, *ids) == ["assigned", "cancelled", "cancelled"]
    assert pool.task(ids[1])["reason"] == f"replaced by task {new}"
    assert "cancel" not in pool.task(ids[0])
    assert lane(pool) == [ids[0], new]
    pool.end(delivery)
    assert pool.queue() == [new]


@pytest.mark.parametrize("unread", [False, True])
def test_replaces_an_owner_that_has_not_begun(pool: Pool, *, unread: bool) -> None:
    """An owner that waits in its queue, or unread in an inbox, is replaced too."""
    pool.register()
    ids = three(pool)
    if unread:
        pool.assign()
    (new,) = pool.put(row(lane="x", on_busy="replace"))
    assert states(pool, *ids) == ["cancelled"] * 3
    assert pool.inbox_length() == 0
    assert lane(pool) == pool.queue() == [new]


def test_what_was_tried_is_not_replaced(pool: Pool) -> None:
    """A task that waits for its next attempt has begun: it stays, and keeps the turn."""
    pool.register()
    ids = three(pool)
    pool.end(pool.one(), VerdictKind.RETRY, payload=b"broken", delay_ms=1000)
    (new,) = pool.put(row(lane="x", on_busy="replace"))
    assert lane(pool) == [ids[0], new]


def test_replaces_a_crowd_in_steps(pool: Pool) -> None:
    """More than a call may end: it ends what it may and asks for the row once more, and for all behind it."""
    pool.put(*[row(lane="x") for _ in range(500)])
    pool.put(*[row(lane="x") for _ in range(200)])
    rows = [row(lane="x", on_busy="replace"), row(lane="x"), row(lane="y")]
    assert pool.submit(*rows) == [("crowded", "x"), ("crowded", "x"), ("created", "")]
    assert len(lane(pool)) == 200
    assert pool.stats()["cancelled"] == 500
    assert pool.submit(*rows[:2]) == [("created", ""), ("created", "")]
    assert lane(pool) == [rows[0].id, rows[1].id]
    assert pool.stats()["cancelled"] == 700


@pytest.mark.parametrize("on_busy", ["", "reject", "interrupt", "replace"])
def test_known_tasks_meet_no_lane(pool: Pool, on_busy: str) -> None:
    """A submit that is sent again, by id or by key, finds its task and does nothing to the lane."""
    pool.register()
    three(pool)
    pool.one()
    task = row(lane="x", on_busy=on_busy, idem="k", digest="d")
    created = pool.submit(task)
    other = Row(row().id, lane="x", on_busy=on_busy, idem="k", digest="d")
    if on_busy == "reject":
        pool.cancel(*lane(pool)[1:])
        return
    assert created == [("created", "")]
    with pool.unchanged():
        assert pool.submit(task, other) == [("duplicate", task.id)] * 2


def test_a_lane_has_a_cap(pool: Pool) -> None:
    """A lane takes as many tasks as a queue does."""
    rows = [row(lane="x") for _ in range(4)]
    answers = pool.submit(*rows, max_tasks=3)
    assert answers == [*[("created", "")] * 3, ("full", "lane:x")]
    with pool.unchanged():
        assert pool.submit(rows[3], max_tasks=3) == [("full", "lane:x")]


def test_full_queue_leaves_the_lane_alone(pool: Pool) -> None:
    """A task that its queue refuses takes no turn."""
    pool.put()
    with pool.unchanged():
        assert pool.submit(row(lane="x"), row(lane="x"), max_tasks=1) == [("full", "skill:sum")] * 2


def test_batch_of_500(pool: Pool) -> None:
    """A full call of tasks of one lane keeps their order; so does one that ends them all."""
    pool.register(slots=1000)
    ids = pool.put(*[row(lane="x") for _ in range(500)])
    assert lane(pool) == ids
    assert [status for status, _ in pool.cancel(*ids)] == [CancelStatus.ENDED] * 500
    assert lane(pool) == pool.queue() == []


def test_lone_lanes_in_a_batch(pool: Pool) -> None:
    """Many owners may end in one call; each gives its turn on."""
    pool.register(slots=1000)
    rows = [row(lane=f"x{n % 250}") for n in range(500)]
    pool.put(*rows)
    taken = pool.deliver(limit=500)
    assert [each.task_id for each in taken] == [each.id for each in rows[:250]]
    pool.finish(*[(each, Verdict(VerdictKind.SUCCEEDED, b"1")) for each in taken])
    assert pool.queue() == [each.id for each in rows[250:]]


# --------------------------------------------------------------------------------------------------------------- repair


def walk(pool: Pool, *ids: str, repair: bool = True) -> list[tuple[str, str]]:
    """What a walk does with the tasks of lane x: their records, the members, and last the lane itself."""
    members = lane(pool)
    rows: list[str | tuple[str, str]] = [*ids, *[(id_, "lane:x") for id_ in members], ("", "lane:x")]
    return pool.repair(*rows, repair=repair)


def test_lost_lane(pool: Pool) -> None:
    """A lane that is lost is made again in its order, and nobody gets a turn that another one has."""
    pool.register()
    rows = []
    for _ in range(4):
        rows.append(row(lane="x"))
        pool.put(rows[-1])
        pool.sleep(3)
    ids = [each.id for each in rows]
    delivery = pool.one()
    pool.execute("DEL", pool.keys.lane("x"))
    met = [ids[2], ids[1], ids[3], ids[0]]
    assert walk(pool, *met) == [(id_, "lost-lane") for id_ in met]
    assert lane(pool) == ids
    assert pool.queue() == []
    assert walk(pool, *ids) == []
    pool.end(delivery)
    assert pool.queue() == ids[1:2]


def test_lost_lane_without_owner(pool: Pool) -> None:
    """When the owner ended while the lane was lost, the first of those that are left gets the turn."""
    pool.register()
    ids = three(pool)
    delivery = pool.one()
    pool.execute("DEL", pool.keys.lane("x"))
    pool.end(delivery)
    assert walk(pool, ids[2], ids[1]) == [(ids[2], "lost-lane"), (ids[1], "lost-lane"), ("lane:x", "lost-turn")]
    assert lane(pool) == ids[1:]
    assert pool.queue() == ids[1:2]


def test_new_owner_while_the_lane_was_lost(pool: Pool) -> None:
    """A task that got the turn of a lost lane gives it back unless it runs."""
    pool.register()
    ids = three(pool)
    pool.one()
    pool.execute("DEL", pool.keys.lane("x"))
    (new,) = pool.put(row(lane="x"))
    assert walk(pool, *ids, new) == [*[(id_, "lost-lane") for id_ in ids], (new, "out-of-turn")]
    assert lane(pool)[0] == ids[0]
    assert set(lane(pool)) == {*ids, new}
    assert pool.queue() == []
    assert pool.state(new) == "waiting"


def test_owner_that_was_never_handed_over(pool: Pool) -> None:
    """A lane whose first member has ended, as a torn script leaves it, or is gone, goes on."""
    pool.register()
    ids = three(pool)
    pool.end(pool.one())
    pool.execute("ZADD", pool.keys.lane("x"), 0, ids[0])
    pool.execute("HSET", pool.keys.task(ids[1]), "state", "waiting")
    pool.execute("DEL", pool.keys.queue("skill:sum"), pool.keys.queues)
    with pool.unchanged():
        assert walk(pool, repair=False) == [(ids[0], "misplaced")]
    assert walk(pool) == [(ids[0], "misplaced"), ("lane:x", "lost-turn")]
    assert pool.queue() == lane(pool)[:1] == ids[1:2]
    assert walk(pool, *ids) == []


@pytest.mark.parametrize("kind", [VerdictKind.RETRY, VerdictKind.SNOOZE])
def test_scheduled_owner_is_put_back(pool: Pool, kind: VerdictKind) -> None:
    """A task between two attempts that its lane has lost gets its turn back; a delayed one has none to lose."""
    pool.register()
    ids = three(pool)
    pool.end(pool.one(), kind, payload=b"", delay_ms=1000)
    (delayed,) = pool.put(row(lane="x", delay_ms=1000))
    pool.execute("ZREM", pool.keys.lane("x"), ids[0])
    assert walk(pool, *ids, delayed) == [(ids[0], "lost-lane")]
    assert lane(pool) == ids


def test_of_another_lane(pool: Pool) -> None:
    """A lane that lists a task of another one loses it."""
    (other,) = pool.put(row(lane="y"))
    ids = three(pool)
    pool.execute("ZADD", pool.keys.lane("x"), 0, other)
    assert (other, "misplaced") in walk(pool, *ids, other)
    assert pool.queue() == [other, ids[0]]
    assert lane(pool) == ids


def test_damaged_owner(pool: Pool) -> None:
    """A damaged owner ends, and the next one gets the turn."""
    ids = three(pool)
    pool.execute("HSET", pool.keys.task(ids[0]), "env", "no envelope")
    assert (ids[0], "damaged") in walk(pool, *ids)
    assert states(pool, *ids) == ["dead", "ready", "waiting"]
    assert walk(pool, *ids) == []


def test_other_types_in_the_way(pool: Pool) -> None:
    """Where another type lies as the lane, or as the record of the next one, nothing fails and nothing is repaired."""
    ids = three(pool)
    pool.execute("HSET", pool.keys.task(ids[0]), "env", "no envelope")
    pool.execute("DEL", pool.keys.task(ids[1]))
    pool.execute("SET", pool.keys.task(ids[1]), "x")
    assert (ids[0], "damaged") in pool.repair(ids[0], ("", "lane:x"))
    assert pool.state(ids[0]) == "ready"
    assert pool.repair((ids[1], "lane:x")) == [(ids[1], "unreadable")]
    pool.execute("DEL", pool.keys.lane("x"))
    pool.execute("SET", pool.keys.lane("x"), "x")
    with pool.unchanged():
        assert pool.repair(ids[2], (ids[2], "lane:x"), ("", "lane:x"), (ids[2], "lane")) == []
    pool.execute("DEL", pool.keys.lane("x"), pool.keys.task(ids[1]))
