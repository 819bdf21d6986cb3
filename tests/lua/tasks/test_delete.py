"""lua/tasks/delete.lua: ended tasks go with all that belongs to them, others stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.model import CancelStatus, DeleteStatus, TaskState, VerdictKind
from tests.helpers.cases import each_case
from tests.lua.pool import chunk, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

ENDS = {
    TaskState.SUCCEEDED: VerdictKind.SUCCEEDED,
    TaskState.DEAD: VerdictKind.DEAD,
    TaskState.CANCELLED: VerdictKind.CANCELLED,
}


@each_case("state", ENDS, fresh="pool")
def test_everything_goes(pool: Pool, state: TaskState) -> None:
    """Record, output, idempotency key and place among the dead letters go; a stub stays for 5 minutes."""
    pool.register()
    (task_id,) = pool.put(row(idem="k", digest="d", reply="c1"))
    delivery = pool.one()
    pool.emit(chunk(delivery, 1))
    pool.end(delivery, ENDS[state], payload=b'"x"')
    assert pool.execute("EXISTS", pool.keys.out(task_id), f"{pool.keys.root}:idem:k") == 2
    assert pool.delete(task_id) == [(DeleteStatus.DELETED, state)]
    assert pool.task(task_id) == {"deleted": str(pool.now_ms), "ended_as": state}
    assert pool.ttl_s(pool.keys.task(task_id)) == 300
    mine = [name for name in pool.names() if task_id in name or name.endswith((":idem:k", ":dead"))]
    assert mine == [pool.keys.task(task_id)]
    assert pool.submit(row(idem="k", digest="other"))[0][0] == "created"


def test_expired(pool: Pool) -> None:
    """A task that expired is deleted like any other that has ended."""
    (task_id,) = pool.put(row(start_by_ms=pool.now_ms + 1))
    pool.sleep(5)
    pool.promote()
    assert pool.delete(task_id) == [(DeleteStatus.DELETED, TaskState.EXPIRED)]


def test_what_has_not_ended_stays(pool: Pool) -> None:
    """A task that waits, lies in an inbox or runs is refused, with its state, and nothing of it is touched."""
    pool.register(slots=2)
    running, assigned = pool.put(row(), row())
    pool.assign()
    pool.read(limit=1)
    ready, scheduled, parked = pool.put(row(), row(delay_ms=5), row(queue="agent:no", skill="odd"))
    with pool.unchanged():
        assert pool.delete(running, assigned, ready, scheduled, parked) == [
            (DeleteStatus.REFUSED, TaskState(state))
            for state in ("assigned", "assigned", "ready", "scheduled", "ready")
        ]


def test_unknown(pool: Pool) -> None:
    """An unknown id is said to be unknown and leaves nothing behind."""
    with pool.unchanged():
        assert pool.delete("gone") == [(DeleteStatus.UNKNOWN, None)]


def test_repeat(pool: Pool) -> None:
    """Deleting again says that it is deleted and changes nothing; once the stub is gone the task is unknown."""
    (task_id,) = pool.put()
    pool.cancel(task_id)
    deleted, again = pool.delete(task_id, task_id)
    assert (deleted, again) == ((DeleteStatus.DELETED, TaskState.CANCELLED), (DeleteStatus.DELETED, None))
    with pool.unchanged():
        assert pool.delete(task_id) == [(DeleteStatus.DELETED, None)]
    pool.execute("DEL", pool.keys.task(task_id))
    assert pool.delete(task_id) == [(DeleteStatus.UNKNOWN, None)]


def test_a_late_submit_is_no_new_task(pool: Pool) -> None:
    """A submit that is repeated after the task was deleted creates no new task (protocol rule 22)."""
    task = row()
    pool.register()
    pool.put(task)
    pool.end(pool.one())
    pool.delete(task.id)
    with pool.unchanged():
        assert pool.submit(task) == [("duplicate", task.id)]
    assert pool.queue() == []


def test_late_callers(pool: Pool) -> None:
    """Whoever comes late with a deleted task changes nothing: verdicts, renewals, output, cancels, looks."""
    pool.register()
    (task_id,) = pool.put()
    delivery = pool.one()
    pool.end(delivery)
    pool.delete(task_id)
    with pool.unchanged():
        assert pool.end(delivery).value == "stale"
        assert [status.value for status in pool.emit(chunk(delivery, 1))] == ["stale"]
        assert [status.value for status in pool.renew([delivery])[1]] == ["lost"]
        assert pool.cancel(task_id) == [(CancelStatus.UNKNOWN, None)]
        assert [status.value for status, _ in pool.watch(task_id)] == ["unknown"]
        assert pool.why(task_id) is None


def test_a_key_that_was_taken_again_stays(pool: Pool) -> None:
    """A key that ran out and belongs to a later task by now is left to that."""
    pool.register()
    (old,) = pool.put(row(idem="k", digest="d"))
    pool.end(pool.one())
    pool.execute("DEL", f"{pool.keys.root}:idem:k")
    (new,) = pool.put(row(idem="k", digest="d"))
    pool.delete(old)
    assert pool.submit(row(idem="k", digest="d")) == [("duplicate", new)]


def test_batch_of_500(pool: Pool) -> None:
    """A full batch fits into one call, also of tasks with hundreds of failed attempts."""
    ids = pool.put(*[row(idem=f"k{i}", digest="d") for i in range(500)])
    pool.cancel(*ids)
    many = [f"error:{number}" for number in range(2500)]
    for task_id in ids[:2]:
        pool.execute("HSET", pool.keys.task(task_id), *[part for field in many for part in (field, "e")])
    assert set(pool.delete(*ids)) == {(DeleteStatus.DELETED, TaskState.CANCELLED)}
    assert {frozenset(pool.task(task_id)) for task_id in ids} == {frozenset(("deleted", "ended_as"))}
    assert [name for name in pool.names() if ":idem:" in name] == []


def test_cost_does_not_grow(pool: Pool) -> None:
    """Deleting one task costs the same among many."""

    def cost() -> int:
        (task_id,) = pool.put()
        pool.cancel(task_id)
        before = pool.commands()
        pool.delete(task_id)
        return pool.commands() - before

    cost()  # now the server knows the scripts
    first = cost()
    pool.put(*[row(queue=f"skill:{i}") for i in range(100)], *[row(delay_ms=i + 1) for i in range(300)])
    assert cost() == first
