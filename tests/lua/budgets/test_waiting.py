"""Tasks that wait for room of a budget, and lua/budgets/sweep.lua, which keeps budgets in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import DeleteBudget
from orchestrator.core.amounts import MICRO, Amounts, parse_amounts
from orchestrator.store.calls import opaque
from orchestrator.tasks.model import VerdictKind
from tests.helpers import roles
from tests.lua.budgets.test_spending import usd
from tests.lua.pool import LEASE_MS, Pool, Team, envelope, row

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server


def reserving(dollars: float, **others: float) -> Team:
    """An agent whose starts take so much, also those of other skills."""
    of_skills = {"sum": dollars, **others}
    funds = tuple((skill, (parse_amounts({"usd": of_skills[skill]}), ())) for skill in sorted(of_skills))
    return Team(skills=frozenset(of_skills), funds=funds)


def held(pool: Pool, name: str = "b") -> int:
    """How many tasks wait for a budget."""
    return int(pool.execute("ZCARD", pool.keys.held(f"budget:{name}")))


def test_starts_beyond_the_budget_wait(pool: Pool) -> None:
    """As many tasks start as fit; the others wait aside, and no task without a budget waits behind them."""
    pool.set_budget(usd=1)
    pool.register(team=reserving(0.4))
    pool.put(*[row(budget="b") for _ in range(5)], row())
    assert pool.assign().count == 3
    assert (held(pool), usd(pool)) == (3, (0, 0.8))
    pool.end(pool.read()[0])
    assert pool.sweep_all() == 1
    assert pool.assign().count == 1
    assert held(pool) == 2


def test_they_come_back_at_their_places(pool: Pool) -> None:
    """Tasks that waited start before those that came later."""
    pool.set_budget(usd=0)
    pool.register()
    waited = pool.put(row(budget="b"), row(budget="b"))
    pool.assign()
    pool.sleep(5)
    later = pool.put(row(budget="b"))
    pool.set_budget(usd=1)
    assert pool.sweep_all() == 2
    pool.assign()
    assert [one.task_id for one in pool.read()] == sorted(waited) + later


def test_tasks_that_do_not_fit_stay(pool: Pool) -> None:
    """A sweep moves only tasks that fit, also behind hundreds that do not, and changes nothing else."""
    pool.set_budget(usd=1)
    pool.register(team=reserving(5, small=0.25), slots=1000)
    pool.put(*[row(budget="b") for _ in range(300)])
    small = pool.put(*[row(budget="b", queue="agent:ed", skill="small") for _ in range(6)])
    while pool.assign().left:
        pass
    assert (held(pool), [one.task_id for one in pool.read()]) == (302, sorted(small)[:4])
    with pool.unchanged():
        assert pool.sweep_all() == 0
    pool.set_budget(usd=1.5)
    assert pool.sweep_all() == 2
    assert held(pool) == 300


def test_several_budgets(pool: Pool) -> None:
    """A task waits for the first budget without room, and takes nothing of the others meanwhile."""
    pool.set_budget("b", usd=1)
    pool.set_budget("c", usd=0.1)
    pool.register(team=reserving(0.5))
    (id_,) = pool.put(row(budget="b c"))
    assert pool.assign().count == 0
    assert (held(pool), held(pool, "c"), usd(pool)) == (0, 1, (0, 0))
    assert pool.task(id_)["need"] == "c 500000 0 0 0"
    pool.set_budget("c", usd=1)
    assert pool.sweep_all("c") == 1
    assert pool.assign().count == 1
    assert "need" not in pool.task(id_)
    assert (usd(pool), usd(pool, "c")) == ((0, 0.5), (0, 0.5))


def test_cancels_and_deadlines_of_waiting_tasks(pool: Pool) -> None:
    """A task that waits for a budget can be cancelled and can expire, and leaves no trace."""
    pool.set_budget(usd=0)
    pool.register()
    first, second = pool.put(row(budget="b"), row(budget="b", start_by_ms=pool.now_ms + 100))
    pool.assign()
    assert held(pool) == 2
    pool.cancel(first)
    pool.sleep(200)
    pool.promote()
    assert (pool.task(first)["state"], pool.task(second)["state"], held(pool)) == ("cancelled", "expired", 0)


@pytest.mark.parametrize("defined", [True, False])
def test_a_budget_for_which_no_task_waits_any_longer(pool: Pool, *, defined: bool) -> None:
    """Once the last task that waited was cancelled, a sweep unlists the budget, also one that is not set."""
    if defined:
        pool.set_budget(usd=0)
    pool.register(team=Team(funds=(("sum", (Amounts(), ("b",))),)))
    (id_,) = pool.put(row())
    pool.assign()
    pool.cancel(id_)
    assert pool.execute("SMEMBERS", pool.keys.suspended_scopes) == [b"budget:b"]
    assert not pool.sweep().left
    assert pool.execute("EXISTS", pool.keys.suspended_scopes) == 0


def test_no_more_move_than_fit(pool: Pool) -> None:
    """A pass of many calls moves as many tasks as fit, also while what it moved starts meanwhile."""
    pool.set_budget(usd=1)
    pool.register(team=reserving(1), slots=1000)
    pool.put(*[row(budget="b") for _ in range(300)])
    pool.assign()
    assert held(pool) == 299
    pool.set_budget(usd=2.5)
    assert pool.sweep_all(limit=10) == 1
    assert pool.assign().count == 1
    pool.set_budget(usd=52.5)
    done, moved = pool.sweep(limit=10), 0
    while done.left:
        moved += done.moved
        pool.assign()
        done = pool.sweep(limit=10, first=done.next_first, cursor=done.next_cursor, taken=done.next_taken)
    assert (moved + done.moved, usd(pool)) == (50, (0, 52))


def test_waiting_tasks_are_looked_at_once(pool: Pool) -> None:
    """Once a pass has seen all waiting tasks, its other calls look only at holds."""
    pool.set_budget(usd=1000)
    pool.register(team=reserving(1, small=0.5), slots=2000)
    for _ in range(4):
        pool.put(*[row(budget="b") for _ in range(300)])
        while pool.assign(limit=500).left:
            pass
    assert held(pool) == 200
    done = pool.sweep(limit=500)
    assert (done.left, done.next_first) == (True, -1)
    waits = pool.execute("ZRANGE", pool.keys.held("budget:b"), 0, 0)[0]
    pool.execute("HSET", pool.keys.task(waits.decode()), "state", "waiting")
    while done.left:
        done = pool.sweep(limit=500, first=done.next_first, cursor=done.next_cursor, taken=done.next_taken)
    assert held(pool) == 200
    pool.sweep_all()
    assert held(pool) == 199


def test_very_many_suspects_without_room(pool: Pool) -> None:
    """An agent with many skills moves its suspects without room aside in several calls, and then takes the others."""
    pool.set_budget(usd=0)
    skills = [f"s{number}" for number in range(25)]
    pool.register(team=Team(skills=frozenset(skills)), slots=10)
    for skill in skills:
        queue = f"skill:{skill}"
        ids = pool.put(*[row(queue=queue, budget="b", envelope=opaque(envelope(skill))) for _ in range(200)])
        for id_ in ids:
            pool.execute("HSET", pool.keys.task(id_), "group", 5, "deaths", 2)
        pool.execute("RENAME", pool.keys.queue(queue), pool.keys.suspects(queue))
        pool.execute("SREM", pool.keys.queues, queue)
        pool.execute("SADD", pool.keys.suspected_queues, queue)
    assert pool.take_suspects() == []
    assert held(pool) == 500
    for _ in range(9):
        pool.take_suspects()
    assert (held(pool), pool.execute("EXISTS", pool.keys.suspected_queues)) == (5000, 0)


def test_suspects_behind_others_without_room(pool: Pool) -> None:
    """Of many skills with few suspects each, one that fits starts, though it is behind several that do not."""
    pool.set_budget(usd=0)
    skills = [f"s{number:02}" for number in range(64)]
    pool.register(team=Team(skills=frozenset(skills)), slots=10)
    fits = ""
    for skill in skills:
        queue, of_skill = f"skill:{skill}", opaque(envelope(skill))
        ids = pool.put(*[row(queue=queue, budget="b", envelope=of_skill) for _ in range(30 if skill == "s07" else 1)])
        if skill == "s07":
            (fits,) = pool.put(row(queue=queue, envelope=of_skill))
        for id_ in [*ids, *[fits] * (skill == "s07")]:
            pool.execute("HSET", pool.keys.task(id_), "group", 5, "deaths", 2)
        pool.execute("RENAME", pool.keys.queue(queue), pool.keys.suspects(queue))
        pool.execute("SREM", pool.keys.queues, queue)
        pool.execute("SADD", pool.keys.suspected_queues, queue)
    assert [one.task_id for one in pool.take_suspects()] == [fits]


def test_holds_of_lost_attempts_are_booked(pool: Pool) -> None:
    """Holds of attempts that ended without a word are booked, among hundreds of holds of attempts that run."""
    pool.set_budget(usd=1000)
    pool.register(team=reserving(1), slots=800)
    for _ in range(2):
        pool.put(*[row(budget="b") for _ in range(350)])
        pool.assign()
    deliveries = pool.read(limit=800)
    for delivery in deliveries[300:]:
        pool.execute("DEL", pool.keys.task(delivery.task_id))
    assert pool.sweep(cursor="").booked == 0
    assert usd(pool) == (0, 700)
    # A look at some of them says where it goes on.
    assert (found := pool.sweep()).next_cursor != ""
    assert 0 < found.booked < 400
    pool.sweep_all()
    assert usd(pool) == (400, 300)
    with pool.unchanged():
        pool.sweep_all()
    for delivery in deliveries[:300]:
        pool.end(delivery)
    assert usd(pool) == (400, 0)


@pytest.mark.parametrize("key", ["budget", "holds"])
def test_a_key_of_another_type_closes_its_budget_only(pool: Pool, key: str) -> None:
    """Tasks of a budget with a damaged key wait; all others start, and ends of attempts work."""
    pool.set_budget("b", usd=1)
    pool.set_budget("c", usd=1)
    pool.register(team=reserving(0.1))
    pool.put(row(budget="b"))
    before = pool.one()
    pool.execute("DEL", getattr(pool.keys, key)("b"))
    pool.execute("SET", getattr(pool.keys, key)("b"), "x")
    pool.put(row(budget="b"), row(budget="c"), row(budget="b c"), row())
    assert pool.assign().count == 2
    assert held(pool) == 2
    assert pool.reserve(before, usd=0.1)[:3] == ("refused", "b", "damaged")
    pool.end(before)
    for delivery in pool.read():
        pool.end(delivery)
    pool.sweep_all()
    assert pool.set_budget("b", usd=2).status == "damaged"
    # As the supervisor sets it aside.
    pool.execute("RENAME", getattr(pool.keys, key)("b"), pool.keys.root + ":mistyped")
    pool.execute("EXPIRE", pool.keys.root + ":mistyped", 60)
    pool.set_budget("b", usd=2)
    assert pool.sweep_all("b") == 2


def test_a_damaged_value_closes_its_budget(pool: Pool) -> None:
    """A value that no program stores is not taken for room."""
    pool.set_budget(usd=1)
    pool.register()
    for field, value in (("spent", "x"), ("limit", "1 2 3"), ("held", "- 0 0 0"), ("limit", "1e9 - - -")):
        stored = pool.execute("HGET", pool.keys.budget("b"), field)
        pool.execute("HSET", pool.keys.budget("b"), field, value)
        pool.put(row(budget="b"))
        assert pool.assign().count == 0
        pool.execute("HSET", pool.keys.budget("b"), field, stored)


def test_a_budget_in_use_is_not_deleted(pool: Pool) -> None:
    """A budget stays while attempts hold something of it or tasks wait for it; tasks of one that is deleted wait."""
    pool.set_budget(usd=1)
    pool.register(team=reserving(1))
    pool.put(row(budget="b"), row(budget="b"))
    pool.assign()
    assert pool.append(DeleteBudget(budget="b"))[0].status == "used"
    pool.end(pool.read()[0])
    assert pool.append(DeleteBudget(budget="b"))[0].status == "used"
    pool.sweep_all()
    pool.assign()
    pool.end(pool.read()[0])
    assert pool.append(DeleteBudget(budget="b"))[0].status == "accepted"
    assert pool.execute("EXISTS", pool.keys.budget("b"), pool.keys.budgets) == 0


def test_a_limit_below_what_is_spent(pool: Pool) -> None:
    """It is refused with what is spent, and nothing changes; what a command does not name stays."""
    pool.set_budget(usd=1, tokens="2M", soft=0.5, at_hard="ask", lost="free")
    pool.register()
    pool.put(row(budget="b"))
    delivery = pool.one()
    pool.reserve(delivery, usd=0.75)
    pool.settle(delivery, usd=0.75)
    refused = pool.set_budget(usd=0.5)
    assert (refused.status, refused.entry) == ("below", "usd 750000")
    assert pool.set_budget(calls=10).status == "accepted"
    assert pool.budget()["limit"] == (MICRO, 2_000_000 * MICRO, 10 * MICRO, None)
    assert pool.set_budget(usd="none").status == "accepted"
    assert pool.budget()["limit"] == (None, 2_000_000 * MICRO, 10 * MICRO, None)
    stored = pool.execute("HMGET", pool.keys.budget("b"), "soft", "at_hard", "lost", "per")
    assert stored == [b"0.5", b"ask", b"free", None]


def test_a_question_grants_and_refuses(pool: Pool) -> None:
    """An answer with an amount raises the limit and frees the task; one without lets it start, and grants nothing."""
    pool.set_budget(usd=1, at_hard="ask")
    pool.register()
    (id_,) = pool.put(row(budget="b"))
    delivery = pool.one()
    pool.reserve(delivery, 1, usd=1)
    pool.settle(delivery, 1, usd=1)
    assert pool.reserve(delivery, 2, usd=0.5).states[0].at_hard == "ask"
    pool.ask(delivery)
    assert pool.answer(id_, "0.5", grant=f"b {Amounts(usd=MICRO // 2).packed}").status == "answered"
    with pool.unchanged():
        assert pool.answer(id_, "0.5", grant=f"b {Amounts(usd=MICRO // 2).packed}").status == "already"
    delivery = pool.one()
    assert pool.reserve(delivery, 1, usd=0.5).status == "granted"
    pool.settle(delivery, 1, usd=0.5)
    assert not pool.reserve(delivery, 2, usd=0.5).unfunded
    pool.ask(delivery, 2)
    pool.answer(id_, "0", number=2, grant=f"b {Amounts().packed}")
    delivery = pool.one()
    assert pool.reserve(delivery, 1, usd=0.5).unfunded
    assert usd(pool) == (1.5, 0)


def test_suspects_wait_for_room(pool: Pool) -> None:
    """A task that may share a process with few others starts only when its budgets have room, and takes its reserve."""
    pool.set_budget(usd=1)
    pool.register(team=reserving(0.25))
    (id_,) = pool.put(row(budget="b"))
    pool.one()
    pool.execute("HSET", pool.keys.task(id_), "group", "1")
    pool.abandon("w1")
    pool.set_budget("b", usd=0.25)
    pool.assign()
    assert pool.take_suspects() == []
    pool.set_budget("b", usd=1)
    pool.sweep_all()
    pool.assign()
    taken = pool.take_suspects()
    assert [one.task_id for one in taken] == [id_]
    assert usd(pool) == (0.25, 0.25)
    pool.end(taken[0])
    assert usd(pool) == (0.25, 0)


def test_a_worker_sets_a_list_of_another_type_aside(pool: Pool, redis_server: RedisServer, prefix: str) -> None:
    """A worker that may change only its own keys moves a suspect to the list, also if that was another type."""
    pool.set_budget(usd=1)
    pool.register(team=reserving(0.25))
    pool.put(row(budget="b"))
    id_ = pool.one().task_id
    pool.execute("HSET", pool.keys.task(id_), "group", "1")
    pool.abandon("w1")
    pool.set_budget("b", usd=0.25)
    pool.assign()
    pool.execute("SET", pool.keys.held("budget:b"), "x", "EX", 60)
    roles.set_users(redis_server, prefix)
    try:
        worker = Pool(roles.url_of(redis_server, "worker"), prefix)
        assert worker.take_suspects() == []
        worker.close()
    finally:
        redis_server.has_users = False
    assert held(pool) == 1


def test_suspects_without_room_keep_no_slot(pool: Pool) -> None:
    """A suspect whose budget has no room waits beside the suspects, so that its slot runs other tasks meanwhile."""
    pool.set_budget(usd=1)
    pool.register(slots=1, team=reserving(0.25))
    (id_,) = pool.put(row(budget="b"))
    pool.one()
    pool.execute("HSET", pool.keys.task(id_), "group", "1")
    pool.abandon("w1")
    pool.set_budget("b", usd=0.25)
    (other,) = pool.put(row())
    assert pool.assign().count == 0
    assert pool.take_suspects() == []
    assert (held(pool), pool.task(id_)["need"]) == (1, "b 250000 0 0 0")
    assert pool.execute("EXISTS", pool.keys.suspected_queues) == 0
    assert pool.assign().count == 1
    (delivery,) = pool.read()
    assert delivery.task_id == other
    pool.end(delivery)
    pool.set_budget("b", usd=1)
    assert pool.sweep_all() == 1
    pool.assign()
    assert [one.task_id for one in pool.take_suspects()] == [id_]


def test_a_smaller_reserve_lets_waiting_tasks_start(pool: Pool) -> None:
    """Tasks that wait for amounts, or budgets, that their agent no longer asks for start when all move."""
    pool.set_budget("b", usd=1)
    pool.register(team=reserving(5))
    pool.put(row(budget="b"))
    assert pool.assign().count == 0
    pool.register(team=reserving(0.5))
    assert pool.sweep_all() == 0
    assert pool.sweep_all(anew=True) == 1
    assert pool.assign().count == 1
    pool.register(team=Team(funds=(("sum", (Amounts(), ("gone",))),)))
    pool.put(*[row() for _ in range(3)])
    assert pool.assign().count == 0
    pool.register(team=Team())
    assert pool.sweep_all("gone") == 0
    assert (held(pool, "gone"), pool.sweep_all("gone", limit=2, anew=True)) == (3, 3)
    assert pool.assign().count == 3
    assert not pool.execute("EXISTS", pool.keys.held("budget:gone"))


def test_tasks_that_move_anew_and_wait_again(pool: Pool) -> None:
    """Tasks that find no room with their new amounts wait again, and the sweep that moves all comes to its end."""
    pool.set_budget(usd=1)
    pool.register(slots=10, team=reserving(2))
    pool.put(*[row(budget="b") for _ in range(7)])
    assert (pool.assign().count, held(pool)) == (0, 7)
    pool.register(slots=10, team=reserving(0.5))
    behind, left, moved, started = "", True, 0, 0
    for _ in range(20):
        if left:
            done = pool.sweep(limit=2, anew=True, behind=behind)
            behind, left, moved = done.next_behind, done.left, moved + done.moved
        # The supervisor assigns what moves meanwhile.
        started += pool.assign().count
    assert (left, moved, started, held(pool)) == (False, 7, 2, 5)
    assert [pool.task(id_)["need"] for id_ in pool.members(pool.keys.held("budget:b"))] == ["b 500000 0 0 0"] * 5


@pytest.mark.parametrize("list_", ["suspended_scopes", "version_scopes"])
def test_a_list_of_scopes_of_another_type(pool: Pool, list_: str) -> None:
    """Tasks that wait for a budget start also while a list of scopes is a key of another type."""
    pool.set_budget(usd=0)
    pool.register()
    pool.put(row(budget="b"))
    assert pool.assign().count == 0
    pool.execute("UNLINK", getattr(pool.keys, list_))
    pool.execute("SET", getattr(pool.keys, list_), "x")
    pool.set_budget(usd=1)
    assert pool.sweep_all() == 1
    pool.execute("UNLINK", getattr(pool.keys, list_))
    assert pool.assign().count == 1


@pytest.mark.parametrize("room", [False, True], ids=["none", "one"])
def test_the_hard_line(pool: Pool, *, room: bool) -> None:
    """Once the limit is spent, the next assignment starts nothing; twin: with room for one it starts one."""
    pool.set_budget(usd=1)
    pool.register(slots=50, team=reserving(0.25))
    pool.put(*[row(budget="b") for _ in range(4)])
    pool.assign()
    deliveries = pool.read(limit=50)
    pool.put(*[row(budget="b") for _ in range(100)])
    for delivery in deliveries:
        pool.reserve(delivery, usd=0.25)
    for number, delivery in enumerate(deliveries):
        pool.settle(delivery, usd=0 if room and number == 0 else 0.25)
    verdicts = (VerdictKind.SUCCEEDED, VerdictKind.RETRY, VerdictKind.REQUEUE, VerdictKind.SNOOZE)
    for delivery, verdict in zip(deliveries, verdicts, strict=True):
        pool.end(delivery, verdict, payload=b"1", delay_ms=0)
    pool.sleep(1)
    pool.promote()
    pool.sweep_all()
    assert pool.assign().count == room
    assert pool.assign().count == 0
    pool.abandon("w1")
    assert pool.assign().count == 0
    assert sum(usd(pool)) == 1


@pytest.mark.parametrize("died", [True, False], ids=["of another worker", "own, unread"])
def test_no_attempt_is_taken_over(pool: Pool, *, died: bool) -> None:
    """A worker takes no attempt with a budget over from another one: it starts anew, with room; twin: one without."""
    pool.set_budget(usd=0.25)
    pool.register("w1", slots=5, team=reserving(0.25))
    pool.register("w2", slots=5, team=reserving(0.25))
    spending, plain = pool.put(row(budget="b"), row())
    pool.assign()
    assert len(pool.read("w1", limit=5)) == 2
    if died:
        pool.look()
        pool.age(2 * LEASE_MS)
        taken = pool.adopt("w2")
    else:
        taken = pool.adopt("w1", own=True)
    assert [one.task_id for one in taken] == [plain]
    assert pool.task(spending)["state"] == "ready"
    assert usd(pool) == ((0.25, 0) if died else (0, 0))
    assert pool.assign().count == (0 if died else 1)


def test_no_attempt_is_taken_over_once_the_agent_names_a_budget(pool: Pool) -> None:
    """An attempt that began before its agent named a budget starts anew, so that its calls count."""
    pool.set_budget(usd=1)
    pool.register("w1")
    (id_,) = pool.put(row())
    pool.one("w1")
    pool.register("w2", team=Team(funds=(("sum", (Amounts(), ("b",))),)))
    pool.look()
    pool.age(2 * LEASE_MS)
    assert (pool.adopt("w2"), pool.state(id_)) == ([], "ready")
    (delivery,) = pool.deliver("w2")
    assert pool.reserve(delivery, usd=0.5).status == "granted"
    assert usd(pool) == (0, 0.5)


def test_a_used_up_budget_ends_a_sweep(pool: Pool) -> None:
    """A sweep does not look at all waiting tasks while none of them can start."""
    pool.set_budget(usd=0)
    pool.register()
    pool.put(*[row(budget="b") for _ in range(12)])
    while pool.assign().left:
        pass
    assert not pool.sweep(limit=5).left
    pool.set_budget(usd=1)
    assert pool.sweep_all(limit=5) == 12


def test_very_many_waiting_tasks(pool: Pool) -> None:
    """Ten thousand tasks of a budget without room cost other agents nothing, and those behind them few calls.

    A higher limit frees them by 500, in their order.
    """
    pool.set_budget(usd=0)
    pool.register(slots=2, team=reserving(0.01))
    pool.register("w2", slots=2, team=Team("ann", skills=frozenset(("other",))))
    (first,) = pool.put(row(queue="skill:other"))
    costs = [pool.commands()]
    assert pool.assign("ann").count == 1
    costs.append(pool.commands())
    pool.end(pool.read("w2", agent="ann")[0])
    ids = [id_ for _ in range(20) for id_ in pool.put(*[row(budget="b") for _ in range(500)], max_tasks=20_000)]
    plain, other = pool.put(row(), row(queue="skill:other"), max_tasks=20_000)
    calls, found = 0, 0
    while not found:
        found, calls = pool.assign().count, calls + 1
    assert (held(pool), calls) == (10_000, 21)
    (delivery,) = pool.read()
    assert delivery.task_id == plain
    costs.append(pool.commands())
    assert pool.assign("ann").count == 1
    costs.append(pool.commands())
    assert costs[3] - costs[2] <= costs[1] - costs[0]
    pool.end(delivery)
    pool.set_budget(usd=1)
    assert pool.sweep_all(limit=500) == 100
    assert pool.queue("skill:sum") == ids[:100]
    pool.set_budget(usd=100)
    done = pool.sweep(limit=500)
    assert (done.moved, done.left) == (500, True)
    assert pool.sweep_all(limit=500) == 9400
    assert pool.queue("skill:sum") == ids
    pool.assign()
    assert [one.task_id for one in pool.read()] == ids[:2]
    assert first != other


def test_a_task_without_a_budget_follows(pool: Pool) -> None:
    """What a start takes stays held when the same call starts a task without a budget behind it."""
    pool.set_budget(usd=12)
    pool.register(team=Team(skills=frozenset(("sum", "b")), funds=(("sum", (Amounts(usd=2 * MICRO), ())),)))
    rows = [row(budget="b"), row(queue="skill:b", depth=1)]
    pool.put(*rows)
    for one in rows:
        pool.execute("HSET", pool.keys.task(one.id), "group", "1", "deaths", "1")
    assert pool.assign().count == 0
    assert {one.task_id for one in pool.take_suspects(idle=True)} == {one.id for one in rows}
    assert usd(pool) == (0, 2)
