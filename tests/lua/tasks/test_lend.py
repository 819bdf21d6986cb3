"""lua/tasks/lend.lua: waits, lent slots, the index of awaited tasks, cycles; and what `assign` makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import Start, Stop
from orchestrator.core.rates import Rate
from tests.lua.pool import Team, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool


@pytest.fixture(autouse=True)
def one_slot(pool: Pool) -> None:
    """An agent with one slot."""
    pool.register(slots=1)


def child_of(pool: Pool, parent: Delivery, depth: int = 1) -> str:
    """Submit a child and return its id."""
    (id_,) = pool.put(row(parent=parent.task_id, parent_generation=parent.generation, depth=depth))
    return id_


def lent(pool: Pool) -> dict[bytes, bytes]:
    """The sums of the agent."""
    found: list[bytes] = pool.store.execute("HGETALL", pool.keys.lent("ed"))
    return dict(zip(found[::2], found[1::2], strict=True))


def test_an_awaited_child_goes_into_the_lent_slot(pool: Pool) -> None:
    """The inbox is full of its parent, and takes the child once the parent lends its slot, before older tasks."""
    pool.put()
    parent = pool.one()
    (older,) = pool.put()
    child = child_of(pool, parent)
    assert pool.deliver() == []
    reply = pool.lend("w1", (parent, child), ed="0=1")
    assert (reply.recorded[0].depth, reply.expects) == (0, [True])
    assert [one.task_id for one in pool.deliver()] == [child]
    assert pool.deliver() == []
    assert pool.state(older) == "ready"


def test_a_parent_without_a_statement_keeps_its_slot(pool: Pool) -> None:
    """The twin: a recorded wait alone makes no room."""
    pool.put()
    parent = pool.one()
    pool.lend("w1", (parent, child_of(pool, parent)), ed="")
    assert pool.deliver() == []


def test_deepest_first(pool: Pool) -> None:
    """Of awaited tasks the deepest gets the slot, then the one that was submitted first."""
    pool.put()
    top = pool.one()
    first, second = child_of(pool, top), child_of(pool, top)
    pool.lend("w1", (top, f"{first} {second}"), ed="0=1")
    (middle,) = pool.deliver()
    assert middle.task_id == first
    below = child_of(pool, middle, 2)
    pool.lend("w1", (middle, below), ed="0=1 1=1")
    (bottom,) = pool.deliver()
    assert bottom.task_id == below
    pool.end(bottom)
    assert pool.deliver() == []  # the second child is no deeper than the first, which waits
    pool.lend("w1", (middle, ""), ed="0=1")
    pool.end(middle)
    assert [one.task_id for one in pool.deliver()] == [second]


def test_no_more_of_a_depth_than_slots(pool: Pool) -> None:
    """A wide tree whose tasks all wait holds one entry of each depth, so that few parents wait at a time."""
    pool.put()
    parents = [pool.one()]
    pool.put(*[row() for _ in range(5)])
    for depth in range(1, 5):
        children = [child_of(pool, parents[-1], depth) for _ in range(3)]
        pool.lend("w1", (parents[-1], " ".join(children)), ed=" ".join(f"{above}=1" for above in range(depth)))
        (got,) = pool.deliver(limit=9)
        assert got.task_id == children[0]
        parents.append(got)
    assert pool.deliver(limit=9) == []


def test_statements_are_summed(pool: Pool) -> None:
    """Statements of workers add up; a repeated one changes nothing, the next one replaces it."""
    pool.register("w2", slots=1)
    pool.lend("w1", ed="0=2 1=1")
    pool.lend("w1", ed="0=2 1=1")
    pool.lend("w2", ed="0=1")
    assert lent(pool) == {b"0": b"3", b"1": b"1"}
    pool.lend("w1", ed="0=1")
    assert lent(pool) == {b"0": b"2"}
    pool.lend("w1", ed="")
    pool.lend("w2", ed="")
    assert lent(pool) == {}


def test_a_forgotten_worker_lends_nothing(pool: Pool) -> None:
    """A worker that leaves the registry takes its statement with it; an unknown one states nothing."""
    pool.register("w2", slots=1)
    pool.lend("w1", ed="0=2")
    pool.lend("w2", ed="0=1")
    pool.deregister("w1")
    assert lent(pool) == {b"0": b"1"}
    pool.lend("w1", ed="0=2")
    assert lent(pool) == {b"0": b"1"}
    pool.sleep(3_600_000)
    pool.expire()
    assert lent(pool) == {}


def test_a_wrong_sum_is_repaired(pool: Pool) -> None:
    """An older program may forget a worker without its statement; the reconciler sums up again."""
    pool.lend("w1", ed="0=1")
    pool.store.execute("HSET", pool.keys.lent("ed"), "0", 5, "3", 2)
    assert ("ed", "lent-slots") in pool.repair_registry(("agent", "ed"))
    assert lent(pool) == {b"0": b"1"}
    assert pool.repair_registry(("agent", "ed")) == []


def test_a_child_that_ended_is_not_indexed(pool: Pool) -> None:
    """Only tasks that have not ended are indexed."""
    pool.register(slots=2)
    pool.put()
    parent = pool.one()
    child = child_of(pool, parent)
    pool.end(pool.one())
    pool.lend("w1", (parent, child), ed="0=1")
    assert not pool.store.execute("EXISTS", pool.keys.awaited("skill:sum"))


def test_a_call_looks_at_few_tasks(pool: Pool) -> None:
    """All rows of a call share the tasks that it looks at, and the reply tells how many each row had."""
    pool.register(slots=2)
    pool.put(row(), row())
    first, second = pool.deliver(limit=2)
    children = pool.put(*[row(parent=first.task_id, parent_generation=first.generation, depth=1) for _ in range(400)])
    every = " ".join(children)
    recorded = pool.lend("w1", (first, every), (second, every), ed="0=2").recorded
    assert [one.looked for one in recorded] == [400, 100]
    assert {one.size for one in recorded} == {len(f"{first.generation} {every}")}


def test_going_on_clears_the_record(pool: Pool) -> None:
    """A parent that waits no more has no record of it; an attempt that lost its task records nothing."""
    pool.put()
    parent = pool.one()
    child = child_of(pool, parent)
    pool.lend("w1", (parent, child), ed="0=1")
    assert pool.task(parent.task_id)["awaits"] == f"{parent.generation} {child}"
    pool.lend("w1", (parent, ""), ed="")
    assert "awaits" not in pool.task(parent.task_id)
    pool.abandon("w1")
    assert pool.lend("w1", (parent, child), ed="0=1").recorded[0].stale


def test_an_index_entry_that_left_its_queue(pool: Pool) -> None:
    """A cancelled child stays in the index until `assign` meets it, and takes no room from the next one."""
    pool.put()
    parent = pool.one()
    first, second = child_of(pool, parent), child_of(pool, parent)
    pool.lend("w1", (parent, f"{first} {second}"), ed="0=1")
    pool.cancel(first)
    assert [one.task_id for one in pool.deliver()] == [second]
    assert not pool.store.execute("EXISTS", pool.keys.awaited("skill:sum"))


def test_cycle_over_three(pool: Pool) -> None:
    """A wait that closes a cycle is refused, with the tasks on it; the waits that it would close stay."""
    pool.register(slots=3)
    ids = pool.put(row(), row(), row())
    first, second, third = pool.deliver(limit=3)
    assert [first.task_id, second.task_id, third.task_id] == ids
    assert pool.lend("w1", (first, ids[1]), ed="0=1").recorded[0].depth == 0
    assert pool.lend("w1", (second, ids[2]), ed="0=2").recorded[0].depth == 1
    assert pool.lend("w1", (third, ids[0]), ed="0=3").recorded[0].cycle == [ids[0], ids[1], ids[2]]
    assert pool.lend("w1", (first, ids[0]), ed="0=3").recorded[0].cycle == [ids[0]]


def test_cycle_over_a_lane(pool: Pool) -> None:
    """A child behind its parent in a lane never gets its turn."""
    (owner,) = pool.put(row(lane="x"))
    parent = pool.one()
    (child,) = pool.put(row(lane="x", parent=parent.task_id, parent_generation=parent.generation, depth=1))
    assert pool.lend("w1", (parent, child), ed="0=1").recorded[0].cycle == [child, owner]


def test_the_owner_of_a_lane_is_awaited_too(pool: Pool) -> None:
    """A child waits for its turn behind a task without a parent, which goes into the lent slot."""
    pool.put()
    parent = pool.one()
    (owner,) = pool.put(row(lane="x"))
    (child,) = pool.put(row(lane="x", parent=parent.task_id, parent_generation=parent.generation, depth=1))
    pool.lend("w1", (parent, child), ed="0=1")
    (got,) = pool.deliver()
    assert got.task_id == owner
    pool.end(got)
    pool.lend("w1", (parent, child), ed="0=1")
    assert [one.task_id for one in pool.deliver()] == [child]


def test_a_shared_task_is_lowered(pool: Pool) -> None:
    """A task without parents that a deep one awaits goes into its slot, and what it awaits goes below it."""
    pool.put()
    top = pool.one()
    middle = child_of(pool, top)
    pool.lend("w1", (top, middle), ed="0=1")
    (held,) = pool.deliver()
    (shared,) = pool.put()
    pool.lend("w1", (held, shared), ed="0=1 1=1")
    (found,) = pool.deliver()
    assert found.task_id == shared
    assert pool.lend("w1", (found, ""), ed="0=1 1=1").recorded[0].depth == 2


def test_a_limit_holds_in_lent_slots(pool: Pool) -> None:
    """A lent slot gives no start of a rate limit back."""
    pool.register(team=Team(rate=Rate(1, 60_000_000)), slots=1)
    pool.put()
    parent = pool.one()
    child = child_of(pool, parent)
    pool.lend("w1", (parent, child), ed="0=1")
    assert pool.deliver() == []
    pool.sleep(60_001)
    assert [one.task_id for one in pool.deliver()] == [child]


def test_a_stop_holds_in_lent_slots(pool: Pool) -> None:
    """No child begins while its agent is stopped."""
    pool.put()
    parent = pool.one()
    child = child_of(pool, parent)
    pool.append(Stop(agent="ed"))
    pool.lend("w1", (parent, child), ed="0=1")
    assert pool.deliver() == []
    pool.append(Start(agent="ed"))
    assert [one.task_id for one in pool.deliver()] == [child]
