"""The main path of every script, once: for servers that are special as a whole (a cluster, one without memory)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agents import scripts as agent_scripts
from orchestrator.backup import scripts as backup_scripts
from orchestrator.control import scripts as control_scripts
from orchestrator.control.commands import DeleteShare, ResetLimit, RetryTasks, SetLimit, SetShare, Start, Stop
from orchestrator.core.formats import FORMAT
from orchestrator.core.ids import encode_foreign
from orchestrator.core.rates import Rate
from orchestrator.limits import scripts as limit_scripts
from orchestrator.limits.providers import ProviderLimit
from orchestrator.monitoring import scripts as monitoring_scripts
from orchestrator.schedules import scripts as schedule_scripts
from orchestrator.schedules.model import FireOutcome
from orchestrator.store.calls import opaque
from orchestrator.store.script_files import all_scripts
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.model import (
    CancelStatus,
    DeleteStatus,
    Envelope,
    FinishStatus,
    RequeueStatus,
    TaskState,
    Verdict,
    VerdictKind,
    encode_envelope,
)
from tests.lua.pool import LEASE_MS, Team, chunk, row, tagged

if TYPE_CHECKING:
    from orchestrator.store.calls import Call
    from tests.lua.pool import Pool

TEAM = Team(rate=Rate(1000, 60_000_000), limits=("x",), known_limits=(("x", Rate(1000, 1_000_000)),))


def play(pool: Pool, *, client: str = "c1", key: str = "k") -> set[str]:
    """Run every script with every verdict, so that each kind of key is written; the names of the scripts that ran."""
    ran: set[str] = set()
    call = pool.call

    def noted(made: Call[object]) -> object:
        ran.add(made.script)
        return call(made)

    pool.call = noted  # type: ignore[method-assign, assignment]
    try:
        _play(pool, client, key)
    finally:
        pool.call = call  # type: ignore[method-assign]
    return ran


def _play(pool: Pool, client: str, key: str) -> None:
    pool.call(agent_scripts.raise_floor(pool.keys, format_=FORMAT))
    pool.call(agent_scripts.lead(pool.keys, supervisor="s", lease_ms=5000))
    pool.register("w1", TEAM, slots=500)
    pool.register("w2", TEAM, slots=500)
    assert all([pool.heartbeat("w1"), pool.count(("ed", "sum", [0, 1])), pool.describe(("sum", "d1", b"{}"))])
    rows = [row(reply=client, idem=f"{key}{i}", digest="d", start_by_ms=pool.now_ms + 10**9) for i in range(9)]
    rows += [row(queue="agent:ed", skill="sum", delay_ms=5), row(queue="agent:ed", skill="other"), row(reply=client)]
    pool.put(*rows)
    pool.put(row(start_by_ms=pool.now_ms + 1, reply=client, delay_ms=50))
    pool.sleep(5)
    pool.promote()
    pool.watch(rows[0].id, rows[-1].id)
    assert pool.why(rows[0].id)
    deliveries = pool.deliver("w1", limit=9)
    pool.emit(*[chunk(each, 1) for each in deliveries], chunk(deliveries[7], 2, b"[1,2,null]", kind="progress"))
    kinds = [kind for kind in VerdictKind if kind not in {VerdictKind.ASK, VerdictKind.JOIN, VerdictKind.AWAIT_LOCK}]
    verdicts = [(delivery, Verdict(kind, b"x" * 10)) for delivery, kind in zip(deliveries, kinds, strict=False)]
    assert set(pool.finish(*verdicts)) == {FinishStatus.OK}
    pool.renew(deliveries[7:])
    pool.cancel(deliveries[7].task_id)
    parked = next(each.id for each in rows if each.skill == "other")
    assert pool.cancel(parked)[0][0] == CancelStatus.ENDED
    pool.look("w2")
    pool.age(LEASE_MS + 1)
    pool.adopt("w2")
    pool.adopt("w2", own=True)
    pool.abandon("w2")
    pool.sleep(2000)
    pool.promote()
    while deliveries := pool.deliver("w2"):
        pool.finish(*[(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in deliveries])
    play_refused_worker(pool)
    play_measures(pool)
    play_locks(pool)
    play_lanes(pool)
    play_suspects(pool)
    play_orders(pool)
    play_provider(pool)
    play_repair(pool)
    play_schedules(pool)
    pool.deregister("w1")
    pool.sleep(3_600_000)
    assert pool.expire() == ["w2"]
    pool.call(agent_scripts.resign(pool.keys, supervisor="s"))
    assert {each.id for each in rows if pool.state(each.id) in {"succeeded", "dead", "cancelled"}} == {
        e.id for e in rows
    }
    assert pool.delete(rows[0].id) == [(DeleteStatus.DELETED, TaskState.SUCCEEDED)]


def play_refused_worker(pool: Pool) -> None:
    """Refuse a worker, and recover what it has not read."""
    pool.register("w3", Team(agent="bob"))
    (unread,) = pool.put(row(queue="agent:bob"))
    pool.assign("bob")
    assert pool.refuse_worker("w3")
    pool.deregister("w3")
    assert pool.recover("bob", clean=True) == (1, False)
    pool.cancel(unread)


def play_measures(pool: Pool) -> None:
    """The monitoring reads the pool; then a task is dispatched."""
    assert pool.call(task_scripts.count_durable(pool.keys, counts={"fsync:asked": 2})) == 2
    assert pool.call(task_scripts.find_lost(pool.keys, ids=["gone"])) == ["gone"]
    assert pool.call(task_scripts.report_lost(pool.keys, report="r", observer="client", from_ms=1, submits=2))
    assert "ed" in pool.call(monitoring_scripts.measure_pool(pool.keys)).agents
    assert pool.call(monitoring_scripts.measure_agents(pool.keys, agents=["ed"]))["ed"].slots == 1000
    play_dispatch(pool)
    assert pool.call(
        monitoring_scripts.measure_queues(pool.keys, places=[monitoring_scripts.ReadyPlace("skill", "sum")])
    )


def play_dispatch(pool: Pool) -> None:
    """A task goes to the only agent, which is listed for it; then questions are asked."""
    assert pool.relist("ed") == []
    pool.put()
    assert pool.dispatch().count == 1
    pool.end(pool.read("w2")[0])
    play_questions(pool)
    play_joins(pool)
    play_flows(pool)


def play_locks(pool: Pool) -> None:
    """A task waits for a lock twice: it is woken before its verdict arrives, and then behind it."""
    pool.put()
    (held,) = pool.deliver("w2")
    assert pool.wake(held.task_id)
    pool.end(held, VerdictKind.AWAIT_LOCK, delay_ms=1000)
    (held,) = pool.deliver("w2")
    pool.end(held, VerdictKind.AWAIT_LOCK, delay_ms=1000)
    assert pool.wake(held.task_id)
    (held,) = pool.deliver("w2")
    pool.end(held)


def play_lanes(pool: Pool) -> None:
    """Three tasks of one lane: one fails for good, one waits and is replaced by the last; the first is requeued."""
    failing, waiting = row(lane="x"), row(lane="x")
    pool.put(failing, waiting)
    (held,) = pool.deliver("w2")
    pool.put(row(lane="x", on_busy="replace"))
    pool.end(held, VerdictKind.DEAD)
    (held,) = pool.deliver("w2")
    pool.end(held)
    ((status, _),) = pool.retry(failing.id)
    assert status is RequeueStatus.REQUEUED
    (held,) = pool.deliver("w2")
    pool.end(held)
    play_families(pool)
    play_shares(pool)


def play_families(pool: Pool) -> None:
    """A task of a session has more children than its list keeps, and the session more tasks; one has a tag."""
    pool.put(row(session="s"))
    (held,) = pool.deliver("w2")
    (known,) = pool.put(tagged("eu"))
    pool.cancel(known)
    pool.delete(known)
    children = [row(session="s", parent=held.task_id, parent_generation=held.generation) for _ in range(1001)]
    pool.put(*children[:500])
    for _ in range(10):
        pool.execute("RPUSH", pool.keys.children(held.task_id), *["old"] * 9950)
    for first in range(500, len(children), 500):
        pool.put(*children[first : first + 500])
    pool.cancel(*[each.id for each in children])
    assert pool.call(task_scripts.drop_replies(pool.keys, rows=[("none", "5-0")])) == 0
    assert pool.call(task_scripts.trim_events(pool.keys, oldest=pool.entries(pool.keys.events)[1][0])) == 1
    pool.end(held)
    pool.cancel(held.task_id)
    assert pool.cancel_children().left
    pool.delete(children[-1].id)
    assert pool.call(task_scripts.unlist_session(pool.keys, session="s", ids=[held.task_id])) == 999
    assert pool.call(task_scripts.measure_bytes(pool.keys, ids=[held.task_id.encode()])) == {}
    pool.call(task_scripts.list_dead(pool.keys, limit=1000))
    before = pool.call(task_scripts.correct_bytes(pool.keys, changes={b"skill:gone": 100}))
    assert pool.call(task_scripts.correct_bytes(pool.keys, changes={b"skill:gone": -100})) == before - 100


def play_shares(pool: Pool) -> None:
    """Of three tasks of a key one may run at a time: the others rest until it has ended."""
    pool.append(SetShare(key="k x", weight=2, at_most=1))
    pool.put(*[row(fair="k%20x") for _ in range(3)])
    for _ in range(3):
        (held,) = pool.deliver("w2")
        assert pool.deliver("w2") == []
        pool.end(held)
    pool.append(DeleteShare(key="k x"))
    play_budgets(pool)


def play_budgets(pool: Pool) -> None:
    """One of two tasks of a budget starts; it spends, and the other one waits until its end leaves room."""
    pool.set_budget("b", usd=1)
    pool.put(row(budget="b"))
    (held,) = pool.deliver("w2")
    assert pool.reserve(held, 1, usd=1).status == "granted"
    pool.put(row(budget="b"))
    assert pool.deliver("w2") == []
    pool.settle(held, 1, usd=0.5)
    pool.reserve(held, 2, usd=0.25)
    pool.end(held)
    assert pool.sweep_all("b") == 1
    (held,) = pool.deliver("w2")
    pool.reserve(held, 1, usd=0.1)
    pool.end(held)


def play_suspects(pool: Pool) -> None:
    """A task dies twice alone, so that it waits for a process that runs nothing else."""
    (id_,) = pool.put()
    for worker in ("d1", "d2"):
        pool.deliver(worker)
        pool.abandon(worker)
        pool.sleep(1000)
        pool.promote()
    pool.assign()
    assert pool.members(pool.keys.suspects("skill:sum")) == [id_]
    (held,) = pool.take_suspects("w2", idle=True)
    pool.return_unseen("w2")
    pool.assign()
    (held,) = pool.take_suspects("w2", idle=True)
    pool.end(held)
    play_waits(pool)


def play_waits(pool: Pool) -> None:
    """A parent waits for a child, which goes into the slot that the parent lends, and then for a task above it."""
    (parent,) = pool.put()
    (held,) = pool.deliver("w2")
    child = row(parent=held.task_id, parent_generation=held.generation, depth=1)
    pool.put(child)
    (recorded,) = pool.lend("w2", (held, child.id), ed="0=1").recorded
    assert recorded.depth == 0
    (below,) = pool.deliver("w2")
    pool.end(below)
    pool.lend("w2", (held, ""), ed="")
    (other,) = pool.put()
    pool.lend("w2", (held, other), ed="")
    pool.end(held)
    pool.cancel(other)
    assert pool.state(parent) == "succeeded"


def play_orders(pool: Pool) -> None:
    """A stop of a session that holds a task back and lets it go, a limit, a job, a forged order, receipts."""
    keys = pool.keys
    task = row(envelope=opaque(encode_envelope(Envelope("sum", b"{}", session="a b"))))
    pool.put(task)
    (stop, issued) = pool.append(Stop(session="a b"))
    assert stop.status == "accepted"
    assert pool.deliver("w2") == []
    pool.append(Start(session="a b"))
    scope = f"session:{encode_foreign('session', 'a b')}"
    assert pool.call(control_scripts.release(keys, scope=scope, slot="stop:session:a b", limit=9)) == (1, False)
    (held,) = pool.deliver("w2")
    pool.end(held)
    pool.append(SetLimit(limit="x", rate="5/s"))
    pool.append(ResetLimit(limit="x"))
    pool.execute("HSET", keys.desired, "stop:all", "1-forged")
    forged = control_scripts.VerificationRow("stop:all", b"1-forged", control_scripts.Verification.FALSE)
    pool.call(control_scripts.verify(keys, rows=[forged], seq=pool.desired()["seq"]))
    assert "stop:all" not in pool.desired()
    lost = control_scripts.RestoreRow("stop:all", pool.now_ms + 9, pool.desired()["seq"])
    assert pool.call(control_scripts.restore(keys, rows=[lost], verified=False, epoch=0, pruned=0)) == 1
    assert (
        pool.call(
            control_scripts.restore(
                keys, rows=[lost._replace(revision=lost.revision + 1, value=b"")], verified=True, epoch=0, pruned=0
            )
        )
        == 1
    )
    assert pool.call(control_scripts.prune(keys, rows=[("stop:all", lost.revision + 1)])) == 1
    pool.call(control_scripts.receipt(keys, rows=[control_scripts.ReceiptRow(issued.id, "w2", "done")]))
    pool.call(control_scripts.refuse(keys, rows=[control_scripts.RefusedRow("1-1", b"x", b"", "unreadable")]))
    (_, job) = pool.append(RetryTasks(count=1, digest="d"))
    pool.call(control_scripts.select(keys, id_=job.id, at=0, tasks=[task.id]))
    assert pool.call(control_scripts.finish_job(keys, id_=job.id, sender="s", status="done", detail=""))


def play_schedules(pool: Pool) -> None:
    """Each thing that can happen to a schedule, and the places of two are lost."""
    keys, at = pool.keys, pool.now_ms

    def put(name: str) -> None:
        call = schedule_scripts.put(keys, name=name, plan=b"{}", digest="d", before="", next_ms=str(at), anchor_ms=at)
        assert pool.call(call) is schedule_scripts.PutStatus.OK

    put("n")
    put("gone")
    assert len(pool.call(schedule_scripts.due(keys, excluded=[], limit=9)).schedules) == 2
    task, later = row(), str(at + 1000)
    fire = task_scripts.ScheduledFire("n", str(at), str(at), later, 1)
    sent = task_scripts.UnusualRow(task.id, task.envelope, fire=fire)
    (answer,) = pool.call(task_scripts.submit(keys, rows=[sent], max_tasks=9, max_wait_s=99))
    assert answer.status == "created"
    for outcome in (FireOutcome.SKIPPED, FireOutcome.REFUSED):
        made = schedule_scripts.SkipRow("n", later, str(int(later) + 1), 0, outcome, error="why")
        pool.call(schedule_scripts.skip(keys, rows=[made]))
        later = str(int(later) + 1)
    pool.call(schedule_scripts.pause(keys, name="n"))
    pool.execute("DEL", keys.schedules)
    assert len(pool.call(schedule_scripts.repair(keys, rows=[b"n", b"gone"], repair=True))) == 2
    pool.call(schedule_scripts.resume(keys, name="n", before="d", next_ms=later))
    pool.call(schedule_scripts.delete(keys, name="gone"))
    pool.cancel(task.id)
    pool.call(schedule_scripts.pause(keys, name="n"))
    play_restore(pool)


def play_questions(pool: Pool) -> None:
    """A task does something once and asks twice: one question is answered, the other one is not in time."""
    (id_,) = pool.put()
    (held,) = pool.deliver("w2")
    pool.once(held)
    pool.effect(held)
    pool.ask(held, options=['"a"'])
    assert pool.answer(id_, '"a"').status == "answered"
    (held,) = pool.deliver("w2")
    pool.ask(held, 2, delay_ms=5)
    pool.sleep(5)
    pool.promote()
    (held,) = pool.deliver("w2")
    pool.end(held)


def play_joins(pool: Pool) -> None:
    """A task joins another one, which ends, and then one that does not end in time."""
    (id_,) = pool.put()
    (held,) = pool.deliver("w2")
    (child,) = pool.put()
    pool.join(held, [child])
    pool.begin_to_join(held)
    (found,) = pool.deliver("w2")
    pool.end(found)
    (held,) = pool.deliver("w2")
    (late,) = pool.put(row(delay_ms=10**9))
    pool.join(held, [late], number=2)
    pool.begin_to_join(held, 2, delay_ms=5)
    assert pool.repair(id_, (late, f"joins:{id_}")) == []
    pool.sleep(5)
    pool.promote()
    (held,) = pool.deliver("w2")
    pool.end(held)
    pool.cancel(late)


def play_flows(pool: Pool) -> None:
    """A flow runs; its last task fails, and the one behind it is cancelled and retried."""
    first, second, third = pool.put(row(after=()), row(after=(1,)), row(after=(-1, 2), delay_ms=5))
    (held,) = pool.deliver("w2")
    pool.end(held)
    assert pool.repair(second, third, (third, "after")) == []
    (held,) = pool.deliver("w2")
    pool.end(held, VerdictKind.DEAD, payload=b"E", reason="no")
    assert pool.state(third) == "cancelled"
    pool.retry(second, third, token="flow")
    assert pool.state(third) == "awaiting_tasks"
    (held,) = pool.deliver("w2")
    pool.end(held)
    pool.sleep(5)
    pool.promote()
    (held,) = pool.deliver("w2")
    pool.end(held)
    pool.delete(first)


def play_provider(pool: Pool) -> None:
    """Calls of a provider begin, are renewed and end; it tells to wait, fails, and is tried."""
    keys = pool.keys
    limit = ProviderLimit(9, 60_000_000, 900, 60_000_000, 3)

    def take(call: str) -> str:
        taken = limit_scripts.take(keys, name="x", call=call, tokens=9, definition=limit, lease_ms=1000, by="ed")
        return pool.call(taken).status

    def settle(call: str, outcome: str) -> int:
        settled = limit_scripts.settle(keys, name="x", call=call, used=5, tokens_us=limit.tokens_us, outcome=outcome)
        return pool.call(settled).broken_ms

    assert take("c0") == "taken"
    assert pool.call(limit_scripts.renew(keys, name="x", calls=[("c0", 3)], lease_ms=1000)) == 1
    pool.block("x", 5)
    assert take("c1") == "blocked"
    settle("c0", "ok")
    pool.sleep(5)
    for number in range(5):
        assert take(f"d{number}") == "taken"
        settle(f"d{number}", "failed")
    assert take("e") == "blocked"
    pool.sleep(15_000)
    assert take("e") == "taken"
    settle("e", "ok")
    shown = f"{limit.text} shared"
    state = ("throttled", opaque(b"%d 1 ed" % (pool.now_ms + 5)))
    for states in ([state], []):
        assert pool.call(limit_scripts.follow(keys, name="x", states=states, shown=shown))


def play_repair(pool: Pool) -> None:
    """Lose the places of a few tasks, and repair them."""
    listed, unread = row(priority=3, delay_ms=9 * 10**9, start_by_ms=pool.now_ms + 10**10), row(queue="agent:none")
    pool.put(listed, unread)
    pool.execute("DEL", pool.keys.scheduled, pool.keys.expiring)
    pool.execute("ZADD", pool.keys.queue("skill:sum"), 1, "gone")
    pool.execute("XADD", pool.keys.inbox("ed"), "*", "t", "gone", "g", "1", "a", "1", "d", "0", "e", "")
    pool.execute("ZREM", pool.keys.skill("sum"), "ed")
    found = pool.repair(listed.id, ("gone", "queue:skill:sum"), ("", "queue:skill:sum"), ("", "idem:k0"))
    assert [code for _, code in found] == ["lost-scheduled", "lost-deadline", "gone", "unlisted-queue"]
    assert [code for _, code in pool.check_inbox()] == ["stray-entry"]
    pool.execute("PERSIST", pool.keys.agent("ed"))
    pool.execute("SET", pool.keys.limit("@none"), "x", "EX", 1000)
    checked = pool.check_keys(("agent:ed", "hash", 1000), ("queues", "set", 0), ("limit:@none", "zset", 0))
    assert checked == [("agent:ed", "no-lifetime"), ("limit:@none", "wrong-type")]
    assert pool.repair_registry(("agent", "ed"), ("skill", "sum")) == [("ed", "skill-index")]
    pool.cancel(listed.id, unread.id)


def play_restore(pool: Pool) -> None:
    """A task that ran is restored with its output and its letter, and cancelled."""
    id_, gone = row().id, row().id
    output = backup_scripts.RestoredOutput(id_, 60_000, [("1-1", [opaque(b"k"), opaque(b"output")])])
    floor = pool.execute("GET", pool.keys.format)
    mark = play_begin(pool)
    assert pool.call(backup_scripts.restore_output(pool.keys, mark=mark, rows=[output, output])) == 1
    fields = {b"env": encode_envelope(Envelope("sum", b"{}")), b"gen": b"5", b"state": b"assigned", b"at": b"ed 1-1 9"}
    dead = fields | {b"state": b"dead", b"ended": b"5"}
    rows = [
        backup_scripts.RestoredTask(
            id=each,
            left_ms=60_000,
            fields=[opaque(part) for pair in record.items() for part in pair],
            score="",
            turn="",
            began=True,
            digest=opaque(b""),
            children=[],
            children_ms=0,
            dead_ms=5,
        )
        for each, record in ((id_, fields), (gone, dead))
    ]
    for expected in ((2, 0, 0), (0, 2, 0)):
        call = backup_scripts.restore_tasks(
            pool.keys, mark=mark, rows=rows, origin="a file", keep_ms=60_000, dead_ttl_s=60
        )
        assert pool.call(call) == expected
    assert pool.state(id_) == "ready"
    pool.cancel(id_)
    pool.delete(id_, gone)
    key = backup_scripts.RestoredKey(
        "limits", "hash", [opaque(b"b"), opaque(b"1 5")], first=False, before=0, left_ms=0, until_ms=0
    )
    assert pool.call(backup_scripts.restore_keys(pool.keys.root, mark=mark, rows=[key])) == 1
    assert pool.call(backup_scripts.finish(pool.keys, mark=mark, floor=3)) == 0
    if floor is None:
        pool.execute("DEL", pool.keys.format)
    else:
        pool.execute("SET", pool.keys.format, floor)


def play_begin(pool: Pool) -> str:
    """A pool that is used is refused; the mark of a restore that was interrupted is replaced."""
    assert pool.call(backup_scripts.begin(pool.keys, mark="restoring a", run="1")) == "used"
    pool.execute("SET", pool.keys.format, "restoring a 1")
    assert pool.call(backup_scripts.begin(pool.keys, mark="restoring b", run="1")) == "occupied"
    assert pool.call(backup_scripts.begin(pool.keys, mark="restoring a", run="2")) == "continued"
    return "restoring a 2"


def every_script() -> set[str]:
    """Names of all scripts that work on a pool; those of scopes have tests of their own."""
    return {name for name, script in all_scripts().items() if script.keys[0].name == "pool"}
