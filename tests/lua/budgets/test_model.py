"""The scripts of budgets against a model in plain Python: crashes, repeats, steps of the clock, higher limits."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orchestrator.core.amounts import MICRO, Amounts
from orchestrator.tasks.model import VerdictKind
from tests.helpers.state_machines import run_until_all_fired
from tests.lua.pool import Pool, Team, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.tasks.model import Delivery
    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server

FEW, EXAMPLES = 6, int(os.environ.get("ORC_TEST_EXAMPLES", "30"))
MUST_FIRE = [
    "granted", "refused", "above", "overspent", "settled", "more than taken", "lost", "repeated reserve",
    "repeated settle",
    "end", "death", "cancel", "unread cancel", "wait", "moved", "higher limit", "below", "grant", "refusal", "new day",
    "clock back", "last", "lost record",
]  # fmt: skip
DAY_MS = 86_400_000
START = 0.1
NAMES = ("run", "day", "free")

micro = st.integers(0, 4).map(lambda tenths: tenths * MICRO // 10)
choice = st.integers(0, 99)


@dataclass
class Budget:
    """One budget, in one unit: millionths of a dollar."""

    limit: int
    lost: str = "spent"
    per_day: bool = False
    spent: int = 0
    day: int = 0
    others: dict[int, int] = field(default_factory=dict)
    stored: tuple[int, int, dict[int, int]] | None = None

    def turn(self, day: int) -> bool:
        """Turn to the account of a day; two others are remembered. Returns whether it begins with nothing."""
        if not self.per_day or day == self.day:
            return False
        self.stored = self.stored or (self.spent, self.day, self.others)
        known, before, self.day = self.others, self.day, day
        latest = max(known.keys() - {before, day}, default=before)
        self.others = {latest: known.get(latest, 0), before: self.spent}
        self.spent = known.get(day, 0 if day > before else self.spent)
        return day not in known and day > before

    def keep(self, day: int) -> None:
        """Forget a turn that no script has stored, because the calls since only read."""
        if self.stored and day != self.day:
            self.spent, self.day, self.others = self.stored
        self.stored = None


@dataclass
class Attempt:
    """One attempt: open calls by number, 0 for its start, and settled ones."""

    delivery: Delivery
    budgets: tuple[str, ...]
    open: dict[int, int] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    number: int = 0

    @property
    def held(self) -> int:
        """What it holds of each budget."""
        return sum(self.open.values())


class Machine(RuleBasedStateMachine):
    """Attempts that spend at any time, crash, and repeat themselves."""

    url: str
    prefixes: Iterator[str]
    fired: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(self.url, next(self.prefixes))
        self.budgets = {
            "run": Budget(MICRO), "day": Budget(MICRO, per_day=True), "free": Budget(MICRO, lost="free"),
        }  # fmt: skip
        for name, one in self.budgets.items():
            one.day = self.day
            self.pool.set_budget(name, usd=1, lost=one.lost, per="day" if one.per_day else None, at_hard="ask")
        start = (Amounts(usd=round(START * MICRO)), ())
        self.pool.register(slots=40, team=Team(skills=frozenset(("sum", "free")), funds=(("sum", start),)))
        self.attempts: list[Attempt] = []
        self.handed: set[str] = set()
        self.refused: set[str] = set()

    @property
    def day(self) -> int:
        """The day by the clock of the pool."""
        return self.pool.now_ms // DAY_MS

    def state(self, name: str) -> tuple[int, int]:
        """Spent and held of a budget by the model."""
        one = self.budgets[name]
        self.fired["new day"] += one.turn(self.day)
        return one.spent, sum(each.held for each in self.attempts if name in each.budgets)

    def chosen(self, choice: int) -> Attempt | None:
        """One of the attempts."""
        return self.attempts[choice % len(self.attempts)] if self.attempts else None

    def end_attempt(self, attempt: Attempt, *, died: bool) -> None:
        """Book what an attempt holds, because it ends."""
        for name in attempt.budgets:
            self.state(name)
            if self.budgets[name].lost == "spent":
                self.budgets[name].spent += sum(taken for number, taken in attempt.open.items() if number > 0 or died)
        self.attempts.remove(attempt)

    @rule(
        names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
        reserving=st.booleans(),
        count=st.integers(1, 4),
    )
    def submit(self, *, names: list[str], reserving: bool, count: int) -> None:
        """Submit tasks with budgets, of a skill whose starts take something or nothing, and start what fits."""
        skill = {} if reserving else {"queue": "agent:ed", "skill": "free"}
        self.pool.put(*[row(budget=" ".join(names), **skill) for _ in range(count)])  # type: ignore[arg-type]
        self.assign()

    @rule()
    def assign(self) -> None:
        """Assign and read; what starts has taken its reserve, and fits."""
        self.pool.assign()
        for delivery in self.pool.read(limit=500):
            task = self.pool.task(delivery.task_id)
            attempt = Attempt(delivery, tuple(task["budget"].split()))
            if "skill" not in task and delivery.task_id not in self.refused:
                attempt.open[0] = round(START * MICRO)
            self.attempts.append(attempt)
            for name in attempt.budgets:
                spent, held = self.state(name)
                assert spent + held <= self.budgets[name].limit or delivery.task_id in self.refused
        if self.pool.execute("EXISTS", *[self.pool.keys.held(f"budget:{name}") for name in NAMES]):
            self.fired["wait"] += 1

    @rule(which=choice, amount=micro, last=st.integers(0, 5), repeat=st.booleans())
    def reserve(self, *, which: int, amount: int, last: int, repeat: bool) -> None:
        """Take amounts, maybe twice, maybe beyond the limit."""
        self.reserve_one(which, amount, last=last, repeat=repeat)

    def reserve_one(self, which: int, amount: int, *, last: int, repeat: bool) -> None:  # noqa: C901, PLR0912
        """Take amounts and compare the answer."""
        attempt = self.chosen(which)
        if attempt is None:
            return
        is_last = last == 0
        if is_last:
            amount = amount // 10 + 1
        attempt.number += 1
        number = attempt.number
        drawn = min(attempt.open.get(0, 0), amount)
        reason = None
        for name in attempt.budgets:
            spent, held = self.state(name)
            limit = self.budgets[name].limit
            if is_last:
                found = "used" if attempt.delivery.task_id in self.handed else None
                if found is None and (amount > limit // 20 or spent + held + amount - drawn > limit + limit // 20):
                    found = "last"
            elif amount > limit:
                found = "above"
                self.fired["above"] += 1
            elif spent + held > limit:
                found = "overspent"
                self.fired["overspent"] += 1
            else:
                found = "room" if spent + held + amount - drawn > limit else None
            reason = reason or found
        for _ in range(1 + repeat):
            done = self.pool.reserve(attempt.delivery, number, last=is_last, usd=amount / MICRO)
            assert (done.status, done.reason) == (("refused", reason) if reason else ("granted", ""))
        self.fired["repeated reserve"] += repeat and reason is None
        if reason is not None:
            self.fired["refused"] += 1
            return
        self.fired["last" if is_last else "granted"] += 1
        if is_last:
            self.handed.add(attempt.delivery.task_id)
        attempt.open[number] = amount
        if 0 in attempt.open:
            attempt.open[0] -= drawn
            if not attempt.open[0]:
                del attempt.open[0]
        for name in attempt.budgets:
            spent, held = self.state(name)
            assert is_last or spent + held <= self.budgets[name].limit

    @rule(which=choice, call=choice, amount=micro, lost=st.integers(0, 4), again=st.booleans())
    def settle(self, *, which: int, call: int, amount: int, lost: int, again: bool) -> None:
        """Settle a call, maybe as lost, maybe twice, maybe with more than it took."""
        self.settle_one(which, call, amount, lost=lost, again=again)

    def settle_one(self, which: int, call: int, amount: int, *, lost: int, again: bool) -> None:
        """Settle a call and compare the answer."""
        attempt = self.chosen(which)
        numbers = sorted(set(attempt.open) - {0}) if attempt is not None else []
        if attempt is None or not numbers:
            return
        number = numbers[call % len(numbers)]
        unknown = lost == 0
        assert self.pool.settle(attempt.delivery, number, lost=unknown, usd=amount / MICRO) == "settled"
        taken = attempt.open[number]
        for name in attempt.budgets:
            self.state(name)
            one = self.budgets[name]
            one.spent += amount if not unknown else taken if one.lost == "spent" else 0
        del attempt.open[number]
        attempt.settled.add(number)
        self.fired["lost" if unknown else "more than taken" if amount > taken else "settled"] += 1
        if again:
            self.fired["repeated settle"] += 1
            assert self.pool.settle(attempt.delivery, number, usd=1) == "already"
            assert self.pool.reserve(attempt.delivery, number, usd=1).status == "settled"

    @rule(which=choice, verdict=st.sampled_from([VerdictKind.SUCCEEDED, VerdictKind.REQUEUE, VerdictKind.RETRY]))
    def end(self, which: int, verdict: VerdictKind) -> None:
        """End an attempt; a repeat of its last words changes nothing."""
        attempt = self.chosen(which)
        if attempt is None or which % 3:
            return
        self.pool.end(attempt.delivery, verdict, payload=b"1")
        self.end_attempt(attempt, died=False)
        self.fired["end"] += 1
        assert self.pool.settle(attempt.delivery, 1, usd=1) == "stale"
        assert self.pool.reserve(attempt.delivery, 99, usd=0.1).status == "stale"

    @rule()
    def die(self) -> None:
        """The worker dies with all its attempts."""
        if len(self.attempts) < 3:
            return
        self.pool.abandon("w1")
        for attempt in list(self.attempts):
            self.end_attempt(attempt, died=True)
        self.fired["death"] += 1

    @rule(which=choice, which_amount=micro)
    def spend(self, which: int, which_amount: int) -> None:
        """A call as usual, with what it took."""
        self.reserve_one(which, which_amount, last=1, repeat=False)
        self.settle_one(which, which_amount, which_amount, lost=1, again=False)

    @rule(which=choice)
    def cancel(self, which: int) -> None:
        """Cancel a task that was not read, which ends it, and one that runs, which tells it to stop."""
        if which % 5:
            return
        ids = self.pool.put(row(budget="run"))
        if self.pool.assign().count and which % 2:
            self.fired["unread cancel"] += 1
        self.pool.cancel(*ids)
        self.assign()
        if attempt := self.chosen(which):
            self.pool.cancel(attempt.delivery.task_id)
            self.pool.end(attempt.delivery, VerdictKind.CANCELLED)
            self.end_attempt(attempt, died=False)
            self.fired["cancel"] += 1

    @rule(which=choice)
    def lose_record(self, which: int) -> None:
        """Redis loses the record of a task: its attempt ends without a word, and the next sweep books it."""
        attempt = self.chosen(which)
        if attempt is None or which % 4:
            return
        self.pool.execute("DEL", self.pool.keys.task(attempt.delivery.task_id))
        self.sweep(2)
        self.end_attempt(attempt, died=True)
        self.fired["lost record"] += 1

    @rule(limit=st.integers(1, 100))
    def sweep(self, limit: int) -> None:
        """Sweep all budgets until nothing is left."""
        for name in NAMES:
            if self.pool.sweep_all(name, limit=limit):
                self.fired["moved"] += 1

    @rule(name=st.sampled_from(NAMES), more=st.integers(-5, 10))
    def set_limit(self, name: str, more: int) -> None:
        """Change a limit; one below what is spent is refused."""
        one = self.budgets[name]
        limit = max(0, one.limit + more * MICRO // 5)
        spent, _ = self.state(name)
        done = self.pool.set_budget(name, usd=limit / MICRO)
        if limit < spent:
            assert (done.status, done.entry) == ("below", f"usd {spent}")
            self.fired["below"] += 1
        else:
            assert done.status == "accepted"
            self.fired["higher limit"] += limit > one.limit
            one.limit = limit

    @rule(which=choice, name=st.sampled_from(NAMES), more=st.integers(0, 3))
    def ask(self, which: int, name: str, more: int) -> None:
        """An attempt ends with a question, and the answer grants something, or nothing."""
        attempt = self.chosen(which)
        if attempt is None:
            return
        task = self.pool.task(attempt.delivery.task_id)
        number = int(task.get("asks", "0")) + 1
        self.pool.ask(attempt.delivery, number)
        self.end_attempt(attempt, died=False)
        amounts = Amounts(usd=more * MICRO // 2)
        for _ in range(2):
            self.pool.answer(attempt.delivery.task_id, "1", number=number, grant=f"{name} {amounts.packed}")
        self.budgets[name].limit += amounts.usd
        if more:
            self.refused.discard(attempt.delivery.task_id)
        else:
            self.refused.add(attempt.delivery.task_id)
        self.fired["grant" if more else "refusal"] += 1

    @rule(step=st.sampled_from([1, 20_000, 70_000, DAY_MS, 3 * DAY_MS, -5000, -DAY_MS, -3 * DAY_MS]))
    def move_clock(self, step: int) -> None:
        """The clock goes on, or steps back."""
        self.fired["clock back"] += step < 0
        self.pool.sleep(step)

    @invariant()
    def agree(self) -> None:
        """The stored budgets are those of the model, and nothing is held of attempts that have ended."""
        for name in NAMES:
            one = self.budgets[name]
            stored = self.pool.budget(name)
            self.state(name)
            one.keep(int(self.pool.execute("HGET", self.pool.keys.budget(name), "day") or 0))
            held = sum(each.held for each in self.attempts if name in each.budgets)
            assert stored["limit"][0] == one.limit
            assert stored["held"][0] == held
            assert stored["spent"][0] == one.spent
            found = self.pool.execute("HKEYS", self.pool.keys.holds(name))
            ids = {
                f"{each.delivery.task_id}:{each.delivery.generation}" for each in self.attempts if name in each.budgets
            }
            assert {field.decode() for field in found} <= ids

    def teardown(self) -> None:
        """Clean up."""
        self.pool.start_afresh()
        self.pool.close()


@pytest.mark.parametrize("examples", [FEW, pytest.param(EXAMPLES, marks=pytest.mark.slow)], ids=["few", "many"])
def test_scripts_agree_with_the_model(redis_server: RedisServer, prefix: str, examples: int) -> None:
    """Whatever happens in whatever order, scripts and model hold the same, and no reservation exceeds a limit."""
    fired: Counter[str] = Counter()
    prefixes = (f"{prefix}{number}" for number in count())
    machine = type("Bound", (Machine,), {"url": redis_server.url, "prefixes": prefixes, "fired": fired})
    options: dict[str, Any] = {"max_examples": examples, "stateful_step_count": 80, "deadline": None, "database": None}
    rules = settings(
        **options,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_until_all_fired(machine, rules, fired, MUST_FIRE if examples != FEW else ())
