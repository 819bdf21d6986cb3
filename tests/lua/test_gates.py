"""What stops and pauses hold back: in submit, assign and adopt; and what is held comes back with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.control import scripts as control
from orchestrator.control.commands import TimedPause, encode_command, make_command
from orchestrator.core.command_record import VERSION, Issued, pack_issued
from orchestrator.core.ids import encode_foreign, new_task_id
from orchestrator.core.rates import Rate, parse_rate
from orchestrator.store.calls import opaque
from orchestrator.tasks.model import CancelStatus, Envelope, TaskState, VerdictKind, encode_envelope
from tests.helpers.cases import each_case
from tests.lua.pool import Team, rank, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool, Row

pytestmark = pytest.mark.every_server

STRANGE = "a b/ü{x}%\\\"'" + "z" * 40
"""A session with signs that keys cannot hold."""


def order(pool: Pool, kind: str, status: str = "accepted", **values: Any) -> None:
    """Give a command."""
    command = make_command(kind, values)
    if isinstance(command, TimedPause):
        command = command.ending(pool.now_ms)
    packed = encode_command(command)
    issued = Issued(VERSION, new_task_id(), packed, 'ann "until_ms":1', "", pool.now_ms, pool.now_ms + 60_000, 0)
    rate = parse_rate(values["rate"]) if "rate" in values else None
    call = control.append(
        pool.keys,
        issued=issued,
        packed=pack_issued(issued),
        signature="",
        changes=[control.ChangeRow.of(slot, mark, rate) for slot, mark in command.changes],
        job=False,
        per_minute=1000,
        token="t",
    )
    assert pool.call(call).status == status


def of_session(session: str, size: int = 3, **fields: Any) -> Row:
    """A task of a session whose arguments have so many bytes."""
    return row(envelope=opaque(encode_envelope(Envelope("sum", b"x" * size, session=session))), **fields)


def release(pool: Pool, scope: str, limit: int = 500) -> tuple[int, bool]:
    """Let go what a stop held back."""
    return pool.call(control.release(pool.keys, scope=scope, slot=pool.keys.stop_slot(scope), limit=limit))


def given(pool: Pool, agent: str = "ed") -> list[str]:
    """Assign and read."""
    return [delivery.task_id for delivery in pool.deliver(agent=agent)]


@each_case(
    ("begin", "end"),
    [
        (("stop", {}), ("start", {})),
        (("stop", {"agent": "ed"}), ("start", {"agent": "ed"})),
        (("stop", {"skill": "sum"}), ("start", {"skill": "sum"})),
        (("pause-agent", {"agent": "ed"}), ("resume-agent", {"agent": "ed"})),
        (("hold-agent", {"agent": "ed", "for_s": 60}), ("start", {"agent": "ed"})),
        (("pause-queue", {"queue": "skill:sum"}), ("resume-queue", {"queue": "skill:sum"})),
    ],
    fresh="pool",
)
def test_nothing_is_assigned(pool: Pool, begin: tuple[str, dict[str, Any]], end: tuple[str, dict[str, Any]]) -> None:
    """While it is active nothing is given out; before and after it is."""
    pool.register()
    (first,) = pool.put(row())
    assert given(pool) == [first]
    order(pool, begin[0], **begin[1])
    (second,) = pool.put(row())
    with pool.unchanged():
        assert pool.assign().count == 0
    order(pool, end[0], **end[1])
    assert given(pool) == [second]


@each_case(
    ("kind", "values"),
    [
        ("stop", {"agent": "other"}),
        ("stop", {"skill": "other"}),
        ("stop", {"session": "other"}),
        ("pause-agent", {"agent": "other"}),
        ("pause-queue", {"queue": "agent:ed"}),
        ("drain-queue", {"queue": "skill:sum"}),
    ],
    fresh="pool",
)
def test_others_go_on(pool: Pool, kind: str, values: dict[str, Any]) -> None:
    """What holds for others holds nothing back here."""
    pool.register()
    pool.put(of_session("mine"), row())
    order(pool, kind, **values)
    assert len(given(pool)) == 2


@each_case("size", [0, 255, 256, 65_535, 65_536], fresh="pool")
@each_case("session", ["101", STRANGE], fresh="pool")
def test_stopped_session(pool: Pool, session: str, size: int) -> None:
    """Tasks of a stopped session leave the queue to the others, and come back to the places that they had."""
    pool.register()
    first, second = of_session(session, size), of_session(session, size, priority=1)
    others = [of_session("other"), row()]
    pool.put(first, second, *others)
    scores = [pool.score(pool.keys.queue("skill:sum"), each.id) for each in (first, second)]
    order(pool, "stop", session=session)
    assert sorted(given(pool)) == sorted(each.id for each in others)
    scope = f"session:{encode_foreign('session', session)}"
    assert pool.members(pool.keys.held(scope)) == [second.id, first.id]
    assert pool.state(first.id) == "ready"
    assert release(pool, scope) == (0, False)
    order(pool, "start", session=session)
    assert release(pool, scope, limit=1) == (1, True)
    assert release(pool, scope) == (1, False)
    assert [pool.score(pool.keys.queue("skill:sum"), each.id) for each in (first, second)] == scores
    assert pool.execute("EXISTS", pool.keys.suspended_scopes) == 0
    assert given(pool) == [second.id, first.id]


def test_addressed_task_of_a_stopped_skill(pool: Pool) -> None:
    """In the queue of an agent a stopped skill holds back its own tasks only."""
    pool.register(team=Team(skills=frozenset({"sum", "other"})))
    stopped, free = row(queue="agent:ed", skill="sum"), row(queue="agent:ed", skill="other")
    pool.put(stopped, free)
    order(pool, "stop", skill="sum")
    assert given(pool) == [free.id]
    assert pool.members(pool.keys.held("skill:sum")) == [stopped.id]
    order(pool, "start", skill="sum")
    assert release(pool, "skill:sum") == (1, False)
    assert given(pool) == [stopped.id]


@pytest.mark.parametrize("values", [{}, {"agent": "ed"}, {"session": "101"}, {"skill": "sum"}])
def test_nothing_is_adopted(pool: Pool, values: dict[str, str]) -> None:
    """An entry whose lease ran out goes back to its queue instead of to another worker."""
    pool.register()
    task = of_session("101")
    pool.put(task)
    pool.one()
    pool.look()
    pool.age(20_000)
    order(pool, "stop", **values)
    assert pool.adopt("w2") == []
    assert (pool.state(task.id), pool.queue()) == ("ready", [task.id])
    order(pool, "start", **values)
    assert given(pool) == [task.id]


def test_adopted_without_a_stop(pool: Pool) -> None:
    """The twin: a stop of another session leaves it to another worker."""
    pool.register()
    task = of_session("101")
    pool.put(task)
    pool.one()
    pool.look()
    pool.age(20_000)
    order(pool, "stop", session="102")
    assert [delivery.task_id for delivery in pool.adopt("w2")] == [task.id]


@each_case(
    ("kind", "values", "slot"),
    [
        ("stop", {"refuse": True}, "stop:all"),
        ("stop", {"now": True, "refuse": True}, "stop:all"),
        ("stop", {"skill": "sum", "refuse": True}, "stop:skill:sum"),
        ("stop", {"session": STRANGE, "refuse": True}, f"stop:session:{STRANGE}"),
        ("drain-queue", {"queue": "skill:sum"}, "drain:queue:skill:sum"),
    ],
    fresh="pool",
)
def test_refused_by_validation(pool: Pool, kind: str, values: dict[str, Any], slot: str) -> None:
    """A stop that says so, and a drain, refuse new tasks; a task that is known is known all the same."""
    known = of_session(STRANGE, idem="k", digest="d")
    pool.put(known)
    order(pool, kind, **values)
    with pool.unchanged():
        assert pool.submit(of_session(STRANGE)) == [("stopped", slot)]
        assert pool.submit(of_session(STRANGE, idem="k", digest="d")) == [("duplicate", known.id)]


def test_refused_for_one_agent(pool: Pool) -> None:
    """The stop of an agent refuses what is addressed to it, the stop of a skill also what is addressed to an agent."""
    order(pool, "stop", agent="ed", refuse=True)
    addressed = row(queue="agent:ed", skill="sum")
    assert pool.submit(addressed, row()) == [("stopped", "stop:agent:ed"), ("created", "")]
    order(pool, "start", agent="ed")
    order(pool, "stop", skill="sum", refuse=True)
    assert pool.submit(addressed) == [("stopped", "stop:skill:sum")]


def test_accepted_and_kept(pool: Pool) -> None:
    """A stop that does not refuse lets new tasks in."""
    order(pool, "stop")
    assert pool.submit(row()) == [("created", "")]


def test_held_task_is_cancelled(pool: Pool) -> None:
    """A task that is held back can be cancelled, and expires; nothing of it stays."""
    pool.register()
    cancelled, late = of_session("101"), of_session("101", start_by_ms=pool.now_ms + 1000)
    pool.put(cancelled, late)
    order(pool, "stop", session="101")
    assert given(pool) == []
    assert pool.cancel(cancelled.id) == [(CancelStatus.ENDED, TaskState.CANCELLED)]
    pool.sleep(2000)
    assert pool.promote().expired == 1
    assert pool.members(pool.keys.held("session:101")) == []
    order(pool, "start", session="101")
    assert release(pool, "session:101") == (0, False)
    assert pool.execute("EXISTS", pool.keys.suspended_scopes) == 0


def test_held_tasks_count(pool: Pool) -> None:
    """Tasks that a stop holds back count against the cap, for tasks of the stopped session or skill only."""
    pool.register(team=Team(skills=frozenset({"sum", "other"})))
    order(pool, "stop", session=STRANGE)
    order(pool, "stop", skill="sum")
    statuses = []
    for turn in range(4):
        in_session = [of_session(STRANGE, queue="skill:other", lane=f"{turn}-{n}") for n in range(2)]
        statuses += pool.submit(*in_session, row(queue="agent:ed", skill="sum"), max_tasks=3)
        assert given(pool) == []
    created, full = ("created", ""), ("full", f"stop:session:{STRANGE}")
    assert statuses[:6] == [created, created, created, created, full, created]
    assert statuses[6:] == [full, full, created, full, full, ("full", "stop:skill:sum")]
    assert pool.submit(of_session("mine", queue="skill:other"), row(), max_tasks=1) == [created, created]
    order(pool, "start", session=STRANGE)
    assert release(pool, f"session:{encode_foreign('session', STRANGE)}") == (3, False)
    assert pool.submit(of_session(STRANGE, queue="skill:other"), max_tasks=4) == [("full", "skill:other")]
    assert pool.submit(of_session(STRANGE, queue="skill:other"), max_tasks=5) == [created]


def test_leaving_costs_the_same_beside_many_stops(pool: Pool) -> None:
    """However many sessions are stopped: a task that leaves its queue is looked for where it can be."""
    pool.register()

    def cancel_one() -> int:
        task = of_session("none")
        pool.put(task)
        before = pool.commands()
        pool.cancel(task.id)
        return pool.commands() - before

    def hold(name: str) -> None:
        order(pool, "stop", session=name)
        pool.put(of_session(name))
        assert given(pool) == []

    hold("first")
    cancel_one()  # now the server knows the script
    few = cancel_one()
    for n in range(40):
        hold(f"other-{n}")
    assert cancel_one() == few


def test_held_task_is_in_its_place(pool: Pool) -> None:
    """The reconciler finds nothing wrong with what is held; a list of stops that was lost comes back."""
    pool.register()
    task = of_session("101")
    pool.put(task)
    order(pool, "stop", session="101")
    assert given(pool) == []
    place = "held:session:101"
    assert pool.repair(task.id, (task.id, place), ("", place)) == []
    pool.execute("DEL", pool.keys.suspended_scopes)
    assert pool.repair(("", place)) == [(place, "unlisted-queue")]
    assert pool.repair(task.id, ("", place)) == []
    pool.execute("DEL", pool.keys.held("session:101"))
    assert ("lost-ready" in {code for _, code in pool.repair(task.id)}) is True
    assert pool.queue() == [task.id]


def test_limit_is_changed_and_given_back(pool: Pool) -> None:
    """An operator's rate counts at once, outlives a registration, and the defined one counts again after it."""
    pool.register(team=Team(rate=parse_rate("1/min")))
    pool.put(*[row() for _ in range(10)])
    assert len(given(pool)) == 1
    order(pool, "set-limit", limit="@ed", rate="3/min")
    assert len(given(pool)) == 2
    pool.register("w2", Team(rate=parse_rate("1/min")))
    assert given(pool) == []
    assert pool.execute("HGET", pool.keys.limits, "@ed") == b"3 60000000"
    order(pool, "reset-limit", limit="@ed")
    assert pool.execute("HGETALL", pool.keys.limits) == [b"@ed", b"1 60000000"]


def test_finished_tasks_of_a_stop(pool: Pool) -> None:
    """What runs when a stop comes may end, and what is given back waits."""
    pool.register()
    pool.put(of_session("101"), of_session("101"))
    first, second = pool.deliver()
    order(pool, "stop", session="101")
    assert pool.end(first) == "ok"
    assert pool.end(second, VerdictKind.REQUEUE) == "ok"
    assert given(pool) == []
    assert pool.score(pool.keys.held("session:101"), second.task_id) == rank(2) + pool.now_ms


@each_case("target", [("hold-agent", "agent"), ("hold-limit", "limit")], fresh="pool")
def test_a_pause_ends_by_itself(pool: Pool, target: tuple[str, str]) -> None:
    """Nothing is assigned before its end, which the answer tells; a later end replaces it, an earlier one does not."""
    kind, field = target
    pool.register(team=Team(rate=Rate(100, 1_000_000)), slots=10)
    ids = pool.put(row(), row())
    name = {field: "ed" if field == "agent" else "@ed"}
    order(pool, kind, for_s=3, **name)
    order(pool, kind, "held", for_s=2, **name)
    wait_us = pool.assign().wait_us
    assert 3_000_000 <= wait_us <= 4_000_000
    pool.sleep(wait_us // 1000 - 1)
    assert given(pool) == []
    order(pool, kind, for_s=2, **name)
    pool.sleep(5)
    assert given(pool) == []
    pool.sleep(3000)
    assert given(pool) == list(ids)


def test_a_paused_agent_adopts_and_takes_nothing(pool: Pool) -> None:
    """What its dead worker held returns to the queue and waits there for the end."""
    pool.register()
    pool.put(row())
    delivery = pool.one()
    pool.look()
    pool.age(20_000)
    order(pool, "hold-agent", agent="ed", for_s=3)
    assert pool.adopt("w2") == []
    assert pool.state(delivery.task_id) == TaskState.READY
    assert given(pool) == []
    pool.sleep(4000)
    assert given(pool) == [delivery.task_id]
