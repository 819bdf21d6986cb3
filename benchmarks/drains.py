"""Drains a loaded queue and measures the rate and the cost for server and workers."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.processes import ChildFailedError
from benchmarks.raw.team import RawTeam
from benchmarks.server_cost import Drain, ServerReading, cost_between, longest_call_ms, read_server
from benchmarks.systems import all_systems
from orchestrator.bench.measures import SAMPLE_S, DrainWatch, Pace
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.harness import Bench
    from benchmarks.processes import Child
    from benchmarks.team import Team

_STALL_S = 20.0
# These tasks fill buffers, tables and caches whose size does not grow with the queue.
_FIRST_TASKS = 1000
_FIRST_SHARE = 0.2
WITHOUT_RESULTS = "raw without results"


def drains_of_all_systems(bench: Bench, processes: int) -> dict[str, list[Drain]]:
    """Drain with every system, once per run and number of processes; several measures use the results."""
    if processes not in bench.drains:
        teams = {**all_systems(bench), WITHOUT_RESULTS: RawTeam(bench, with_results=False)}
        bench.drains[processes] = bench.in_turns(
            {system: partial(drain, bench, team, processes=processes) for system, team in teams.items()}
        )
    return bench.drains[processes]


def drain(bench: Bench, team: Team, *, processes: int) -> Drain:
    """Submit all tasks, then start the workers and watch until the last task ends."""
    tasks = team.sizes.drain_tasks
    first = min(_FIRST_TASKS, round(_FIRST_SHARE * tasks))
    team.prepare()
    bench.meter.slowlog_reset()
    before, loaded = run_loop(_load, bench, team, first, tasks)
    with team.worker_processes(processes) as worker_processes:
        ready = read_server(bench.meter)
        after_ramp_s: list[float] = []
        worker_processes.start()
        children = [*worker_processes.workers, *worker_processes.helpers]
        # Processor time counts from the end of the ramp, to leave out the start of a supervisor.
        watched = watch(
            team.remaining, tasks, children, on_ramp=lambda: after_ramp_s.extend(child.cpu_s() for child in children)
        )
        used_s = [child.cpu_s() - before_s for child, before_s in zip(children, after_ramp_s, strict=True)]
        done = read_server(bench.meter)
        return Drain(
            tasks=tasks,
            loaded_tasks=tasks - first,
            timed_tasks=watched.tasks,
            rate_per_s=watched.per_s,
            load_cost=cost_between(before, loaded),
            drain_cost=cost_between(ready, done),
            worker_cpu_s=sum(used_s[: len(worker_processes.workers)]),
            helper_cpu_s=sum(used_s[len(worker_processes.workers) :]),
            longest_call_ms=longest_call_ms(bench.meter),
        )


def watch(
    count_remaining: Callable[[], int],
    tasks: int,
    children: Sequence[Child],
    *,
    on_ramp: Callable[[], None] = lambda: None,
) -> Pace:
    """Wait until no task remains; call `on_ramp` when the timed part begins."""
    drained = DrainWatch(tasks)
    while True:
        was_timed = drained.is_timed
        drained.note(count_remaining())
        if drained.is_timed and not was_timed:
            on_ramp()
        if drained.remaining == 0:
            return drained.pace
        if drained.idle_s > _STALL_S:
            logs = ", ".join(str(child.log) for child in children)
            raise ChildFailedError(
                f"{drained.remaining} of {tasks} tasks are left and none ended for {_STALL_S:.0f} s: {logs}"
            )
        for child in children:
            child.check()
        time.sleep(SAMPLE_S)


async def _load(bench: Bench, team: Team, first: int, tasks: int) -> tuple[ServerReading, ServerReading]:
    # The client is connected during both readings, because the server drops the counts of closed connections.
    async with team.client() as driver:
        await driver.load(first)
        before = read_server(bench.meter)
        await driver.load(tasks - first)
        return before, read_server(bench.meter)
