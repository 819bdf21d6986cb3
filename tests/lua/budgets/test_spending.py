"""lua/budgets/reserve.lua and settle.lua: calls that spend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.budgets.model import BudgetState
from orchestrator.budgets.queries import budget_reads, parse_budgets
from orchestrator.core.amounts import MICRO, Amounts
from orchestrator.tasks.model import Verdict, VerdictKind
from tests.lua.pool import Team, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

DAY_MS = 86_400_000


def usd(pool: Pool, name: str = "b") -> tuple[float, float]:
    """Spent and held dollars of a budget."""
    found = pool.budget(name)
    return (found["spent"][0] or 0) / MICRO, (found["held"][0] or 0) / MICRO


def read(pool: Pool) -> BudgetState:
    """The budget as programs read it."""
    ((command),) = budget_reads(pool.keys, ["b"])
    found = parse_budgets(["b"], [pool.execute(*command)], seconds=pool.now_ms // 1000)["b"]
    assert isinstance(found, BudgetState)
    return found


def start(pool: Pool, *names: str, limit: float = 1.0, lost: str | None = None) -> Delivery:
    """An attempt of a task with budgets of a dollar each."""
    for name in names:
        assert pool.set_budget(name, usd=limit, lost=lost).status == "accepted"
    pool.register()
    pool.put(row(budget=" ".join(names)))
    return pool.one()


def test_a_call(pool: Pool) -> None:
    """A call holds what it takes until it is settled; the budget then counts what it used, and nothing is held."""
    delivery = start(pool, "b")
    found = pool.reserve(delivery, usd=0.4)
    assert (found.status, found.states[0].left) == ("granted", {"usd": 0.6})
    assert usd(pool) == (0, 0.4)
    assert pool.settle(delivery, usd=0.1) == "settled"
    assert usd(pool) == (0.1, 0)


def test_repeated_calls_count_once(pool: Pool) -> None:
    """A reservation and a settlement that arrive twice, or late, change nothing the second time."""
    delivery = start(pool, "b")
    assert pool.reserve(delivery, 1, usd=0.4).status == "granted"
    with pool.unchanged():
        assert pool.reserve(delivery, 1, usd=0.4).status == "granted"
    pool.reserve(delivery, 3, usd=0.1)
    pool.settle(delivery, 3, usd=0.1)
    pool.settle(delivery, 1, usd=0.4)
    with pool.unchanged():
        assert pool.settle(delivery, 1, usd=0.4) == "already"
        assert pool.settle(delivery, 3, usd=0.4) == "already"
        assert pool.settle(delivery, 2, usd=0.4) == "unknown"
        assert pool.reserve(delivery, 1, usd=0.4).status == "settled"
        assert pool.reserve(delivery, 3, usd=0.4).status == "settled"
    assert usd(pool) == (0.5, 0)


def test_very_many_calls_beside_an_open_one(pool: Pool) -> None:
    """What an attempt holds stays short while a call is open, and behind calls that were refused; each counts once."""
    delivery = start(pool, "b", limit=9)
    member, holds = f"{delivery.task_id}:{delivery.generation}", pool.keys.holds("b")
    pool.reserve(delivery, 1, usd=0.5)
    for number in range(400, 2001, 400):
        stored = pool.execute("HGET", holds, member)
        # Every second call between them was refused.
        settled = "".join(f";{one}" for one in range(number - 398, number, 2))
        pool.execute("HSET", holds, member, stored + settled.encode())
        pool.reserve(delivery, number, usd=0.5)
        pool.settle(delivery, number, usd=0.5)
    assert len(pool.execute("HGET", holds, member)) < 2000
    assert pool.reserve(delivery, 1, usd=0.5).status == "granted"
    assert usd(pool) == (2.5, 0.5)
    assert pool.settle(delivery, 1, usd=0.25) == "settled"
    with pool.unchanged():
        for number in (1, 400, 1200, 1998, 2000):
            assert pool.settle(delivery, number, usd=0.5) == "already"
            assert pool.reserve(delivery, number, usd=0.5).status == "settled"
    assert pool.reserve(delivery, 1999, usd=0.5).status == "granted"
    assert usd(pool) == (2.75, 0.5)


def test_several_budgets_grant_together(pool: Pool) -> None:
    """All budgets of a task grant a call, or none does."""
    delivery = start(pool, "b", "c")
    pool.set_budget("c", usd=0.3)
    with pool.unchanged():
        found = pool.reserve(delivery, usd=0.4)
    assert (found.status, found.budget, found.reason) == ("refused", "c", "above")
    assert pool.reserve(delivery, usd=0.2).status == "granted"
    assert usd(pool, "b") == usd(pool, "c") == (0, 0.2)
    assert pool.reserve(delivery, 2, usd=0.2)[:3] == ("refused", "c", "room")


def test_overspent(pool: Pool) -> None:
    """A call that used more than it took is booked in full, and nothing starts until a higher limit covers it."""
    delivery = start(pool, "b")
    pool.reserve(delivery, 1, usd=0.5)
    pool.settle(delivery, 1, usd=1.5)
    found = pool.reserve(delivery, 2, calls=1)
    assert (found.status, found.reason, found.states[0].overspent) == ("refused", "overspent", Amounts(usd=MICRO // 2))
    pool.put(row(budget="b"))
    assert pool.assign().count == 0
    pool.set_budget(usd=2)
    assert pool.sweep_all() == 1
    assert pool.assign().count == 1
    assert pool.reserve(delivery, 2, usd=0.5).status == "granted"


@pytest.mark.parametrize(("lost", "spent"), [("spent", 0.4), ("free", 0.0)])
def test_a_dead_attempt(pool: Pool, lost: str, spent: float) -> None:
    """What an attempt held that died counts as spent, or is free, as the budget says."""
    delivery = start(pool, "b", lost=lost)
    pool.reserve(delivery, usd=0.4)
    pool.abandon("w1")
    assert usd(pool) == (spent, 0)
    assert pool.settle(delivery, usd=0.1) == "stale"
    assert pool.reserve(delivery, 2, usd=0.1).status == "stale"
    assert pool.execute("EXISTS", pool.keys.holds("b")) == 0


def test_an_unsettled_call_of_an_attempt_that_ended(pool: Pool) -> None:
    """A call that nobody settled may have been made, so that it counts as that of a dead attempt."""
    delivery = start(pool, "b")
    pool.reserve(delivery, usd=0.4)
    pool.end(delivery)
    assert usd(pool) == (0.4, 0)


@pytest.mark.parametrize(("verdict", "fields"), [
    (VerdictKind.SUCCEEDED, {}), (VerdictKind.RETRY, {"payload": b"E"}), (VerdictKind.DEAD, {"payload": b"E"}),
    (VerdictKind.SNOOZE, {"delay_ms": 10}), (VerdictKind.REQUEUE, {}), (VerdictKind.RELEASED, {}),
    (VerdictKind.CANCELLED, {}),
])  # fmt: skip
def test_every_end_frees_the_start(pool: Pool, verdict: VerdictKind, fields: dict[str, object]) -> None:
    """What the start of an attempt took is free again after each verdict, if no call used it."""
    pool.set_budget(usd=1)
    pool.register(team=Team(funds=(("sum", (Amounts(usd=MICRO // 4), ())),)))
    pool.put(row(budget="b"))
    delivery = pool.one()
    assert usd(pool) == (0, 0.25)
    pool.end(delivery, verdict, **fields)
    assert usd(pool) == (0, 0)
    assert pool.execute("EXISTS", pool.keys.holds("b")) == 0


def test_a_death_and_a_cancel_settle_the_start(pool: Pool) -> None:
    """A death books the start as the budget says; the cancel of an unread task frees it, as its requeue does."""
    pool.set_budget(usd=1)
    pool.register(team=Team(funds=(("sum", (Amounts(usd=MICRO // 4), ())),)))
    (id_,) = pool.put(row(budget="b"))
    pool.assign()
    assert usd(pool) == (0, 0.25)
    pool.cancel(id_)
    assert usd(pool) == (0, 0)
    pool.put(row(budget="b"))
    pool.one()
    pool.abandon("w1")
    assert usd(pool) == (0.25, 0)


def test_the_first_calls_use_the_start(pool: Pool) -> None:
    """What the start took is used before more is taken, so that the first call always has room."""
    pool.set_budget(usd=0.25)
    pool.register(team=Team(funds=(("sum", (Amounts(usd=MICRO // 4), ())),)))
    pool.put(row(budget="b"), row(budget="b"))
    delivery = pool.one()
    assert pool.reserve(delivery, 1, usd=0.1).status == "granted"
    assert usd(pool) == (0, 0.25)
    assert pool.settle(delivery, 1, usd=0.05) == "settled"
    assert usd(pool) == (0.05, 0.15)
    assert pool.reserve(delivery, 2, usd=0.2).status == "granted"
    assert usd(pool) == (0.05, 0.2)
    pool.settle(delivery, 2, usd=0.2)
    pool.end(delivery)
    assert usd(pool) == (0.25, 0)


def test_a_hand_back_turn(pool: Pool) -> None:
    """Beyond the limit a task may take 5 % of it once, and all tasks together no more than that."""
    delivery = start(pool, "b")
    pool.reserve(delivery, 1, usd=1)
    pool.settle(delivery, 1, usd=1)
    assert pool.reserve(delivery, 2, usd=0.01).status == "refused"
    assert pool.reserve(delivery, 3, last=True, usd=0.06)[:3] == ("refused", "b", "last")
    assert pool.reserve(delivery, 4, last=True, usd=0.05).status == "granted"
    with pool.unchanged():
        assert pool.reserve(delivery, 4, last=True, usd=0.05).status == "granted"
    pool.settle(delivery, 4, usd=0.05)
    assert pool.reserve(delivery, 5, last=True, usd=0.01)[:3] == ("refused", "b", "used")


def test_children_inherit(pool: Pool) -> None:
    """A child has the budgets of its parent, whoever submits it, and adds its own."""
    delivery = start(pool, "b")
    pool.set_budget("c", usd=1)
    id_, generation = delivery.task_id, delivery.generation
    plain, own = pool.put(
        row(parent=id_, parent_generation=generation), row(parent=id_, parent_generation=generation, budget="c b")
    )
    assert (pool.task(plain)["budget"], pool.task(own)["budget"]) == ("b", "b c")


def test_what_no_budget_may_be(pool: Pool) -> None:
    """A task cannot name a budget that is not set, nor more than eight, nor text that no client sends."""
    assert pool.submit(row(budget="nope")) == [("unfunded", "nope")]
    for index in range(9):
        pool.set_budget(f"b{index}", usd=1)
    assert pool.submit(row(budget=" ".join(f"b{index}" for index in range(9)))) == [("invalid", "budget")]
    assert pool.submit(row(budget="b;")) == [("invalid", "budget")]


def test_a_task_without_a_budget(pool: Pool) -> None:
    """It takes nothing, and needs nothing."""
    pool.register()
    pool.put()
    delivery = pool.one()
    assert pool.reserve(delivery, usd=5).status == "none"
    assert pool.settle(delivery, usd=5) == "none"


def test_budgets_of_an_agent(pool: Pool) -> None:
    """An agent adds its own budgets to those of its attempts, and only to these."""
    pool.set_budget("b", usd=1)
    pool.set_budget("own", usd=1)
    pool.register(team=Team(funds=(("sum", (Amounts(), ("own",))),)))
    with_budget, without = pool.put(row(budget="b"), row())
    pool.assign()
    first, second = sorted(pool.read(), key=lambda one: one.task_id != with_budget)
    assert second.task_id == without
    pool.reserve(first, usd=0.2)
    pool.reserve(second, usd=0.1)
    assert (usd(pool), usd(pool, "own")) == ((0, 0.2), (0, 0.3))
    pool.end(first)
    pool.end(second)
    assert (usd(pool), usd(pool, "own")) == ((0.2, 0), (0.3, 0))


def test_open_calls_are_bounded(pool: Pool) -> None:
    """An attempt may have 64 open calls."""
    delivery = start(pool, "b")
    for number in range(1, 65):
        assert pool.reserve(delivery, number, usd=0.001).status == "granted"
    with pool.unchanged():
        assert pool.reserve(delivery, 65, usd=0.001).status == "full"
    pool.settle(delivery, 7, usd=0.001)
    assert pool.reserve(delivery, 65, usd=0.001).status == "granted"


def test_open_calls_beside_what_the_start_reserves(pool: Pool) -> None:
    """What the start of an attempt reserves is no open call."""
    pool.set_budget(usd=1)
    pool.register(team=Team(funds=(("sum", (Amounts(usd=MICRO // 2), ())),)))
    pool.put(row(budget="b"))
    delivery = pool.one()
    for number in range(1, 65):
        assert pool.reserve(delivery, number, usd=0.001).status == "granted"
    assert pool.reserve(delivery, 65, usd=0.001).status == "full"


def test_a_new_day(pool: Pool) -> None:
    """A budget by day begins with nothing spent on a new day, after one day or many; what is held stays held."""
    pool.set_budget(usd=1, per="day")
    pool.register()
    pool.put(row(budget="b"))
    delivery = pool.one()
    pool.reserve(delivery, 1, usd=0.5)
    pool.settle(delivery, 1, usd=4.5)
    pool.reserve(delivery, 2, usd=0.5)
    for days in (1, 5):
        pool.sleep(days * 86_400_000)
        assert pool.reserve(delivery, 1 + days * 2, usd=0.25).states[0].left == {"usd": 0.75}
        pool.settle(delivery, 1 + days * 2, usd=3)
        assert usd(pool)[0] == 3
    pool.sleep(-86_400_000)
    assert pool.reserve(delivery, 50, usd=0.25).reason == "overspent"


@pytest.mark.parametrize("days", [1, 2, 30, 3650])
def test_a_wrong_day(pool: Pool, days: int) -> None:
    """A clock that steps ahead and back finds the account of each day: none opens twice, and the next one opens."""
    pool.set_budget(usd=1, per="day")
    pool.register()
    pool.put(row(budget="b"))
    delivery = pool.one()

    def spend(number: int, dollars: float) -> str:
        reason = pool.reserve(delivery, number, usd=dollars).reason
        if not reason:
            pool.settle(delivery, number, usd=dollars)
        return reason

    assert spend(1, 0.75) == ""
    pool.sleep(days * DAY_MS)
    assert spend(2, 1) == ""
    pool.sleep(-days * DAY_MS)
    assert (spend(3, 0.5), spend(4, 0.25), usd(pool)) == ("room", "", (1, 0))
    pool.sleep(days * DAY_MS)
    assert spend(5, 0.25) == "room"
    pool.sleep(-days * DAY_MS)
    assert spend(6, 0.25) == "room"
    # The next day begins with nothing spent, or goes on with what the clock had spent there.
    pool.sleep(DAY_MS)
    assert spend(7, 0.25) == ("room" if days == 1 else "")
    pool.sleep(DAY_MS)
    assert spend(8, 0.5) == ("room" if days == 2 else "")


@pytest.mark.parametrize("back", [1, 2, 3, 30])
def test_a_step_back_after_a_new_day(pool: Pool, back: int) -> None:
    """A clock that steps back from the second day of a budget, and on again, finds what was spent of that day."""
    pool.set_budget(usd=1, per="day")
    pool.register()
    pool.put(row(budget="b"))
    delivery = pool.one()
    for number in (1, 2):
        pool.reserve(delivery, number, usd=0.75)
        pool.settle(delivery, number, usd=0.75)
        pool.sleep(DAY_MS if number == 1 else -back * DAY_MS)
    assert pool.reserve(delivery, 3, usd=0.75).reason == "room"
    pool.sweep_all()
    pool.sleep(back * DAY_MS)
    assert pool.reserve(delivery, 4, usd=0.75).reason == "room"


@pytest.mark.parametrize("days", [0, 2, 400])
def test_steps_at_midnight_after_a_wrong_day(pool: Pool, days: int) -> None:
    """A clock that was far ahead for a while opens no day twice when it steps around midnight later."""
    pool.set_budget(usd=1, per="day")
    pool.register()
    pool.put(row(budget="b"))
    delivery = pool.one()
    numbers = iter(range(1, 100))

    def spend(dollars: float) -> str:
        number, before = next(numbers), read(pool).spent.usd
        reason = pool.reserve(delivery, number, usd=dollars).reason
        if not reason:
            pool.settle(delivery, number, usd=dollars)
            assert read(pool).spent.usd == before + round(dollars * MICRO)
        return reason

    for step in (days, -days):
        pool.sleep(step * DAY_MS)
        spend(0)
    assert spend(1) == ""
    for _ in range(3):
        pool.sleep(DAY_MS)
        spend(0)
        pool.sleep(-DAY_MS)
        assert spend(0.5) == "room"
    pool.sleep(DAY_MS)
    assert spend(1) == ""
    for step in (-1, 1):
        pool.sleep(step * DAY_MS)
        assert spend(0.5) == "room"


def test_an_account_of_an_older_program(pool: Pool) -> None:
    """A record with one account of another day is read, and gets a second one."""
    pool.set_budget(usd=1, per="day")
    pool.register()
    pool.put(row(budget="b"))
    delivery, day = pool.one(), pool.now_ms // DAY_MS
    pool.execute("HSET", pool.keys.budget("b"), "other", f"{day + 400} 500000 0 0 0")
    pool.sleep(DAY_MS)
    assert pool.reserve(delivery, 1, usd=1).status == "granted"
    assert pool.execute("HGET", pool.keys.budget("b"), "other") == f"{day} 0 0 0 0;{day + 400} 500000 0 0 0".encode()
    pool.sleep(399 * DAY_MS)
    assert (pool.settle(delivery, 1, usd=0), usd(pool)) == ("settled", (0.5, 0))


def test_an_unknown_earlier_day(pool: Pool) -> None:
    """A clock that was wrong when the budget was set goes on with what is spent, and the next day begins anew."""
    pool.sleep(3650 * DAY_MS)
    pool.set_budget(usd=1, per="day")
    pool.register()
    pool.put(row(budget="b"))
    delivery = pool.one()
    pool.reserve(delivery, usd=0.75)
    pool.settle(delivery, usd=0.75)
    pool.sleep(-3650 * DAY_MS)
    assert pool.reserve(delivery, 2, usd=0.5).reason == "room"
    pool.sweep_all()
    pool.sleep(DAY_MS)
    assert pool.reserve(delivery, 3, usd=1).status == "granted"
    assert pool.execute("HGET", pool.keys.budget("b"), "day") == b"%d" % (pool.now_ms // DAY_MS)


def test_large_reserves_of_a_unit_without_a_limit(pool: Pool) -> None:
    """Starts that hold more than the largest amount of a unit without a limit leave their budget open."""
    pool.set_budget("b", usd=1)
    most = Amounts(tokens=2**53 - 1)
    pool.register(team=Team(funds=(("sum", (most, ())),)))
    pool.put(row(budget="b"), row(budget="b"), row(budget="b"))
    assert pool.assign().count == 3
    for delivery in pool.read():
        assert pool.reserve(delivery, usd=0.1).status == "granted"
        pool.settle(delivery, usd=0.1)
        pool.end(delivery)
    assert usd(pool) == (0.3, 0)


def test_a_retry_forgets_a_refusal(pool: Pool) -> None:
    """A task that a person refused more, and an operator requeues, waits for room as any other one."""
    pool.set_budget(usd=1, at_hard="ask")
    pool.register()
    (id_,) = pool.put(row(budget="b"))
    delivery = pool.one()
    pool.reserve(delivery, 1, usd=1)
    pool.settle(delivery, 1, usd=1)
    pool.ask(delivery)
    pool.answer(id_, "0", grant=f"b {Amounts().packed}")
    pool.end(pool.one(), VerdictKind.DEAD)
    pool.retry(id_)
    assert pool.assign().count == 0


def test_a_retry_forgets_what_a_start_needed(pool: Pool) -> None:
    """A task that waited for a budget, was cancelled and is requeued has no mark of the budget left when it starts."""
    pool.set_budget(usd=0)
    pool.register()
    (id_,) = pool.put(row(budget="b"))
    assert pool.assign().count == 0
    pool.cancel(id_)
    pool.retry(id_)
    pool.set_budget(usd=1)
    assert pool.assign().count == 1
    assert "need" not in pool.task(id_)


def test_budgets_beside_tasks_of_flows(pool: Pool) -> None:
    """Tasks with as many fields as one of a flow, and a budget among them, take from it and free what they took."""
    pool.set_budget(usd=1)
    pool.register(slots=10, team=Team(funds=(("sum", (Amounts(usd=MICRO), ())),)))
    first, second = pool.put(row(after=()), row(after=(1,)))
    (head,) = pool.deliver()
    # It has `joined`, as the task with followers has.
    (child,) = pool.put(row(budget="b"))
    pool.execute("HSET", pool.keys.task(child), "joined", "01a0ffb4-0000-7000-8000-000000000000")
    (delivery,) = pool.deliver()
    assert len(pool.task(first)) == len(pool.task(child))
    assert usd(pool) == (0, 1)
    pool.finish((head, Verdict(VerdictKind.SUCCEEDED, b"1")), (delivery, Verdict(VerdictKind.SUCCEEDED, b"1")))
    assert usd(pool) == (0, 0)
    # The follower is due since now, as the delayed tasks are.
    late, later = pool.put(row(budget="b", delay_ms=1), row(budget="b", delay_ms=1))
    pool.sleep(10)
    pool.promote()
    assert len(pool.task(second)) == len(pool.task(late))
    assert pool.assign().count == 2
    assert sorted(pool.state(one) for one in (second, late, later)) == ["assigned", "assigned", "ready"]
    assert usd(pool) == (0, 1)
