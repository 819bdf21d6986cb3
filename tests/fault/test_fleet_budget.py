"""A fleet spends one budget while its workers, connections and supervisors fail, beside a ledger of real use."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from bisect import bisect_left
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import anyio.to_thread
import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.core.amounts import MICRO
from orchestrator.services import pool_keys
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from orchestrator.views.budgets import show_budget
from tests.fault.fleet_agents import TAKEN, Entry, Ledger
from tests.faultkit.proxy import ThreadedProxy
from tests.helpers import subprocesses
from tests.helpers.end_state import counters, find_violations, records
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import redis

    from orchestrator import TaskHandle
    from orchestrator.core.settings import Settings
    from orchestrator.store.keys import PoolKeys
    from tests.faultkit.processes import ActorProcess
    from tests.faultkit.proxy import FaultProxy
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

AGENT: Final = "tests.fault.fleet_agents:fleet"
BUDGET: Final = "run"
LEASE_S: Final = 1.5
SAMPLE_S: Final = 0.02


class Plan(NamedTuple):
    """One run.

    Attributes:
        hosts: how many, each behind a proxy of its own.
        processes: workers of each host.
        slots: of each worker.
        seconds: in which one higher limit after another is spent.
        stage: dollars by which the limit rises each time.
        fault_s: mean time between faults.
    """

    hosts: int
    processes: int
    slots: int
    seconds: float
    stage: float
    fault_s: float
    wait_s: float

    @property
    def attempts(self) -> int:
        """Attempts that run at the same time."""
        return self.hosts * self.processes * self.slots


SHORT: Final = Plan(hosts=2, processes=1, slots=25, seconds=5, stage=2, fault_s=0.4, wait_s=40)
LONG: Final = Plan(hosts=2, processes=25, slots=1, seconds=60, stage=5, fault_s=0.25, wait_s=90)


class Sample(NamedTuple):
    """The budget at one moment of the server's clock, in millionths."""

    us: int
    limit: int
    spent: int
    held: int


@dataclass
class Fleet:
    """The programs of a run, and what is noted about them."""

    plan: Plan
    keys: PoolKeys
    direct: redis.Redis
    proxies: list[FaultProxy]
    supervisors: list[ActorProcess]
    ledger: Ledger
    samples: list[Sample] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)

    def look(self) -> Sample:
        """Read the budget."""
        with self.direct.pipeline(transaction=True) as pipeline:
            pipeline.time()
            pipeline.hmget(self.keys.budget(BUDGET), "limit", "spent", "held")
            (seconds, us), fields = pipeline.execute()
        limit, spent, held = (int(amounts.split()[0]) for amounts in fields)
        return Sample(seconds * MICRO + us, limit, spent, held)

    def waiting(self) -> int:
        """Tasks that wait for room."""
        held: Any = self.direct.zcard(self.keys.held(self.keys.budget_scope(BUDGET)))
        return int(held)

    def waits_for_fewer(self, count: int) -> bool:
        """Whether fewer tasks wait for room."""
        return self.waiting() < count

    def stands_still(self) -> bool:
        """Whether all tasks have ended, or wait for room."""
        counted = counters(self.direct, self.keys)
        return self.look().held == 0 and counted["submitted"] == counted["succeeded"] + self.waiting()

    def describe(self) -> str:
        """What has not ended."""
        left = Counter(
            (record[b"state"].decode(), b"need" in record, b"group" in record)
            for record in records(self.direct, self.keys).values()
            if record[b"state"] != b"succeeded"
        )
        return f"all that ran has ended, but {left} is left, {self.waiting()} wait, {self.look()}"

    async def observe(self) -> None:
        """Keep what the budget says, until cancelled."""
        while True:
            self.samples.append(await anyio.to_thread.run_sync(self.look))
            await anyio.sleep(SAMPLE_S)

    async def disturb(self, dice: random.Random) -> None:
        """Inject one fault after another until cancelled; each heals itself."""
        menu: list[tuple[Callable[..., Any], int]] = [
            (self._kill, 4), (self._freeze, 3), (self._cut, 3), (self._refuse, 1), (self._restart, 1),
        ]  # fmt: skip
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(dice.expovariate(1 / self.plan.fault_s))
                (fault,) = dice.choices([fault for fault, _ in menu], [weight for _, weight in menu])
                self.faults[fault.__name__] = self.faults.get(fault.__name__, 0) + 1
                tasks.start_soon(fault, dice)

    async def _some_worker(self, dice: random.Random) -> int | None:
        pids = await anyio.to_thread.run_sync(subprocesses.workers_of, self.direct, self.keys, "fleet")
        living = [pid for pid in pids.values() if subprocesses.alive(pid)]
        return dice.choice(living) if living else None

    async def _kill(self, dice: random.Random) -> None:
        if pid := await self._some_worker(dice):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _freeze(self, dice: random.Random) -> None:
        """Stop a worker, often for longer than its lease, so that its call is one of an attempt that is over."""
        if pid := await self._some_worker(dice):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                try:
                    await anyio.sleep(dice.uniform(0.5, 2.5) * LEASE_S)
                finally:
                    os.kill(pid, signal.SIGCONT)

    async def _cut(self, dice: random.Random) -> None:
        dice.choice(self.proxies).cut(reset=dice.random() < 0.5)

    async def _refuse(self, dice: random.Random) -> None:
        proxy = dice.choice(self.proxies)
        proxy.refuse()
        proxy.cut(reset=True)
        try:
            await anyio.sleep(dice.uniform(0.1, 0.6))
        finally:
            proxy.heal()

    async def _restart(self, dice: random.Random) -> None:
        supervisor = dice.choice(self.supervisors)
        supervisor.close()
        supervisor.start()


@contextmanager
def running(plan: Plan, settings: Settings, server: RedisServer, attempt_log: AttemptLog) -> Iterator[Fleet]:
    """Start two supervisors, and the hosts, each behind a proxy."""
    with ExitStack() as stack:
        supervisors = [
            stack.enter_context(subprocesses.supervisor(settings, name=f"supervisor-{number}")) for number in range(2)
        ]
        proxies = [stack.enter_context(ThreadedProxy(server.url)) for _ in range(plan.hosts)]
        for proxy in proxies:
            behind = make_settings(proxy.url, settings.prefix)
            stack.enter_context(
                subprocesses.host(
                    behind, attempt_log, processes=plan.processes, slots=plan.slots, lease_s=LEASE_S, agents=AGENT
                )
            )
        direct = stack.enter_context(server.client())
        yield Fleet(plan, pool_keys(settings), direct, proxies, supervisors, Ledger(attempt_log.path))


def beyond(entries: Sequence[Entry]) -> list[Entry]:
    """Calls that used more than they had taken."""
    return [entry for entry in entries if entry.kind == "used" and entry.value > TAKEN]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(SHORT, marks=pytest.mark.timeout(120)),
        pytest.param(LONG, marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
    ],
    ids=["5 s", "a minute"],
)
async def test_a_fleet_spends_one_budget(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    """At least fifty attempts at a time spend one limit after another, and never more but by debt that is shown.

    At each limit, the next assignment starts nothing, whichever worker has died; all partial results are kept.
    """
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, sweep_s=1.0)
    dice = random.Random()
    with running(plan, settings, redis_server, attempt_log) as fleet:
        async with Orchestrator(settings=settings) as orc:
            await wait_for(
                lambda: len(subprocesses.workers_of(fleet.direct, fleet.keys, "fleet")) == plan.hosts * plan.processes,
                "all workers are registered",
                plan.wait_s,
            )
            handles, lines = await spend(fleet, orc, dice)
            await let_all_hand_back(fleet, orc)
            results = {handle.id: await handle.result(plan.wait_s) for handle in handles}
            await wait_for(lambda: fleet.look().held == 0, "nothing is held", plan.wait_s)
            shown = (await show_budget(orc.services, BUDGET)).units[0]
        assert find_violations(fleet.direct, fleet.keys) == []
        entries, last = fleet.ledger.entries(), fleet.look()
    check_samples(fleet.samples, entries)
    check_lines(lines, entries)
    kept = {entry.task: entry.value for entry in entries if entry.kind == "kept"}
    assert kept == results
    assert shown.spent == last.spent / MICRO
    assert shown.left == pytest.approx((last.limit - last.spent) / MICRO)
    used = sum(entry.value for entry in entries if entry.kind in {"used", "last"})
    with capsys.disabled():
        calls = sum(entry.kind == "used" for entry in entries)
        most = max((sample.spent + sample.held - sample.limit for sample in fleet.samples), default=0)
        print(  # noqa: T201
            f"\n{plan.attempts} slots: {calls} calls used {used / MICRO:.2f} usd, {last.spent / MICRO:.2f} are booked, "
            f"{len(lines)} lines, {len(handles)} tasks, at most {most / MICRO:.3f} usd of debt, faults {fleet.faults}"
        )


class Line(NamedTuple):
    """The hard line of one limit: nothing more had room from `us` on, until the limit rose."""

    us: int
    until_us: int


async def spend(fleet: Fleet, orc: Orchestrator, dice: random.Random) -> tuple[list[TaskHandle[Any]], list[Line]]:
    """Raise the limit whenever it is spent, for as long as the plan says, while faults happen."""
    plan, handles, lines = fleet.plan, list[Any](), list[Line]()
    await orc.admin.set_budget(BUDGET, usd=plan.stage)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fleet.observe)
        tasks.start_soon(fleet.disturb, dice)
        ends_at = anyio.current_time() + plan.seconds
        while True:
            handles += await orc.submit_many([Submission("explore", budget=BUDGET) for _ in range(plan.attempts + 10)])
            lines.append(await meet_line(fleet))
            if anyio.current_time() > ends_at:
                break
            await orc.admin.set_budget(BUDGET, usd=fleet.look().spent / MICRO + plan.stage)
        tasks.cancel_scope.cancel()
    return handles, lines


async def meet_line(fleet: Fleet) -> Line:
    """Wait until the limit is spent, and until all that ran has ended: the other tasks wait for room."""

    def reached() -> int:
        found = fleet.look()
        return found.us if found.spent + TAKEN > found.limit else 0

    us = await wait_for(reached, "the limit is spent", fleet.plan.wait_s)
    await wait_for(fleet.stands_still, fleet.describe, fleet.plan.wait_s)
    return Line(us, fleet.look().us)


async def let_all_hand_back(fleet: Fleet, orc: Orchestrator) -> None:
    """Let each task that waits make one more call, and hand back what it has, until none is left."""
    while waiting := fleet.waiting():
        await orc.admin.set_budget(BUDGET, usd=(fleet.look().spent + waiting * TAKEN) / MICRO)
        # The supervisor moves them.
        await wait_for(partial(fleet.waits_for_fewer, waiting), "tasks start", fleet.plan.wait_s)
        await wait_for(fleet.stands_still, fleet.describe, fleet.plan.wait_s)


def sums(amounts: Iterable[tuple[int, int]]) -> Callable[[int], int]:
    """Return a function that adds up the amounts before a time."""
    ordered = sorted(amounts)
    times, totals = [us for us, _ in ordered], [0, *accumulate(amount for _, amount in ordered)]
    return lambda us: totals[bisect_left(times, us)]


def check_samples(samples: Sequence[Sample], entries: Sequence[Entry]) -> None:
    """At each moment: what was really used is booked or held, and no more than the limit, last calls and debt is."""
    calls = sums((entry.us, min(entry.value, TAKEN)) for entry in entries if entry.kind in {"used", "last"})
    debts = sums((entry.us, entry.value - TAKEN) for entry in beyond(entries))
    for sample in samples:
        used, debt = calls(sample.us), debts(sample.us)
        assert used <= sample.spent + sample.held, sample
        assert sample.spent + sample.held <= sample.limit + sample.limit // 20 + debt, sample


def check_lines(lines: Sequence[Line], entries: Sequence[Entry]) -> None:
    """No attempt was assigned between a hard line and the next limit: generations are the times of assignments."""
    begun = [entry.generation for entry in entries if entry.kind == "begun"]
    for line in lines:
        assert [ms for ms in begun if line.us < ms * 1000 < line.until_us] == []
