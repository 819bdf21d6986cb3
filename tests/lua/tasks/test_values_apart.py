"""Large arguments and results in fields of their own, which clients and workers write in front of the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace as changed

from orchestrator.core.ids import new_task_id
from orchestrator.store.calls import opaque
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.model import FinishStatus, Verdict, VerdictKind
from orchestrator.tasks.values import (
    ROW_BYTES,
    SENT_S,
    LargeValue,
    is_apart,
    reference_to,
    result_field,
    split_row,
    write_commands,
)
from tests.lua.pool import MAX_WAIT_S, envelope, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool, Row

pytestmark = pytest.mark.every_server

LARGE = b'{"text":"' + b"x" * ROW_BYTES + b'"}'


def write(pool: Pool, *values: LargeValue) -> None:
    """Write values as a client or a worker does."""
    for command in write_commands(pool.keys, values):
        pool.execute(*command)


def submit(pool: Pool, *rows: Row, written: bool = True, max_tasks: int = 10**6) -> list[tuple[str, str]]:
    """Submit rows with large arguments, which are written before unless `written` is false."""
    split = [split_row(one.sent()) for one in rows]
    if written:
        write(pool, *[value for _, value in split if value is not None])
    call = task_scripts.submit(pool.keys, rows=[one for one, _ in split], max_tasks=max_tasks, max_wait_s=MAX_WAIT_S)
    return [(answer.status, answer.detail) for answer in pool.call(call)]


def large(task_id: str | None = None, **fields: Any) -> Row:
    """A task with large arguments."""
    return row(task_id, envelope=opaque(envelope(args=LARGE)), **fields)


def succeeded(delivery: Delivery) -> tuple[LargeValue, Verdict]:
    """A large result, and the verdict that refers to it."""
    value = LargeValue(delivery.task_id, result_field(delivery.generation), LARGE)
    return value, Verdict(VerdictKind.SUCCEEDED, reference_to(value), apart=True)


def start(pool: Pool) -> Delivery:
    """One task with large arguments, delivered to w1."""
    pool.register()
    submit(pool, large())
    return pool.one()


def test_arguments_lie_beside_the_envelope(pool: Pool) -> None:
    """The record has them once, for as long as itself; envelope and inbox entry have a reference."""
    one = large()
    assert submit(pool, one) == [("created", "")]
    found = pool.task(one.id)
    assert found["args"].encode() == LARGE
    assert len(found["env"]) < 50
    assert pool.ttl_s(pool.keys.task(one.id)) == MAX_WAIT_S
    pool.register()
    assert len(pool.one().envelope) < 50


def test_small_arguments_stay_in_the_row() -> None:
    """The twin: what is small is no value of its own, and JSON is no reference."""
    small = row().sent()
    assert split_row(small) == (small, None)
    assert not is_apart(b'{"a":1}')
    assert is_apart(reference_to(LargeValue("t", "args", LARGE)))


def test_lost_arguments(pool: Pool) -> None:
    """Without the arguments no task is created, also when only some rows have lost theirs; nothing is left of them."""
    first, second = large(), row()
    assert submit(pool, first, second, written=False) == [("lost", first.id), ("created", "")]
    assert pool.task(first.id) == {}
    assert submit(pool, first) == [("created", "")]


def test_a_repeat_changes_nothing(pool: Pool) -> None:
    """A submit that is sent twice creates one task."""
    one = large()
    submit(pool, one)
    with pool.unchanged():
        assert submit(pool, one) == [("duplicate", one.id)]


def test_a_repeat_after_the_success_leaves_no_arguments(pool: Pool) -> None:
    """A success drops its arguments, and a client that sends the submit again does not bring them back."""
    delivery = start(pool)
    value, verdict = succeeded(delivery)
    write(pool, value)
    assert pool.finish((delivery, changed(verdict, envelope=envelope(args=b"null")))) == [FinishStatus.OK]
    assert "args" not in pool.task(delivery.task_id)
    with pool.unchanged():
        assert submit(pool, large(delivery.task_id)) == [("duplicate", delivery.task_id)]


def test_arguments_alone_are_no_task(pool: Pool) -> None:
    """A task whose arguments are there and whose submit is lost, by a failover between the two, counts as lost."""
    one = large()
    submit(pool, one)
    assert pool.call(task_scripts.find_lost(pool.keys, ids=[one.id])) == []
    pool.execute("DEL", pool.keys.task(one.id))
    _, value = split_row(one.sent())
    assert value is not None
    write(pool, value)
    assert pool.call(task_scripts.find_lost(pool.keys, ids=[one.id])) == [one.id]


@pytest.mark.parametrize("ended", ["live", "deleted"])
def test_a_refused_submit_leaves_no_arguments(pool: Pool, ended: str) -> None:
    """Arguments go with a refusal: by a full queue, by a key, and by the stub of a deleted task."""
    pool.put(row(idem="k", digest="d"))
    full, known = large(), large(idem="k", digest="d")
    assert submit(pool, full, max_tasks=1)[0][0] == "full"
    assert submit(pool, known)[0][0] == "duplicate"
    assert (pool.task(full.id), pool.task(known.id)) == ({}, {})
    if ended == "deleted":
        one = large()
        submit(pool, one)
        pool.cancel(one.id)
        pool.delete(one.id)
        with pool.unchanged():
            assert submit(pool, one) == [("duplicate", one.id)]


def test_arguments_without_a_submit_expire(pool: Pool) -> None:
    """A client that died in between leaves a record of one field, which is no damaged task."""
    id_ = new_task_id()
    write(pool, LargeValue(id_, "args", LARGE))
    assert pool.ttl_s(pool.keys.task(id_)) == SENT_S
    assert pool.repair(id_) == []
    assert set(pool.task(id_)) == {"args"}


def test_result(pool: Pool) -> None:
    """The record has the result under its generation, and replies carry the reference."""
    delivery = start(pool)
    value, verdict = succeeded(delivery)
    write(pool, value)
    assert pool.finish((delivery, verdict)) == [FinishStatus.OK]
    found = pool.task(delivery.task_id)
    assert found["state"] == "succeeded"
    assert found[value.field].encode() == LARGE
    assert found["result"].encode() == verdict.payload
    with pool.unchanged():
        write(pool, value)
        assert pool.finish((delivery, verdict)) == [FinishStatus.ALREADY]


def test_lost_result(pool: Pool) -> None:
    """Without the result the task stays assigned, and the verdict may carry it instead."""
    delivery = start(pool)
    _, verdict = succeeded(delivery)
    with pool.unchanged():
        assert pool.finish((delivery, verdict)) == [FinishStatus.LOST]
    whole = changed(verdict, payload=LARGE, apart=False)
    assert pool.finish((delivery, whole)) == [FinishStatus.OK]
    assert pool.task(delivery.task_id)["result"].encode() == LARGE


def test_stale_result(pool: Pool) -> None:
    """An attempt that lost its task leaves no result, in the record of the next attempt or without a record."""
    delivery = start(pool)
    value, verdict = succeeded(changed(delivery, generation="1"))
    with pool.unchanged():
        write(pool, value)
        assert pool.finish((changed(delivery, generation="1"), verdict)) == [FinishStatus.STALE]
    pool.execute("DEL", pool.keys.task(delivery.task_id))
    value, verdict = succeeded(delivery)
    write(pool, value)
    assert pool.finish((delivery, verdict)) == [FinishStatus.STALE]
    assert pool.task(delivery.task_id) == {}


def test_a_result_behind_the_end_is_removed(pool: Pool) -> None:
    """An attempt that ended as dead keeps no large result that comes later."""
    delivery = start(pool)
    assert pool.end(delivery, VerdictKind.DEAD, payload=b"E", reason="too late") is FinishStatus.OK
    value, verdict = succeeded(delivery)
    with pool.unchanged():
        write(pool, value)
        assert pool.finish((delivery, verdict)) == [FinishStatus.ALREADY]


def test_values_never_replace_others(pool: Pool) -> None:
    """A second write of the same arguments keeps the first, and the lifetime of the record."""
    one = large()
    submit(pool, one)
    write(pool, LargeValue(one.id, "args", b"{}"))
    assert pool.task(one.id)["args"].encode() == LARGE
    assert pool.ttl_s(pool.keys.task(one.id)) == MAX_WAIT_S
