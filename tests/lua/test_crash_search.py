"""The search for tasks that crash workers (protocol rule 8), against real scripts with workers and time simulated.

Random tasks crash their process whenever they run. Whatever their number, the slots, the processes, the order and the
hosts that are lost meanwhile: each of them becomes a dead letter after few crashes, and no other task does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.tasks.model import VerdictKind
from tests.lua.pool import LEASE_MS, Pool, Team, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.faultkit.servers import RedisServer

TICK_MS = 500
LIMIT_MS = 3_600_000


@dataclass(frozen=True)
class Case:
    """One pool and its tasks.

    Attributes:
        slots: of each process.
        hosts: number of processes of each host.
        lengths: ticks that each task runs.
        poisons: numbers of the tasks that crash their process, in their last tick.
        arrivals: ticks between two submits.
        losses: ticks at which a whole host is lost; a new one starts at once. A second loss in a row would count.
        max_deaths: of the skill.
    """

    slots: int
    hosts: tuple[int, ...]
    lengths: tuple[int, ...]
    poisons: frozenset[int]
    arrivals: int = 0
    losses: tuple[int, ...] = ()
    max_deaths: int = 3


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a pool with 1 to 40 tasks, of which at most 6 are poisons."""
    lengths = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=40)))
    return Case(
        slots=draw(st.integers(1, 20)),
        hosts=tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))),
        lengths=lengths,
        poisons=draw(st.frozensets(st.integers(0, len(lengths) - 1), min_size=0, max_size=6)),
        arrivals=draw(st.sampled_from([0, 0, 1, 3])),
        losses=tuple(draw(st.lists(st.integers(1, 40), max_size=1))),
        max_deaths=draw(st.sampled_from([3, 3, 2, 1])),
    )


@dataclass
class Process:
    """A simulated worker process: what it runs, until which tick."""

    name: str
    host: int
    running: dict[str, tuple[Delivery, int]] = field(default_factory=dict)


class Simulation:
    """Runs one case in virtual time."""

    def __init__(self, pool: Pool, case: Case) -> None:
        self.pool, self.case = pool, case
        self.processes: list[Process] = []
        self.started = 0
        self.tick = 0
        self.crashes = 0
        self.numbers: dict[str, int] = {}
        for host, processes in enumerate(case.hosts):
            for _ in range(processes):
                self.start(host)

    def start(self, host: int) -> None:
        """Start a process."""
        self.started += 1
        process = Process(f"h{host}:{self.started}:0", host)
        self.pool.register(process.name, Team(), slots=self.case.slots)
        self.processes.append(process)

    def run(self) -> None:
        """Run until all tasks have ended."""
        waiting = list(range(len(self.case.lengths)))
        while waiting or any(self.pool.state(id_) not in {"succeeded", "dead"} for id_ in self.numbers):
            if waiting and (not self.case.arrivals or self.tick % self.case.arrivals == 0):
                some = [waiting.pop(0)] if self.case.arrivals else [waiting.pop(0) for _ in list(waiting)]
                self.numbers |= dict(zip(self.pool.put(*[row() for _ in some]), some, strict=True))
            self.pool.promote()
            while self.pool.assign().left:
                pass
            for process in self.processes:
                self.fetch(process)
            self.pool.sleep(TICK_MS)
            self.tick += 1
            if self.tick in self.case.losses:
                self.lose_host(self.case.losses.index(self.tick) % len(self.case.hosts))
            for process in list(self.processes):
                self.turn(process)
            assert self.tick * TICK_MS < LIMIT_MS, "the search does not end"

    def fetch(self, process: Process) -> None:
        """Fill the slots of a process."""
        free = self.case.slots - len(process.running)
        if any(one.group == 0 for one, _ in process.running.values()):
            return  # a task runs alone
        found = self.pool.read(process.name, limit=free) if free else []
        if free := free - len(found):
            suspects = [(one.depth, one.group) for one, _ in process.running.values() if one.group is not None]
            idle = not process.running and not found
            found += self.pool.take_suspects(process.name, *suspects, limit=free, idle=idle)
        for one in found:
            process.running[one.task_id] = (one, self.tick + self.case.lengths[self.numbers[one.task_id]])

    def turn(self, process: Process) -> None:
        """End what is over; crash if a poison is."""
        over = [one for one, until in process.running.values() if until <= self.tick]
        fatal = [one for one in over if self.numbers[one.task_id] in self.case.poisons]
        if fatal:
            self.crashes += 1
            self.processes.remove(process)
            while self.pool.abandon(process.name, max_deaths={"sum": self.case.max_deaths})[0]:
                pass
            self.pool.deregister(process.name)
            self.start(process.host)
            return
        for one in over:
            self.pool.end(one, VerdictKind.SUCCEEDED)
            del process.running[one.task_id]

    def lose_host(self, host: int) -> None:
        """Lose all processes of a host; the others adopt their entries when the leases have run out."""
        lost = [process for process in self.processes if process.host == host]
        for process in lost:
            self.processes.remove(process)
            self.start(host)
        alive = [one for process in self.processes for one, _ in process.running.values()]
        self.pool.look()
        self.pool.age(LEASE_MS + 1)
        if alive:
            for process in self.processes:
                self.pool.renew([one for one, _ in process.running.values()], process.name)
        for process in self.processes:
            free = self.case.slots - len(process.running)
            for one in self.pool.adopt(process.name, limit=free, max_deaths={"sum": self.case.max_deaths}):
                process.running[one.task_id] = (one, self.tick + self.case.lengths[self.numbers[one.task_id]])
            self.pool.look()


def crashes_allowed(case: Case) -> int:
    """Return how many processes may die: for each poison the rounds of a search among all tasks, and its deaths."""
    rounds = math.ceil(math.log2(len(case.lengths)))
    # The one death that `max_deaths=1` allows must happen alone, so another one may come before it.
    return len(case.poisons) * (rounds + max(case.max_deaths, 2)) + len(case.losses)


@pytest.mark.timeout(600)  # a failure is made small first, which takes its time
@pytest.mark.parametrize("examples", [25, pytest.param(300, marks=pytest.mark.slow)], ids=["few", "many"])
def test_only_poisons_become_dead_letters(redis_server: RedisServer, prefix: str, examples: int) -> None:
    """Each poison ends after few crashes, all other tasks succeed, and no key is left behind."""
    numbers = count()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(case=cases())
    # A host is lost while a task that crashes nothing runs alone.
    @example(case=Case(3, (1, 1), (1,) * 5, frozenset({0, 2}), arrivals=1, losses=(7,)))
    def search(case: Case) -> None:
        pool = Pool(redis_server.url, f"{prefix}{next(numbers)}")
        simulation = Simulation(pool, case)
        simulation.run()
        ends = {simulation.numbers[id_]: pool.state(id_) for id_ in simulation.numbers}
        assert {number for number, end in ends.items() if end == "dead"} == case.poisons
        assert simulation.crashes <= crashes_allowed(case)
        assert pool.execute("EXISTS", pool.keys.suspected_queues) == 0
        pool.close()

    search()
