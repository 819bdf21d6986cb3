"""lua/tasks/cancel_children.lua: a cancel reaches every task below, in parts, whoever makes the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.tasks.model import CancelStatus, TaskState, VerdictKind
from tests.lua.pool import row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

TOLD = (CancelStatus.SIGNALLED, TaskState.ASSIGNED)


def run(pool: Pool) -> Delivery:
    """A task that runs, ahead of all that wait."""
    pool.put(row(priority=0))
    return pool.deliver(limit=1)[0]


def bear(pool: Pool, parent: Delivery, count: int = 1, **fields: Any) -> list[str]:
    """Submit children of a task in one call."""
    rows = [row(parent=parent.task_id, parent_generation=parent.generation, **fields) for _ in range(count)]
    return pool.put(*rows)


def bear_running(pool: Pool, parent: Delivery) -> Delivery:
    """Submit a child that runs at once."""
    bear(pool, parent, rank=0)
    return pool.deliver(limit=1)[0]


def cancel_all(pool: Pool, limit: int = 100) -> tuple[int, int, int]:
    """Run cancel_children until nothing is left; what ended, what was told to stop, and the calls."""
    ended = told = calls = 0
    while True:
        done = pool.cancel_children(limit)
        ended, told, calls = ended + done.ended, told + done.told, calls + 1
        assert calls < 1000
        if not done.left:
            return ended, told, calls


def test_a_tree(pool: Pool) -> None:
    """Waiting tasks end, running ones are marked, at each level; the reason names the task that was cancelled."""
    pool.register(slots=10)
    top = run(pool)
    middle = bear_running(pool, top)
    lowest = bear_running(pool, middle)
    waiting = [*bear(pool, top, 2), *bear(pool, middle, 2, delay_ms=1000), *bear(pool, lowest)]
    assert pool.cancel(top.task_id, reason="enough") == [TOLD]
    assert cancel_all(pool) == (5, 2, 1)
    why = f"with task {top.task_id}: enough"
    assert {pool.task(id_)["state"] for id_ in waiting} == {"cancelled"}
    assert {pool.task(id_)["reason"] for id_ in waiting} == {why}
    assert [pool.task(each.task_id)["cancel"] for each in (top, middle, lowest)] == ["enough", why, why]
    assert pool.queue() == pool.members(pool.keys.scheduled) == []
    assert pool.execute("EXISTS", pool.keys.cancelling) == 0


def test_only_this(pool: Pool) -> None:
    """On demand the children go on; without children nothing is noted."""
    pool.register(slots=10)
    parent = run(pool)
    (child,) = bear(pool, parent)
    assert pool.cancel(parent.task_id, only_this=True) == [TOLD]
    pool.cancel(*pool.put(row()))
    assert pool.execute("EXISTS", pool.keys.cancelling) == 0
    assert pool.cancel_children() == (0, 0, False)
    assert pool.state(child) == "ready"


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_in_parts(pool: Pool, limit: int) -> None:
    """No call looks at more tasks than its limit, and what is left is noted: any client or supervisor goes on."""
    pool.register(slots=50)
    top = run(pool)
    parents = [bear_running(pool, top) for _ in range(3)]
    waiting = [id_ for parent in parents for id_ in bear(pool, parent, 5)] + bear(pool, top, 4)
    pool.cancel(top.task_id)
    seen = 0
    while True:
        done = pool.cancel_children(limit)
        assert done.ended + done.told <= limit
        seen += done.ended + done.told
        if not done.left:
            break
        assert pool.promote().cancels
    assert not pool.promote().cancels
    assert seen == 22
    assert {pool.state(id_) for id_ in waiting} == {"cancelled"}


def test_parent_that_has_ended(pool: Pool) -> None:
    """A parent that has ended keeps its end, and the tasks below it are cancelled, also below one that has ended."""
    pool.register(slots=10)
    top = run(pool)
    middle = bear_running(pool, top)
    waiting = [*bear(pool, top), *bear(pool, middle)]
    pool.end(middle)
    pool.end(top, VerdictKind.DEAD)
    assert pool.cancel(top.task_id) == [(CancelStatus.ALREADY, TaskState.DEAD)]
    assert cancel_all(pool)[:2] == (2, 0)
    assert [pool.state(id_) for id_ in (*waiting, top.task_id, middle.task_id)] == [
        "cancelled",
        "cancelled",
        "dead",
        "succeeded",
    ]


def test_child_of_a_generation_that_died(pool: Pool) -> None:
    """What an earlier attempt of the parent submitted is cancelled too, also while the parent waits."""
    pool.register(slots=10)
    parent = run(pool)
    (child,) = bear(pool, parent)
    pool.end(parent, VerdictKind.RETRY, delay_ms=50_000)
    assert pool.cancel(parent.task_id) == [(CancelStatus.ENDED, TaskState.CANCELLED)]
    assert cancel_all(pool)[:2] == (1, 0)
    assert pool.state(child) == "cancelled"


def test_no_child_of_a_task_that_is_told_to_stop(pool: Pool) -> None:
    """A running parent submits no child from its cancel on, so that none is missed; after a retry it does."""
    pool.register(slots=10)
    parent = run(pool)
    pool.cancel(parent.task_id)
    late = row(parent=parent.task_id, parent_generation=parent.generation)
    assert pool.submit(late) == [("cancelling", parent.task_id)]
    pool.end(parent, VerdictKind.CANCELLED)
    assert pool.submit(late) == [("stale", parent.task_id)]
    pool.retry(parent.task_id)
    again = pool.one()
    bear(pool, again)


def test_cancel_again_meanwhile(pool: Pool) -> None:
    """A repeat notes the family once more, and every child is reached; a retry between the two changes nothing."""
    pool.register(slots=10)
    parent = run(pool)
    children = bear(pool, parent, 6)
    pool.cancel(parent.task_id)
    pool.cancel_children(2)
    pool.cancel(parent.task_id)
    pool.retry(children[0])
    assert cancel_all(pool, 2)[:2] == (5, 0)
    assert {pool.state(id_) for id_ in children} == {"cancelled"}


def test_deleted_children(pool: Pool) -> None:
    """A child that was deleted, and a list of children that has expired, end nothing early."""
    pool.register(slots=10)
    parent, other = run(pool), run(pool)
    first, second = bear(pool, parent, 2)
    bear(pool, other)
    pool.cancel(first)
    pool.delete(first)
    pool.cancel(other.task_id, parent.task_id)
    pool.execute("UNLINK", pool.keys.children(other.task_id))
    assert cancel_all(pool)[:2] == (1, 0)
    assert pool.state(second) == "cancelled"


def test_damaged_note(pool: Pool) -> None:
    """A note that cannot be read is dropped, and the others are carried out."""
    pool.register(slots=10)
    parent = run(pool)
    (child,) = bear(pool, parent)
    pool.cancel(parent.task_id)
    pool.execute("RPUSH", pool.keys.cancelling, "what")
    assert cancel_all(pool)[:2] == (1, 0)
    assert pool.state(child) == "cancelled"


def test_interrupted_parent(pool: Pool) -> None:
    """A task that interrupts the owner of its lane cancels what the owner has submitted, and wakes the promoter."""
    pool.register(slots=10)
    pool.put(row(lane="x"))
    parent = pool.one()
    (child,) = bear(pool, parent)
    before = len(pool.entries(pool.keys.doorbell))
    (new,) = pool.put(row(lane="x", on_busy="interrupt"))
    assert "scheduled" in [fields[1] for _, fields in pool.entries(pool.keys.doorbell)[before:]]
    assert cancel_all(pool)[:2] == (1, 0)
    assert pool.task(child)["reason"] == f"with task {parent.task_id}: interrupted by task {new}"


def test_all_of_a_large_family(pool: Pool) -> None:
    """Far more children than the list of a session keeps are all reached."""
    pool.register(slots=10)
    parent = run(pool)
    for _ in range(7):
        bear(pool, parent, 500)
    pool.cancel(parent.task_id)
    ended, _, calls = cancel_all(pool)
    assert (ended, calls) == (3500, 36)
    assert pool.queue() == []


def test_what_cannot_be_read_keeps_no_other_waiting(pool: Pool) -> None:
    """Clients write these lists: numbers without end, lists of another type, children that are no tasks."""
    pool.register(slots=10)
    top = run(pool)
    (child,) = bear(pool, top)
    assert pool.cancel(top.task_id, reason="enough") == [TOLD]
    pool.execute("SET", f"{pool.keys.root}:children:b", "no list", "EX", 60)
    pool.execute("RPUSH", f"{pool.keys.root}:children:c", "d")
    pool.execute("EXPIRE", f"{pool.keys.root}:children:c", 60)
    pool.execute("SET", pool.keys.task("d"), "no hash", "EX", 60)
    notes = (b"a 99999999999999999999999 x", b"b 0 x", b"c 0 x", b"\xff \xff", b"")
    pool.execute("RPUSH", pool.keys.cancelling, *notes)
    assert cancel_all(pool)[0] == 1
    assert pool.state(child) == "cancelled"
    assert pool.execute("EXISTS", pool.keys.cancelling) == 0
