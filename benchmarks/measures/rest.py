"""Cost of an idle system."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.comparison import OURS
from benchmarks.figures import Figure
from benchmarks.goals import at_most
from benchmarks.processes import pss_bytes, rss_bytes
from benchmarks.server_cost import SentCommands, cost_between, read_server
from benchmarks.systems import our_system, peer_systems
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.harness import Bench
    from benchmarks.processes import Child
    from benchmarks.team import Team

_SETTLE_S = 3.0
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Process:
    role: str
    rss_mb: float
    pss_mib: float


@dataclass(frozen=True, slots=True)
class _Group:
    """A command and its processes."""

    name: str
    cpu_percent: float
    processes: Sequence[_Process]


@dataclass(frozen=True, slots=True)
class _Rest:
    commands_per_s: float
    busiest: str
    server_cpu_percent: float
    workers: Sequence[_Group]
    helpers: Sequence[_Group]

    @property
    def worker_cpu_percent(self) -> float:
        return sum(group.cpu_percent for group in self.workers)

    @property
    def largest_worker_mb(self) -> float:
        return max(process.rss_mb for group in self.workers for process in group.processes)


_QUANTITIES: tuple[tuple[str, str, Callable[[_Rest], float]], ...] = (
    ("commands sent at rest", "commands/s", lambda rest: rest.commands_per_s),
    ("server CPU at rest", "%", lambda rest: rest.server_cpu_percent),
    ("worker CPU at rest", "%", lambda rest: rest.worker_cpu_percent),
    ("resident memory, largest worker process", "MB", lambda rest: rest.largest_worker_mb),
)


def measure(bench: Bench) -> Iterator[Figure]:
    """Watch one worker process and its supporting processes after warm-up tasks."""
    teams = {**our_system(bench), **peer_systems(bench)}
    taken = bench.in_turns({system: partial(_watch, bench, team) for system, team in teams.items()}, rounds=1)
    rests = {system: one for system, (one,) in taken.items()}
    for name, unit, value in _QUANTITIES:
        bench.compare(name, unit, {system: [value(rest)] for system, rest in rests.items()})
    if ours := rests.get(OURS):
        yield from _figures(ours)


def _figures(rest: _Rest) -> Iterator[Figure]:
    sent = ("rest", "commands sent", "commands/s", rest.commands_per_s)
    yield Figure(*sent, goals=(at_most(5),), note=rest.busiest)
    yield Figure("rest", "server CPU", "%", rest.server_cpu_percent)
    for group in (*rest.workers, *rest.helpers):
        yield Figure("rest", f"CPU of {group.name}", "%", group.cpu_percent, goals=(at_most(0.5),))
        for process in group.processes:
            note = f"{process.pss_mib:.0f} MiB when shared pages are divided"
            name = f"resident memory of {process.role}"
            yield Figure("rest", name, "MB", process.rss_mb, goals=(at_most(60),), note=note)


def _watch(bench: Bench, team: Team) -> _Rest:
    team.prepare()
    with team.worker_processes(1) as worker_processes:
        worker_processes.start()
        run_loop(_warm_up, team)
        time.sleep(_SETTLE_S)
        children = [*worker_processes.workers, *worker_processes.helpers]
        cpu_before_s = {child.name: child.cpu_s() for child in children}
        before, started_s = read_server(bench.meter), time.monotonic()
        counter = SentCommands(bench.meter, bench.server.url)
        with counter.counting():
            time.sleep(team.sizes.rest_s)
        after, duration_s = read_server(bench.meter), time.monotonic() - started_s
        cost = cost_between(before, after)
        groups = {child.name: _group(child, child.cpu_s() - cpu_before_s[child.name], duration_s) for child in children}
        return _Rest(
            commands_per_s=counter.count / duration_s,
            busiest=_busiest(cost.calls_by_command),
            server_cpu_percent=cost.cpu_s / duration_s * 100,
            workers=[groups[child.name] for child in worker_processes.workers],
            helpers=[groups[child.name] for child in worker_processes.helpers],
        )


def _group(child: Child, used_s: float, duration_s: float) -> _Group:
    return _Group(
        child.name,
        used_s / duration_s * 100,
        [
            _Process(
                child.name if number == 0 else f"{child.name}, child {number}",
                rss_bytes(pid) / 1e6,
                pss_bytes(pid) / _MIB,
            )
            for number, pid in enumerate(child.pids())
        ],
    )


async def _warm_up(team: Team) -> None:
    async with team.client() as driver:
        await driver.round_trips_ms(1)


def _busiest(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(calls.items(), key=lambda item: -item[1])[:8])
