"""Server cost of a task with a thousand and with a million others in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.drains import watch
from benchmarks.figures import Figure
from benchmarks.goals import at_most
from benchmarks.server_cost import cost_between, read_server
from benchmarks.systems import our_system
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench
    from benchmarks.team import Team

_QUEUED = (1_000, 10_000, 100_000, 1_000_000)
_QUEUED_QUICK = (1_000, 10_000, 100_000)
_DRAINED = 30_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Fill the queue, then let one worker process drain a part of it."""
    lengths = _QUEUED if bench.sizes.rounds > 1 else _QUEUED_QUICK
    for team in our_system(bench).values():
        for queued in lengths:
            bench.clean()
            submit_us, drain_us = _cost(bench, team, queued)
            words = f"{queued:,} queued tasks"
            yield Figure("scale", f"server CPU per task, submit, up to {words}", "µs", submit_us)
            yield Figure("scale", f"server CPU per task, draining, from {words}", "µs", drain_us, goals=(at_most(30),))
    bench.clean()


def _cost(bench: Bench, team: Team, queued: int) -> tuple[float, float]:
    """Return microseconds of server time per task, submitted and drained."""
    empty = read_server(bench.meter)
    run_loop(_load, team, queued)
    loaded = read_server(bench.meter)
    stop_at = max(0, queued - _DRAINED)
    with team.worker_processes(1) as worker_processes:
        ready = read_server(bench.meter)
        worker_processes.start()
        watch(lambda: max(0, team.remaining() - stop_at), queued - stop_at, worker_processes.workers)
        drained = queued - team.remaining()
        done = read_server(bench.meter)
    submit_s, drain_s = cost_between(empty, loaded).cpu_s, cost_between(ready, done).cpu_s
    return submit_s / queued * 1e6, drain_s / drained * 1e6


async def _load(team: Team, queued: int) -> None:
    async with team.client() as driver:
        await driver.load(queued)
