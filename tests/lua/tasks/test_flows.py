"""Flows: what the scripts do with tasks that run after others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.control.commands import Stop
from orchestrator.store.calls import opaque
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.model import (
    CancelStatus,
    DeleteStatus,
    Delivery,
    Envelope,
    RequeueStatus,
    TaskState,
    Verdict,
    VerdictKind,
    encode_envelope,
)
from tests.lua.pool import MAX_WAIT_S, USUAL_TTL_S, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool, Row

pytestmark = pytest.mark.every_server

DAY_S = 86_400
KEEP_S = MAX_WAIT_S + DAY_S


def flow(*after: tuple[int, ...], **fields: Any) -> list[Row]:
    """The rows of a flow, by the numbers of the rows after which each runs."""
    return [row(after=each, **fields) for each in after]


def states(pool: Pool, *ids: str) -> list[str]:
    """The stored states of tasks."""
    return [pool.state(id_) for id_ in ids]


def deliver(pool: Pool, *ids: str) -> list[Delivery]:
    """Assign and deliver all that is ready, which must be these tasks."""
    found = {one.task_id: one for one in pool.deliver(limit=1000)}
    assert found.keys() == set(ids)
    return [found[id_] for id_ in ids]


def succeed(pool: Pool, id_: str) -> None:
    """Run the only task that is ready."""
    pool.end(deliver(pool, id_)[0])


def fail(pool: Pool, *held: Delivery) -> None:
    """End attempts as dead letters, in one call."""
    pool.finish(*[(one, Verdict(VerdictKind.DEAD, b"E", reason="no")) for one in held])


def repair(pool: Pool, *ids: str) -> list[str]:
    """The codes of what the reconciler finds in these tasks; a second look finds nothing."""
    rows: list[str | tuple[str, str]] = list(ids)
    rows += [(id_, "after") for id_ in pool.members(pool.keys.awaiting_tasks)]
    found = [code for _, code in pool.repair(*rows)]
    assert pool.repair(*rows) == []
    return found


# -------------------------------------------------------------------------------------------------------------- submit


def test_a_follower_waits_for_all_its_predecessors(pool: Pool) -> None:
    """A task is in no queue until the last of its predecessors has ended, and keeps no list then."""
    pool.register(slots=10)
    a, b, c = pool.put(*flow((), (), (1, 2)))
    assert states(pool, a, b, c) == ["ready", "ready", "awaiting_tasks"]
    assert pool.members(pool.keys.after(c)) == sorted([a, b])
    first, second = deliver(pool, a, b)
    pool.end(first)
    assert (pool.state(c), pool.members(pool.keys.after(c))) == ("awaiting_tasks", [b])
    pool.end(second)
    assert (pool.state(c), pool.members(pool.keys.awaiting_tasks)) == ("ready", [])
    assert pool.task(c)["due"] == str(pool.now_ms)
    (last,) = deliver(pool, c)
    pool.end(last)
    assert pool.state(c) == "succeeded"


def test_all_or_nothing(pool: Pool) -> None:
    """If a row is refused, no task of the flow is stored, and each row says so."""
    rows = [*flow((), (1,)), row(after=(2,), budget="none")]
    withheld = ("withheld", rows[2].id)
    assert pool.submit(*rows) == [withheld, withheld, ("unfunded", "none")]
    assert pool.names() == []


def test_repeat(pool: Pool) -> None:
    """A repeat returns duplicates of all and changes nothing, also when a record is gone."""
    rows = flow((), (1,), (2,))
    ids = pool.put(*rows)
    pool.execute("DEL", pool.keys.task(ids[1]))
    before = pool.snapshot()
    assert pool.submit(*rows) == [("duplicate", id_) for id_ in ids]
    assert pool.snapshot() == before


def test_repeat_with_a_key(pool: Pool) -> None:
    """Keys find the tasks of the flow; one whose key is gone is not made again; another flow is refused."""

    def rows(digest: str) -> list[Row]:
        return [row(after=after, idem=f"k{n}", digest=digest) for n, after in enumerate([(), (1,)])]

    ids = pool.put(*rows("d"))
    assert pool.submit(*rows("d")) == [("duplicate", id_) for id_ in ids]
    assert pool.submit(*rows("e")) == [("conflict", id_) for id_ in ids]
    pool.execute("DEL", pool.keys.idempotency("k1"))
    assert pool.submit(*rows("d")) == [("duplicate", ids[0]), ("gone", "")]


@pytest.mark.parametrize("after", [(2,), (3,), (0,), (1, 1), (1, -1), (0.5,)])
def test_edges_to_no_row_above(pool: Pool, after: tuple[Any, ...]) -> None:
    """Edges to the row itself, to one below it, to none, or twice to one are refused: no cycle can be stored."""
    rows = [row(after=()), row(after=after), row(after=())]
    assert pool.submit(*rows)[1] == ("invalid", "after")
    assert pool.names() == []


def test_no_other_rows_beside_a_flow(pool: Pool) -> None:
    """A call has the rows of one flow, or others."""
    assert pool.submit(row(after=()), row(ttl_s=7200))[1] == ("invalid", "after")
    assert pool.submit(row(ttl_s=7200), row(after=(1,)))[1] == ("invalid", "after")


def test_the_cap_of_tasks_that_wait(pool: Pool) -> None:
    """Tasks with predecessors count together; too many are refused."""
    pool.put(*flow((), (1,)))
    assert pool.submit(*flow((), (1,)), max_tasks=1)[1] == ("full", "after")


# --------------------------------------------------------------------------------------------------------------- ends


def test_a_failure_cancels_what_follows(pool: Pool) -> None:
    """A failed task cancels its followers and theirs, and names itself in the reason; not those that run anyway."""
    pool.register(slots=10)
    a, b, c, d = pool.put(*flow((), (1,), (2,), (-1,)))
    fail(pool, *deliver(pool, a))
    assert states(pool, a, b, c, d) == ["dead", "cancelled", "cancelled", "ready"]
    assert pool.task(b)["reason"] == f"task {a}, after which it runs, is a dead letter"
    assert pool.task(c)["reason"] == f"task {b}, after which it runs, was cancelled"
    assert pool.stats()["cancelled"] == 2


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_other_failures(pool: Pool, how: str) -> None:
    """A cancelled task and one that did not start in time have failed, too."""
    a, b = pool.put(*flow((), (1,), start_by_ms=pool.now_ms + 10))
    if how == "cancelled":
        assert pool.cancel(a)[0][0] is CancelStatus.ENDED
    else:
        pool.sleep(20)
        pool.promote(limit=1)
    said = "was cancelled" if how == "cancelled" else "has expired"
    assert (pool.state(a), pool.state(b)) == (how, "cancelled")
    assert pool.task(b)["reason"] == f"task {a}, after which it runs, {said}"
    assert pool.members(f"{pool.keys.root}:expiring") == []


def test_a_chain_of_500_is_cancelled_at_once(pool: Pool) -> None:
    """The cascade is no recursion."""
    ids = pool.put(*flow((), *[(n,) for n in range(1, 500)]))
    pool.cancel(ids[0])
    assert set(states(pool, *ids)) == {"cancelled"}
    assert pool.members(pool.keys.awaiting_tasks) == []


def test_a_diamond_of_500(pool: Pool) -> None:
    """One task, 498 behind it, and one behind all of these."""
    pool.register(slots=1000)
    root, *wide, last = pool.put(*flow((), *[(1,)] * 498, tuple(range(2, 500))))
    succeed(pool, root)
    held = deliver(pool, *wide)
    pool.finish(*[(one, Verdict(VerdictKind.SUCCEEDED, b"1")) for one in held[1:]])
    assert pool.state(last) == "awaiting_tasks"
    pool.end(held[0])
    assert pool.state(last) == "ready"


def test_ends_with_very_many_followers(pool: Pool) -> None:
    """One call looks at 2,000 followers and cancels 500; `promote` does the rest, and tells that more is left."""
    pool.register(slots=1000)
    flows = [pool.put(*flow((), *[(1,)] * 499)) for _ in range(6)]
    roots = deliver(pool, *[ids[0] for ids in flows])
    behind = [id_ for ids in flows for id_ in ids[1:]]
    fail(pool, *roots)
    assert states(pool, *behind).count("cancelled") == 500
    assert pool.promote().left
    assert states(pool, *behind).count("cancelled") == 1000
    while pool.promote().left:
        pass
    assert set(states(pool, *behind)) == {"cancelled"}
    assert pool.execute("EXISTS", pool.keys.ends) == 0


def test_lanes_and_delays_begin_behind_the_predecessors(pool: Pool) -> None:
    """A task enters its lane, or begins its delay, when its predecessors have ended."""
    pool.register(slots=10)
    rows = [row(after=()), row(after=(1,), lane="x"), row(after=(1,), delay_ms=500)]
    a, in_lane, delayed = pool.put(*rows)
    (other,) = pool.put(row(lane="x"))
    assert pool.members(pool.keys.lane("x")) == [other]
    first, second = deliver(pool, a, other)
    pool.sleep(1000)
    pool.end(first)
    assert states(pool, in_lane, delayed) == ["waiting", "scheduled"]
    assert pool.score(pool.keys.scheduled, delayed) == pool.now_ms + 500
    pool.end(second)
    assert pool.state(in_lane) == "ready"


def test_predecessors_are_kept(pool: Pool) -> None:
    """The record of a task with followers outlives the wait of a follower, also when it is deleted."""
    pool.register(slots=10)
    a, b = pool.put(row(after=(), ttl_s=300, idem="k", digest="d"), row(after=(1,)))
    succeed(pool, a)
    assert pool.ttl_s(pool.keys.task(a)) == pool.ttl_s(pool.keys.idempotency("k")) == KEEP_S
    assert pool.delete(a)[0][0] is DeleteStatus.DELETED
    assert pool.ttl_s(pool.keys.idempotency("k")) == KEEP_S
    assert pool.state(b) == "ready"


# ------------------------------------------------------------------------------------------------------ other scripts


def test_retry(pool: Pool) -> None:
    """A task that is retried waits for its predecessors that were retried before it."""
    pool.register(slots=10)
    a, b = pool.put(*flow((), (1,)))
    fail(pool, *deliver(pool, a))
    assert [status for status, _ in pool.retry(a, b)] == [RequeueStatus.REQUEUED] * 2
    assert states(pool, a, b) == ["ready", "awaiting_tasks"]
    succeed(pool, a)
    assert pool.state(b) == "ready"
    fail(pool, *deliver(pool, b))
    pool.retry(b, token="t2")
    assert pool.state(b) == "ready"


def test_retry_in_any_order(pool: Pool) -> None:
    """Tasks that are retried in one call wait for those of the call that are before them, also in a long chain."""
    pool.register(slots=10)
    ids = pool.put(*flow((), *[(number,) for number in range(1, 500)]))
    fail(pool, *deliver(pool, ids[0]))
    assert {status for status, _ in pool.retry(*reversed(ids))} == {RequeueStatus.REQUEUED}
    assert states(pool, *ids[:3], ids[-1]) == ["ready", *["awaiting_tasks"] * 3]
    assert repair(pool, *ids[:100]) == []


def test_a_cancelled_follower_takes_its_children_along(pool: Pool) -> None:
    """The children of an earlier attempt of a follower are cancelled with it."""
    pool.register(slots=10)
    a, b = pool.put(*flow((), (1,)))
    fail(pool, *deliver(pool, a))
    pool.retry(b)
    (held,) = deliver(pool, b)
    (child,) = pool.put(row(parent=b, parent_generation=held.generation, delay_ms=10_000_000))
    fail(pool, held)
    pool.retry(a, b, token="t2")
    fail(pool, *deliver(pool, a))
    assert states(pool, a, b, child) == ["dead", "cancelled", "scheduled"]
    pool.cancel_children()
    assert pool.state(child) == "cancelled"


def test_a_stop_holds_what_is_released(pool: Pool) -> None:
    """A task whose predecessors have ended waits for the end of a stop as others do."""
    pool.register(slots=10)
    a, b = pool.put(*flow((), (1,)))
    (held,) = deliver(pool, a)
    pool.append(Stop(agent="ed"))
    pool.end(held)
    assert (pool.state(b), pool.deliver()) == ("ready", [])


def test_an_awaited_task_lowers_its_predecessors(pool: Pool) -> None:
    """A handler that awaits a task of a flow lends its slot to those before it, which cannot await the task."""
    pool.register(slots=10)
    a, b, c = pool.put(*flow((), (1,), (2,)))
    (other,) = pool.put()
    first, parent = deliver(pool, a, other)
    assert pool.lend("w1", (parent, c)).recorded[0].depth == 0
    assert pool.task(a)["depth"] == "3"
    assert pool.lend("w1", (first, c)).recorded[0].cycle == [c, b, a]
    assert pool.state(b) == "awaiting_tasks"


def test_why(pool: Pool) -> None:
    """`why` names the predecessors that have not ended."""
    pool.register(slots=10)
    a, b, c = pool.put(*flow((), (), (1, 2)))
    pool.end(deliver(pool, a, b)[0])
    found = pool.why(c)
    assert found is not None
    assert (found.missing, found.missing_tasks) == (1, (b,))


def test_a_join_of_a_follower_is_a_cycle(pool: Pool) -> None:
    """A task cannot join one that runs after it, directly or over others."""
    pool.register(slots=10)
    a, b, c = pool.put(*flow((), (1,), (2,)))
    (held,) = deliver(pool, a)
    assert pool.join(held, [b]).status == pool.join(held, [c]).status == "cycle"


def test_a_join_behind_the_lane_of_its_parent_is_a_cycle(pool: Pool) -> None:
    """A task keeps its lane while it joins, so it cannot join a task of a flow that runs after one of that lane."""
    pool.register(slots=10)
    (parent,) = pool.put(row(lane="one"))
    (held,) = deliver(pool, parent)
    envelope = opaque(encode_envelope(Envelope("sum", b"{}", parent=parent)))
    child: dict[str, Any] = {"parent": parent, "parent_generation": held.generation, "envelope": envelope}
    a, b, c, d = pool.put(row(after=(), **child), row(after=(1,), lane="one", **child), *flow((2,), (1,), **child))
    assert [pool.join(held, [each]).status for each in (b, c)] == ["cycle", "cycle"]
    assert pool.join(held, [a, d]).status == "registered"


def test_a_joined_predecessor_keeps_its_followers(pool: Pool) -> None:
    """A task may have followers and be joined: both go on."""
    pool.register(slots=10)
    a, b = pool.put(*flow((), (1,)))
    (other,) = pool.put()
    first, parent = deliver(pool, a, other)
    assert pool.join(parent, [a]).status == "registered"
    pool.begin_to_join(parent)
    pool.end(first)
    assert states(pool, b, other) == ["ready", "ready"]


def test_repair_finds_nothing(pool: Pool) -> None:
    """The reconciler finds nothing in a flow that is sound."""
    assert repair(pool, *pool.put(*flow((), (1,), (1, 2)))) == []


def test_repair_of_a_lost_list(pool: Pool) -> None:
    """A lost list is made again without what has ended; a task whose predecessors have ended goes on."""
    pool.register(slots=10)
    a, b, c, d = pool.put(*flow((), (), (1, 2), (1,)))
    held = deliver(pool, a, b)[0]
    pool.execute("DEL", pool.keys.after(c), pool.keys.after(d))
    pool.end(held)
    assert repair(pool, c, d) == ["lost-after", "lost-after"]
    assert (pool.members(pool.keys.after(c)), pool.state(d)) == ([b], "ready")


def test_repair_of_a_list_of_another_type(pool: Pool) -> None:
    """A list of another type stops no end, and is made again."""
    pool.register(slots=10)
    a, b = pool.put(*flow((), (1,)))
    pool.execute("DEL", pool.keys.after(b))
    pool.execute("SET", pool.keys.after(b), "x", "EX", 100)
    succeed(pool, a)
    assert (repair(pool, b), pool.state(b)) == (["lost-after"], "ready")


def test_repair_behind_a_deleted_success(pool: Pool) -> None:
    """A predecessor that succeeded and was deleted is no failure, when its followers learn of its end by a repair."""
    pool.register(slots=10)
    a, b, c, d, e = pool.put(*flow((), (), (1, 2), (1,), (2,)))
    held = deliver(pool, a, b)[0]
    pool.execute("DEL", pool.keys.after(d))
    pool.end(held)
    pool.delete(a)
    pool.execute("DEL", pool.keys.after(c))
    assert repair(pool, c, d) == ["lost-after", "lost-after"]
    assert (states(pool, c, d), pool.members(pool.keys.after(c))) == (["awaiting_tasks", "ready"], [b])
    pool.execute("DEL", pool.keys.task(b), pool.keys.after(e))
    repair(pool, e)
    assert pool.state(e) == "cancelled"


def test_retry_beside_keys_of_another_type(pool: Pool) -> None:
    """A task whose list of predecessors is a key of another type stays as it is; others of the call are retried."""
    pool.register(slots=10)
    a, b, c = pool.put(*flow((), (1,), ()))
    pool.cancel(b, c)
    for key in (pool.keys.awaiting_tasks, pool.keys.after(b)):
        pool.execute("DEL", key)
        pool.execute("SET", key, "x", "EX", 100)
        statuses = [status for status, _ in pool.retry(c, b, token=key)]
        assert statuses[1] is RequeueStatus.DAMAGED
        assert states(pool, b, c) == ["cancelled", "ready"]
        assert set(pool.queue("skill:sum")) == {a, c}
        pool.execute("DEL", key)
    assert pool.retry(b) == [(RequeueStatus.REQUEUED, TaskState.CANCELLED)]
    assert (states(pool, b), repair(pool, a, b, c)) == (["awaiting_tasks"], [])


def test_many_edges_are_bounded(pool: Pool) -> None:
    """A retry reads the state of a predecessor once, and a repair judges fewer tasks that have many predecessors."""
    pool.register(slots=1000)
    ids = pool.put(*flow(*[()] * 100, *[tuple(range(1, 101))] * 100))
    first, followers = ids[:100], ids[100:]
    for held in deliver(pool, *first):
        pool.end(held)
    call = task_scripts.repair(
        pool.keys, rows=[(id_.encode(), b"") for id_ in followers], repair=True, max_wait_s=MAX_WAIT_S, dead_ttl_s=9
    )
    assert 0 < pool.call(call).rows < 60
    pool.cancel(*followers)
    pool.retry("x")  # now the server knows the script
    before = pool.commands()
    pool.retry(*followers)
    assert pool.commands() - before < 2000


@pytest.mark.parametrize("gone", [False, True])
def test_repair_of_an_end_that_was_not_told(pool: Pool, *, gone: bool) -> None:
    """A predecessor that has ended without telling, or is gone, is told: its failure cancels."""
    pool.register(slots=10)
    a, b, c = pool.put(*flow((), (1,), (-1,)))
    pool.execute("HDEL", pool.keys.task(a), "followers")
    fail(pool, *deliver(pool, a))
    if gone:
        pool.execute("DEL", pool.keys.task(a))
    assert states(pool, b, c) == ["awaiting_tasks"] * 2
    assert repair(pool, b, c) == ["lost-end", "lost-end"]
    assert states(pool, b, c) == ["cancelled", "ready"]


def test_repair_of_the_indexes(pool: Pool) -> None:
    """A task is listed again, and its predecessor names it again."""
    a, b, c = pool.put(*flow((), (1,), (1,)))
    pool.execute("HDEL", pool.keys.task(a), "followers", "joined")
    pool.execute("ZREM", pool.keys.awaiting_tasks, b)
    assert sorted(repair(pool, b, c)) == ["lost-follower", "lost-follower", "lost-following"]
    pool.cancel(a)
    assert states(pool, b, c) == ["cancelled", "cancelled"]


@pytest.mark.parametrize("lost", ["followers", "joined"])
def test_repair_of_one_of_two_fields(pool: Pool, lost: str) -> None:
    """A predecessor that lost either the names of the tasks behind it or the mark that there are some gets it again."""
    a, b = pool.put(*flow((), (1,)))
    before = pool.task(a)
    pool.execute("HDEL", pool.keys.task(a), lost)
    assert repair(pool, b) == ["lost-follower"]
    assert pool.task(a) == before


def test_damaged_notes(pool: Pool) -> None:
    """A note of another program, or of a record of another type, does not keep `promote` from the others."""
    pool.register(slots=10)
    a, b, c = pool.put(*flow((), (1,), (2,)))
    pool.execute("SET", pool.keys.task(c), "x", "EX", 100)
    pool.execute("RPUSH", pool.keys.ends, f"{c} dead 1 100", f"{a} unknown 1 100", "x", f"{a} cancelled 1 100")
    pool.promote()
    assert (pool.state(b), pool.execute("EXISTS", pool.keys.ends)) == ("cancelled", 0)


def test_repair_beside_notes_of_another_type(pool: Pool) -> None:
    """A key of another type in the place of the notes does not keep the reconciler from telling ends."""
    pool.register(slots=10)
    a, b = pool.put(*flow((), (1,)))
    pool.execute("SET", pool.keys.ends, "x")
    pool.execute("HDEL", pool.keys.task(a), "followers")
    succeed(pool, a)
    assert repair(pool, b) == ["lost-end"]
    assert pool.state(b) == "ready"
    pool.execute("DEL", pool.keys.ends)


def test_repair_keeps_predecessors(pool: Pool) -> None:
    """The reconciler lets ended predecessors live on while a task that has not ended may read their results."""
    pool.register(slots=10)
    a, b = pool.put(*flow((), (1,)))
    succeed(pool, a)
    pool.execute("EXPIRE", pool.keys.task(a), 100)
    assert repair(pool, b) == []
    assert pool.ttl_s(pool.keys.task(a)) == KEEP_S


def test_repair_lets_predecessors_go(pool: Pool) -> None:
    """The record of a predecessor has its usual lifetime again when all tasks behind it have succeeded, or are gone."""
    pool.register(slots=10)
    a, b, c = pool.put(row(after=(), ttl_s=900, idem="k", digest="d"), *flow((1,), (1,)))
    kept = [pool.keys.task(a), pool.keys.idempotency("k")]
    succeed(pool, a)
    first, second = deliver(pool, b, c)
    pool.end(first)
    pool.sleep(100)
    fail(pool, second)
    assert repair(pool, a, b, c) == []
    assert {pool.ttl_s(key) for key in kept} == {KEEP_S}
    pool.retry(c)
    succeed(pool, c)
    assert repair(pool, a, b, c) == []
    assert {pool.ttl_s(key) for key in kept} == {900}
    pool.execute("DEL", pool.keys.task(b), pool.keys.task(c))
    pool.execute("EXPIRE", kept[0], KEEP_S)
    assert repair(pool, a) == []
    assert pool.ttl_s(kept[0]) == 900


def test_children_are_kept_for_their_parent(pool: Pool) -> None:
    """All tasks of a flow outlive the parent, whose next attempt submits the flow again and must find it."""
    pool.register(slots=10)
    (parent,) = pool.put()
    (held,) = deliver(pool, parent)
    envelope = opaque(encode_envelope(Envelope("sum", b"{}", parent=parent)))
    child: dict[str, Any] = {"parent": parent, "parent_generation": held.generation, "envelope": envelope, "ttl_s": 900}
    a, b = pool.put(*flow((), (1,), **child))
    succeed(pool, a)
    succeed(pool, b)
    assert repair(pool, a, b) == []
    assert {pool.ttl_s(pool.keys.task(one)) for one in (a, b)} == {KEEP_S}
    pool.end(held)
    assert repair(pool, a, b) == []
    assert {pool.ttl_s(pool.keys.task(one)) for one in (a, b)} == {900}


def test_commands_of_a_flow(pool: Pool) -> None:
    """A follower costs three commands more than a plain task: its list, the lifetime of that, and the index."""
    costs = []
    for count in (10, 10, 60):
        before = pool.commands()
        pool.put(*flow((), *[(1,)] * count, ttl_s=USUAL_TTL_S))
        costs.append(pool.commands() - before)
    assert (costs[2] - costs[1]) / 50 == 2 + 3
