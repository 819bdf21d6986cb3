"""lua/tasks/join.lua, and what the other scripts do with a task that waits for tasks that it joins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.store.calls import opaque
from orchestrator.tasks.model import (
    CancelStatus,
    DeleteStatus,
    Delivery,
    Envelope,
    FinishStatus,
    RequeueStatus,
    Verdict,
    VerdictKind,
    encode_envelope,
)
from tests.lua.pool import MAX_WAIT_S, row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.lua.pool import Pool, Row

pytestmark = pytest.mark.every_server

DAY_S = 86_400


@pytest.fixture
def parent(pool: Pool) -> Delivery:
    """A task in the hands of a worker."""
    pool.register(slots=2000)
    pool.put(row(idem="k", digest="d"))
    return pool.one()


def below(parent: Delivery, **fields: Any) -> Row:
    """A child, as the handler of its parent submits it."""
    packed = encode_envelope(Envelope("sum", b"{}", parent=parent.task_id, depth=1))
    return row(envelope=opaque(packed), parent=parent.task_id, parent_generation=parent.generation, depth=1, **fields)


def children(pool: Pool, parent: Delivery, count: int) -> list[str]:
    """Submit children."""
    return pool.put(*[below(parent) for _ in range(count)])


def wait_for(pool: Pool, parent: Delivery, ids: Sequence[str], **terms: Any) -> None:
    """End the attempt of a parent, which joins these tasks."""
    assert pool.join(parent, ids, **terms).status == "registered"
    assert pool.begin_to_join(parent) is FinishStatus.OK


def run(pool: Pool, *ids: str) -> list[Delivery]:
    """Deliver tasks, and return those of these ids in this order."""
    found = {one.task_id: one for one in pool.deliver(limit=2000)}
    return [found[one] for one in ids]


def joins(pool: Pool, parent: Delivery) -> list[str]:
    """The tasks of a join that have not ended."""
    return pool.members(pool.keys.joins(parent.task_id))


def held_by_worker(pool: Pool, id_: str) -> Delivery:
    """A task that a worker has read before, as it got it."""
    agent, entry, _ = pool.task(id_)["at"].split()
    return Delivery(agent, entry, id_, pool.task(id_)["gen"], 1, 0, b"")


# ---------------------------------------------------------------------------------------------------------------- join


def test_join_frees_the_slot(pool: Pool, parent: Delivery) -> None:
    """An attempt that joins ends without counting; its task waits in `joining` alone, in a new generation."""
    ids = children(pool, parent, 3)
    reply = pool.join(parent, ids)
    assert (reply.status, reply.looked, reply.left) == ("registered", 3, 3)
    pool.sleep(5)
    assert pool.begin_to_join(parent) is FinishStatus.OK
    stored = pool.task(parent.task_id)
    assert stored["state"] == "joining"
    assert int(stored["gen"]) > int(parent.generation)
    assert stored["join:1"] == f"{pool.now_ms} 0"
    assert {"fails", "by"}.isdisjoint(stored)
    assert pool.members(pool.keys.joining) == [parent.task_id]
    assert pool.execute("ZSCORE", pool.keys.joining, parent.task_id) == b"inf"
    assert joins(pool, parent) == ids
    assert {pool.task(one)["joined"] for one in ids} == {parent.task_id}
    assert (sorted(pool.queue()), pool.inbox_length()) == (sorted(ids), 0)
    assert pool.stats()["joining"] == 1
    assert pool.ttl_s(pool.keys.task(parent.task_id)) == pool.ttl_s(f"{pool.keys.root}:idem:k") == MAX_WAIT_S
    assert pool.ttl_s(pool.keys.joins(parent.task_id)) == MAX_WAIT_S + DAY_S


def test_repeats(pool: Pool, parent: Delivery) -> None:
    """A join and its verdict that are sent again change nothing; those of an attempt that lost its task neither."""
    ids = children(pool, parent, 2)
    pool.join(parent, ids)
    with pool.unchanged():
        pool.join(parent, ids)
    pool.begin_to_join(parent)
    with pool.unchanged():
        assert pool.begin_to_join(parent) is FinishStatus.ALREADY
        assert pool.join(parent, ids).status == "stale"


def test_all_end(pool: Pool, parent: Delivery) -> None:
    """The last end makes the parent ready, once, at the place that it came from."""
    ids = children(pool, parent, 3)
    wait_for(pool, parent, ids)
    first, second, third = run(pool, *ids)
    pool.end(first)
    pool.end(second, VerdictKind.DEAD, reason="no")
    assert pool.state(parent.task_id) == "joining"
    (later,) = pool.put()
    pool.notifications()
    pool.sleep(700)
    pool.end(third)
    assert pool.state(parent.task_id) == "ready"
    assert pool.queue() == [parent.task_id, later]
    assert pool.members(pool.keys.joining) == joins(pool, parent) == []
    assert pool.stats()["joined"] == 1
    with pool.unchanged():
        assert pool.end(third) is FinishStatus.ALREADY
    again, _ = pool.deliver()
    assert (again.task_id, again.attempt) == (parent.task_id, 1)
    pool.end(again)
    assert pool.state(parent.task_id) == "succeeded"


def test_ended_meanwhile(pool: Pool, parent: Delivery) -> None:
    """Tasks that have ended, or do not exist, do not count; a join of none that is left is over at once."""
    ids = children(pool, parent, 3)
    for one in run(pool, *ids[:2]):
        pool.end(one)
    reply = pool.join(parent, [*ids, row().id])
    assert (reply.looked, reply.left) == (4, 1)
    pool.end(held_by_worker(pool, ids[2]))
    pool.notifications()
    assert pool.begin_to_join(parent) is FinishStatus.OK
    assert pool.state(parent.task_id) == "ready"
    assert pool.queue() == [parent.task_id]
    assert pool.members(pool.keys.joining) == joins(pool, parent) == []


def test_a_join_that_was_not_registered_is_over(pool: Pool, parent: Delivery) -> None:
    """A verdict without a registration of its attempt lets the task run again."""
    assert pool.begin_to_join(parent) is FinishStatus.OK
    assert (pool.state(parent.task_id), pool.queue()) == ("ready", [parent.task_id])


@pytest.mark.parametrize("when", ["while it registers", "while it waits"])
def test_enough_of_them(pool: Pool, parent: Delivery, when: str) -> None:
    """A join that allows tasks to be left is over when no more than these are left."""
    ids = children(pool, parent, 4)
    pool.join(parent, ids, left=2)
    first, second, *_ = run(pool, *ids)
    if when == "while it registers":
        pool.finish((first, Verdict(VerdictKind.SUCCEEDED, b"1")), (second, Verdict(VerdictKind.SUCCEEDED, b"1")))
        pool.begin_to_join(parent)
    else:
        pool.begin_to_join(parent)
        pool.end(first)
        assert pool.state(parent.task_id) == "joining"
        pool.end(second)
    assert (pool.state(parent.task_id), joins(pool, parent)) == ("ready", [])


@pytest.mark.parametrize("when", ["before", "while it registers", "while it waits"])
def test_first_failure(pool: Pool, parent: Delivery, when: str) -> None:
    """The first failure ends a join that stops there, also when it comes before the last call that registers."""
    ids = children(pool, parent, 4)
    failing, *_ = run(pool, *ids)
    if when == "before":
        pool.end(failing, VerdictKind.DEAD)
    pool.join(parent, ids[:2], stop=True)
    if when == "while it registers":
        pool.end(failing, VerdictKind.DEAD)
    pool.join(parent, ids[2:], stop=True, part="more")
    pool.begin_to_join(parent)
    if when == "while it waits":
        assert pool.state(parent.task_id) == "joining"
        pool.end(failing, VerdictKind.DEAD)
    assert pool.state(parent.task_id) == "ready"


def test_failures_that_do_not_stop(pool: Pool, parent: Delivery) -> None:
    """A task that is cancelled, expires or dies counts as ended."""
    ids = pool.put(below(parent), below(parent, start_by_ms=pool.now_ms + 50), below(parent))
    wait_for(pool, parent, ids)
    assert pool.cancel(ids[0]) == [(CancelStatus.ENDED, "cancelled")]
    pool.sleep(60)
    pool.promote()
    assert pool.state(ids[1]) == "expired"
    assert joins(pool, parent) == [ids[2]]
    (last,) = run(pool, ids[2])
    pool.end(last, VerdictKind.DEAD)
    assert pool.state(parent.task_id) == "ready"


def test_many_steps(pool: Pool, parent: Delivery) -> None:
    """A large join is registered by 500; a first call drops what an earlier attempt has registered."""
    ids = [one for _ in range(3) for one in children(pool, parent, 500)]
    other = children(pool, parent, 1)
    pool.join(parent, other)
    for first in range(0, 1500, 500):
        reply = pool.join(parent, ids[first : first + 500], part="more" if first else "first")
        assert (reply.looked, reply.left) == (500, 500)
    assert sorted(joins(pool, parent)) == sorted(ids)
    pool.begin_to_join(parent)
    for _ in range(3):
        assert pool.state(parent.task_id) == "joining"
        held = [one for one in pool.deliver(limit=500) if one.task_id != other[0]]
        pool.finish(*[(one, Verdict(VerdictKind.SUCCEEDED, b"1")) for one in held])
    while joins(pool, parent):
        pool.finish(*[(one, Verdict(VerdictKind.SUCCEEDED, b"1")) for one in pool.deliver(limit=500)])
    assert pool.state(parent.task_id) == "ready"


# ------------------------------------------------------------------------------------------------------- many parents


def test_one_task_of_many_parents(pool: Pool) -> None:
    """Each parent of a task goes on when it ends; one above the cap is refused, unless another one has gone on."""
    pool.register(slots=100)
    (child,) = pool.put()
    (shared,) = run(pool, child)
    parents = [pool.one() for _ in range(4) if pool.put()]
    for one in parents[:3]:
        wait_for(pool, one, [child])
    with pool.unchanged():
        assert pool.join(parents[3], [child], most=3)[:2] == ("crowded", child)
    pool.cancel(parents[0].task_id)
    assert pool.join(parents[3], [child], most=3).status == "registered"
    assert pool.task(child)["joined"].split() == [one.task_id for one in parents[1:]]
    pool.begin_to_join(parents[3])
    pool.end(shared)
    assert [pool.state(one.task_id) for one in parents] == ["cancelled", "ready", "ready", "ready"]
    assert pool.stats()["joined"] == 3


def test_ends_of_many_parents(pool: Pool) -> None:
    """One call that ends the tasks of 4,000 parents makes 500 ready; `promote` makes the others ready, each once."""
    pool.register(slots=5000)
    shared = [one for _ in range(2) for one in pool.put(*[row() for _ in range(40)])]
    held = run(pool, *shared)
    parents = []
    for _ in range(8):
        pool.put(*[row() for _ in range(500)])
        parents += pool.deliver(limit=500)
    for n, one in enumerate(parents):
        assert pool.join(one, [shared[n % 80]], most=50).status == "registered"
    for first in range(0, 4000, 500):
        part = parents[first : first + 500]
        pool.finish(*[(one, Verdict(VerdictKind.JOIN, number=1)) for one in part])
    assert len(pool.members(pool.keys.joining)) == 4000
    pool.notifications()
    pool.finish(*[(one, Verdict(VerdictKind.SUCCEEDED, b"1")) for one in held])
    assert len(pool.queue()) == 500
    assert "scheduled" in pool.notifications()
    promoted = [pool.promote().promoted for _ in range(7)]
    assert promoted == [500] * 7
    assert (sorted(pool.queue()), pool.members(pool.keys.joining)) == (sorted(one.task_id for one in parents), [])
    assert pool.stats()["joined"] == 4000


def test_end_of_a_task_of_very_many_parents(pool: Pool) -> None:
    """A task that more parents name than its cap, because its record was changed, ends without an error."""
    pool.register(slots=100)
    (child,) = pool.put()
    (held,) = run(pool, child)
    many = [row().id for _ in range(5000)]
    for one in many:
        pool.execute("ZADD", pool.keys.joins(one), 1, child)
        pool.execute(
            "HSET",
            pool.keys.task(one),
            "state",
            "joining",
            "env",
            b"\x92\xa3sum\xc4\x02{}",
            "gen",
            1,
            "join",
            "1 1 0 0 99",
        )
        pool.execute("ZADD", pool.keys.joining, "inf", one)
    pool.execute("HSET", pool.keys.task(child), "joined", " ".join(many))
    assert pool.end(held) is FinishStatus.OK
    for _ in range(9):
        pool.promote()
    assert len(pool.queue()) == 5000


# -------------------------------------------------------------------------------------------------------------- cycles


def test_cycles_are_refused(pool: Pool, parent: Delivery) -> None:
    """A task cannot join itself, one above it, or one that joins it, directly or over others."""
    (child,) = children(pool, parent, 1)
    (held,) = run(pool, child)
    (below_it,) = children(pool, held, 1)
    (deepest,) = run(pool, below_it)
    for one in (deepest, held, parent):
        with pool.unchanged():
            assert pool.join(deepest, [one.task_id])[:2] == ("cycle", one.task_id)
    pool.put(row(), row())
    first, second = pool.deliver()
    wait_for(pool, first, [second.task_id])
    assert pool.join(second, [first.task_id])[:2] == ("cycle", first.task_id)
    # Over a task that the first one may join any time, because it stands above it.
    wait_for(pool, deepest, [second.task_id])
    assert pool.join(second, [parent.task_id])[:2] == ("cycle", parent.task_id)
    assert pool.join(second, [held.task_id])[:2] == ("cycle", held.task_id)
    assert pool.join(parent, [child]).status == "registered"


def test_a_wide_join_is_no_cycle(pool: Pool, parent: Delivery) -> None:
    """A parent may join its children however many tasks these join; a search that is too long refuses, and says so."""
    (child,) = children(pool, parent, 1)
    (held,) = run(pool, child)
    wait_for(pool, held, children(pool, held, 500))
    assert pool.join(parent, [child]).status == "registered"
    pool.put(*[row() for _ in range(2)])
    _, other, *_ = [one for one in pool.deliver(limit=2000) if pool.task(one.task_id).get("joined") is None]
    (target,) = pool.put()
    waiting = [row().id for _ in range(600)]
    pool.execute("HSET", pool.keys.task(other.task_id), "joined", " ".join(waiting))
    with pool.unchanged():
        assert pool.join(other, [target])[:2] == ("unknown", target)


def test_lanes(pool: Pool) -> None:
    """A task of the parent's lane is refused, and one that waits for the turn of a task that waits for the parent."""
    pool.register(slots=100)
    first_id, second_id = pool.put(row(lane="l"), row(lane="l"))
    (first,) = run(pool, first_id)
    assert pool.join(first, [second_id])[:2] == ("cycle", second_id)
    (other_id,) = pool.put()
    (other,) = run(pool, other_id)
    wait_for(pool, first, [other_id])
    assert pool.join(other, [second_id])[:2] == ("cycle", second_id)


def test_awaited(pool: Pool, parent: Delivery) -> None:
    """A task whose attempt awaits the parent is refused, and an attempt that awaits a task which joins its own."""
    (other_id,) = pool.put()
    (other,) = run(pool, other_id)
    pool.lend("w1", (other, parent.task_id))
    assert pool.join(parent, [other_id])[:2] == ("cycle", other_id)
    pool.lend("w1", (other, ""))
    wait_for(pool, parent, [other_id])
    (answer,) = pool.lend("w1", (other, parent.task_id)).recorded
    assert list(answer.cycle) == [parent.task_id, other_id]


# -------------------------------------------------------------------------------------------------- deadlines, cancels


@pytest.mark.parametrize("when", ["delay", "at"])
def test_deadline(pool: Pool, parent: Delivery, when: str) -> None:
    """With a deadline the promoter ends the join at that time; the record says that it is over."""
    ids = children(pool, parent, 2)
    pool.join(parent, ids)
    pool.notifications()
    due_ms = pool.now_ms + 90_000_000
    pool.begin_to_join(parent, delay_ms=90_000_000 if when == "delay" else 0, at_ms=due_ms if when == "at" else 0)
    assert pool.score(pool.keys.joining, parent.task_id) == due_ms
    assert "scheduled" in pool.notifications()
    assert pool.ttl_s(pool.keys.task(parent.task_id)) == MAX_WAIT_S + 90_000
    assert pool.promote().wait_s == 90_000
    began_ms = pool.now_ms
    pool.sleep(90_000_000)
    assert pool.promote().promoted == 1
    assert pool.task(parent.task_id)["join:1"] == f"{began_ms} {due_ms} over"
    assert pool.state(parent.task_id) == "ready"
    assert (pool.members(pool.keys.joining), joins(pool, parent)) == ([], [])
    assert pool.stats()["join_timeout"] == 1
    with pool.unchanged():
        pool.promote()


def test_deadline_stays(pool: Pool, parent: Delivery) -> None:
    """A task that comes to the same join again keeps the deadline of the first time; a retry begins anew."""
    (child,) = children(pool, parent, 1)
    pool.join(parent, [child])
    due_ms = pool.now_ms + 1000
    pool.begin_to_join(parent, delay_ms=1000)
    (held,) = run(pool, child)
    pool.end(held, VerdictKind.DEAD)
    pool.retry(child)
    again = next(one for one in pool.deliver() if one.task_id == parent.task_id)
    pool.sleep(500)
    pool.join(again, [child])
    pool.begin_to_join(again, delay_ms=1000)
    assert pool.score(pool.keys.joining, parent.task_id) == due_ms
    pool.cancel(parent.task_id, only_this=True)
    assert pool.retry(parent.task_id) == [(RequeueStatus.REQUEUED, "cancelled")]
    assert "join:1" not in pool.task(parent.task_id)


def test_cancel(pool: Pool, parent: Delivery) -> None:
    """A cancelled parent leaves `joining`; its children are cancelled with it, and do not make it ready."""
    ids = children(pool, parent, 3)
    wait_for(pool, parent, ids)
    assert pool.cancel(parent.task_id) == [(CancelStatus.ENDED, "cancelled")]
    assert (pool.members(pool.keys.joining), joins(pool, parent)) == ([], [])
    pool.cancel_children()
    assert {pool.state(one) for one in (*ids, parent.task_id)} == {"cancelled"}
    assert pool.queue() == []


def test_cancel_of_all_in_one_call(pool: Pool, parent: Delivery) -> None:
    """A call that cancels the children and then the parent leaves nothing in a queue."""
    ids = children(pool, parent, 3)
    wait_for(pool, parent, ids)
    pool.cancel(*ids, parent.task_id)
    assert pool.state(parent.task_id) == "cancelled"
    assert (pool.queue(), pool.members(pool.keys.joining)) == ([], [])


def test_cancel_of_a_running_parent(pool: Pool, parent: Delivery) -> None:
    """A parent that was told to stop while it registered ends as cancelled."""
    ids = children(pool, parent, 1)
    pool.join(parent, ids)
    pool.cancel(parent.task_id, only_this=True)
    pool.begin_to_join(parent)
    assert (pool.state(parent.task_id), pool.members(pool.keys.joining)) == ("cancelled", [])


def test_delete(pool: Pool, parent: Delivery) -> None:
    """A task that waits cannot be deleted; an ended child can, and the parent goes on without it."""
    ids = children(pool, parent, 1)
    wait_for(pool, parent, ids)
    assert pool.delete(parent.task_id) == [(DeleteStatus.REFUSED, "joining")]
    pool.cancel(*ids)
    assert pool.delete(*ids) == [(DeleteStatus.DELETED, "cancelled")]
    assert pool.state(parent.task_id) == "ready"


def test_a_deleted_child_is_not_submitted_again(pool: Pool, parent: Delivery) -> None:
    """The key of a deleted child is kept while its parent has not ended, so that the next attempt finds it gone."""
    (child,) = pool.put(below(parent, idem="a", digest="d"))
    wait_for(pool, parent, [child])
    pool.cancel(child)
    pool.delete(child)
    again = pool.one()
    assert pool.submit(below(again, idem="a", digest="d")) == [("duplicate", child)]
    assert pool.ttl_s(pool.keys.task(child)) == MAX_WAIT_S + DAY_S


def test_ended_children_are_kept(pool: Pool, parent: Delivery) -> None:
    """An ended child, with its key, is kept until the parent has read it: a day longer than the parent may wait."""
    early, late = pool.put(*[below(parent, idem=name, digest="d") for name in "ab"])
    first, second = run(pool, early, late)
    pool.end(first)
    wait_for(pool, parent, [early, late])
    pool.end(second)
    assert pool.ttl_s(pool.keys.task(early)) == pool.ttl_s(f"{pool.keys.root}:idem:a") == MAX_WAIT_S + DAY_S
    assert pool.ttl_s(pool.keys.task(late)) == pool.ttl_s(f"{pool.keys.root}:idem:b") == MAX_WAIT_S + DAY_S


def test_children_that_ended_before_are_kept(pool: Pool, parent: Delivery) -> None:
    """A child that had ended when the join began is kept as long as the others, and names its parent, once."""
    early, late = pool.put(*[below(parent, idem=name, digest="d") for name in "ab"])
    pool.end(run(pool, early)[0])
    assert pool.join(parent, [early, late])[2:] == (2, 1)
    with pool.unchanged():
        pool.join(parent, [early, late])
    pool.begin_to_join(parent)
    assert pool.ttl_s(pool.keys.task(early)) == pool.ttl_s(f"{pool.keys.root}:idem:a") == MAX_WAIT_S + DAY_S
    assert pool.task(early)["joined"] == parent.task_id
    pool.delete(early)
    pool.end(held_by_worker(pool, late))
    assert pool.submit(below(pool.one(), idem="a", digest="d")) == [("duplicate", early)]


def test_children_of_an_earlier_join_are_kept(pool: Pool, parent: Delivery) -> None:
    """A later join that waits longer keeps the tasks of an earlier one, with their keys, and judges none of them."""
    early, failed, late = pool.put(*[below(parent, idem=name, digest="d") for name in "abc"])
    first, second = run(pool, early, failed)
    wait_for(pool, parent, [early, failed])
    pool.end(first)
    pool.end(second, VerdictKind.DEAD)
    again = pool.one()
    much = 10 * MAX_WAIT_S
    assert pool.join(again, [late], stop=True, keep_s=much).left == 1
    before = pool.task(parent.task_id)["join"]
    assert pool.join(again, [early, failed], stop=True, keep_s=much, part="earlier")[2:] == (2, 0)
    for name, id_ in (("a", early), ("b", failed)):
        assert pool.ttl_s(pool.keys.task(id_)) == pool.ttl_s(f"{pool.keys.root}:idem:{name}") == much + DAY_S
    assert (joins(pool, again), pool.task(parent.task_id)["join"]) == ([late], before)
    with pool.unchanged():
        pool.join(again, [early, failed], stop=True, keep_s=much, part="earlier")


def test_children_of_an_ended_parent_are_not_kept(pool: Pool, parent: Delivery) -> None:
    """A task that ends after its parents is kept for its own time."""
    first, second = children(pool, parent, 2)
    wait_for(pool, parent, [first, second], left=1)
    pool.end(run(pool, first)[0])
    pool.end(run(pool, parent.task_id)[0])
    pool.end(held_by_worker(pool, second))
    assert pool.ttl_s(pool.keys.task(second)) < MAX_WAIT_S


def test_a_parent_without_a_lifetime(pool: Pool, parent: Delivery) -> None:
    """The lifetime of an ended task follows from the join of its parent, not from what the parent has left."""
    (child,) = children(pool, parent, 1)
    wait_for(pool, parent, [child])
    pool.execute("PERSIST", pool.keys.task(parent.task_id))
    pool.end(run(pool, child)[0])
    assert pool.ttl_s(pool.keys.task(child)) == MAX_WAIT_S + DAY_S


def test_how_a_join_was_met(pool: Pool, parent: Delivery) -> None:
    """What an attempt stores stays with the join; one that lost its task stores nothing."""
    pool.met(parent, "d1 -")
    assert pool.task(parent.task_id)["join:1"] == "0 0 met d1 -"
    with pool.unchanged():
        pool.met(parent, "d1 -")
    (child,) = children(pool, parent, 1)
    pool.join(parent, [child], number=2)
    pool.begin_to_join(parent, 2)
    with pool.unchanged():
        assert pool.met(parent, "d2 -").status == "stale"
    pool.end(run(pool, child)[0])
    began = pool.task(parent.task_id)["join:2"]
    pool.met(pool.one(), f"d2 {child}", number=2)
    assert pool.task(parent.task_id)["join:2"] == f"{began} met d2 {child}"


def test_a_join_begins_after_it_was_met(pool: Pool, parent: Delivery) -> None:
    """A join that was met without a wait, and waits because a task was retried, has its deadline from then."""
    pool.met(parent, "d -")
    ids = children(pool, parent, 1)
    pool.join(parent, ids)
    assert pool.begin_to_join(parent, delay_ms=5) is FinishStatus.OK
    assert pool.task(parent.task_id)["join:1"] == f"{pool.now_ms} {pool.now_ms + 5}"


def test_own_children_of_a_crowded_lane(pool: Pool) -> None:
    """A task of a lane with very many members joins its own children: they have no lane, and need no search."""
    pool.register(slots=10)
    first_id, *_ = pool.put(*[row(lane="l") for _ in range(502)])
    (first,) = run(pool, first_id)
    child, laned = pool.put(below(first), below(first, lane="other"))
    assert pool.join(first, [child]).status == "registered"
    assert pool.join(first, [laned])[:2] == ("unknown", laned)


def test_the_search_for_cycles_is_bounded(pool: Pool) -> None:
    """A search that would read many MB of arguments is given up."""
    pool.register(slots=10)
    large = opaque(encode_envelope(Envelope("sum", b'"' + b"x" * 900_000 + b'"')))
    first_id, *_ = pool.put(*[row(lane="l", envelope=large) for _ in range(6)])
    (first,) = run(pool, first_id)
    (other,) = pool.put()
    assert pool.join(first, [other])[:2] == ("unknown", other)


def test_a_met_join_counts_as_joined(pool: Pool, parent: Delivery) -> None:
    """A join that is met when its attempt ends counts as begun and as met."""
    ids = children(pool, parent, 1)
    pool.join(parent, ids)
    pool.end(run(pool, *ids)[0])
    pool.begin_to_join(parent)
    assert (pool.stats()["joining"], pool.stats()["joined"]) == (1, 1)


def test_lane_and_share_are_kept(pool: Pool) -> None:
    """A parent keeps the turn of its lane while it waits, and frees its place in the share of its key."""
    pool.register(slots=10)
    first_id, second_id = pool.put(row(lane="l", fair="f"), row(lane="l"))
    (first,) = run(pool, first_id)
    (child,) = pool.put()
    (held,) = run(pool, child)
    assert pool.taken("f") == [first_id]
    wait_for(pool, first, [child])
    assert (pool.taken("f"), pool.state(second_id)) == ([], "waiting")
    pool.end(held)
    assert pool.state(first_id) == "ready"
    (again,) = run(pool, first_id)
    assert pool.taken("f") == [first_id]
    pool.end(again)
    assert pool.state(second_id) == "ready"


def test_events(pool: Pool, parent: Delivery) -> None:
    """Followers learn of the begin and the end of a join."""
    pool.watch(parent.task_id)
    (child,) = children(pool, parent, 1)
    wait_for(pool, parent, [child])
    (held,) = run(pool, child)
    pool.end(held)
    assert [kind for kind, *_ in pool.out(parent.task_id)][-2:] == ["joining", "joined"]


# --------------------------------------------------------------------------------------------------------------- repair


def test_repair_of_the_indexes(pool: Pool, parent: Delivery) -> None:
    """A parent that `joining` misses is listed; a child names its parent again; a met join ends."""
    ids = children(pool, parent, 2)
    wait_for(pool, parent, ids)
    place = f"joins:{parent.task_id}"
    rows: list[str | tuple[str, str]] = [parent.task_id, (parent.task_id, "joining"), *((one, place) for one in ids)]
    assert pool.repair(*rows) == []
    pool.execute("DEL", pool.keys.joining)
    pool.execute("HDEL", pool.keys.task(ids[0]), "joined")
    assert pool.repair(*rows) == [(parent.task_id, "lost-joining"), (ids[0], "lost-parent")]
    assert pool.members(pool.keys.joining) == [parent.task_id]
    assert pool.repair(*rows) == []
    # The end of one was not noted, and the record of the other one is gone.
    pool.execute("HDEL", pool.keys.task(ids[0]), "joined")
    pool.cancel(ids[0])
    pool.execute("DEL", pool.keys.task(ids[1]))
    assert pool.repair(*rows) == [(ids[0], "misplaced"), (ids[1], "gone")]
    assert (pool.state(parent.task_id), pool.members(pool.keys.joining)) == ("ready", [])
    assert parent.task_id in pool.queue()


def test_repair_of_a_lost_join(pool: Pool, parent: Delivery) -> None:
    """A task whose list of tasks is lost is ready, because its next attempt registers the join again."""
    wait_for(pool, parent, children(pool, parent, 2))
    pool.execute("DEL", pool.keys.joins(parent.task_id))
    assert pool.repair(parent.task_id) == [(parent.task_id, "lost-join")]
    assert pool.state(parent.task_id) == "ready"
    assert parent.task_id in pool.queue()
    assert pool.repair(parent.task_id) == []


def test_what_a_dead_attempt_leaves(pool: Pool, parent: Delivery) -> None:
    """What an attempt registered that ended otherwise leaves with the ends of the tasks; a scan removes it silently."""
    ids = children(pool, parent, 2)
    pool.join(parent, ids)
    assert pool.repair((ids[0], f"joins:{parent.task_id}")) == []
    assert joins(pool, parent) == ids
    pool.end(parent, VerdictKind.REQUEUE)
    assert pool.repair((ids[0], f"joins:{parent.task_id}")) == []
    assert joins(pool, parent) == ids[1:]
    pool.cancel(ids[1])
    assert joins(pool, parent) == []
    assert pool.state(parent.task_id) == "ready"


def test_keys_of_another_type(pool: Pool, parent: Delivery) -> None:
    """A list of another type, which a client may write, fails no end of a task."""
    (child,) = children(pool, parent, 1)
    wait_for(pool, parent, [child])
    pool.execute("DEL", pool.keys.joins(parent.task_id))
    pool.execute("SET", pool.keys.joins(parent.task_id), "x")
    (held,) = run(pool, child)
    assert pool.end(held) is FinishStatus.OK
    assert pool.state(child) == "succeeded"
    pool.execute("DEL", pool.keys.joins(parent.task_id))


def test_a_list_of_another_type_is_replaced(pool: Pool, parent: Delivery) -> None:
    """A later call of a join replaces such a list before it writes."""
    ids = children(pool, parent, 2)
    pool.join(parent, ids[:1])
    pool.execute("DEL", pool.keys.joins(parent.task_id))
    pool.execute("SET", pool.keys.joins(parent.task_id), "x")
    assert pool.join(parent, ids[1:], part="more").status == "registered"
    assert joins(pool, parent) == ids[1:]


def test_repair_of_a_list_of_another_type(pool: Pool, parent: Delivery) -> None:
    """The reconciler ends a join whose list has another type, and `why` explains the task before."""
    ids = children(pool, parent, 1)
    wait_for(pool, parent, ids)
    pool.execute("DEL", pool.keys.joins(parent.task_id))
    pool.execute("SET", pool.keys.joins(parent.task_id), "x")
    pool.why(parent.task_id)
    assert pool.repair(parent.task_id) == [(parent.task_id, "lost-join")]
    assert pool.state(parent.task_id) == "ready"
    assert not pool.execute("EXISTS", pool.keys.joins(parent.task_id))


def test_repair_keeps_the_key(pool: Pool, parent: Delivery) -> None:
    """The reconciler lets the idempotency key of a task that joins live as long as its record."""
    wait_for(pool, parent, children(pool, parent, 1))
    for key in (pool.keys.task(parent.task_id), f"{pool.keys.root}:idem:k"):
        pool.execute("EXPIRE", key, 60)
    assert pool.repair(parent.task_id) == []
    assert pool.ttl_s(pool.keys.task(parent.task_id)) == pool.ttl_s(f"{pool.keys.root}:idem:k") == MAX_WAIT_S


# ---------------------------------------------------------------------------------------------------------------- costs


def test_commands_of_joined_children(pool: Pool, parent: Delivery) -> None:
    """The end of a joined task costs no command beside others of its call: they leave together."""

    def ends(count: int) -> int:
        ids = children(pool, parent, count + 1)
        pool.join(parent, ids)
        held = run(pool, *ids[1:])
        before = pool.commands()
        pool.finish(*[(one, Verdict(VerdictKind.SUCCEEDED, b"1")) for one in held])
        return pool.commands() - before

    ends(5)
    few, many = ends(5), ends(55)
    assert (many - few) / 50 == 4
