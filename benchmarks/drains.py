"""Passes over a loaded queue: how fast it empties, and what that costs the server and the workers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.processes import ChildFailedError
from benchmarks.raw.team import RawTeam
from benchmarks.server_cost import Drain, ServerReading, cost_between, read_server
from benchmarks.systems import all_systems
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.harness import Bench
    from benchmarks.processes import Child
    from benchmarks.team import Team

_SAMPLE_S = 0.005
# Until a twentieth is done, readers wake up, pipelines fill, and caches warm.
_RAMP_SHARE = 0.05
_STALL_S = 20.0
# They fill buffers, tables and caches whose size does not grow with the queue.
_FIRST_TASKS = 1000
WITHOUT_RESULTS = "raw without results"


@dataclass(frozen=True, slots=True)
class Watched:
    """The timed part of a pass: from the end of the ramp to the last task."""

    tasks: int
    duration_s: float

    @property
    def rate_per_s(self) -> float:
        """Tasks per second."""
        return self.tasks / max(self.duration_s, _SAMPLE_S)


def drains_of_all_systems(bench: Bench, processes: int) -> dict[str, list[Drain]]:
    """Passes of every side with so many worker processes, made once in a run; several measures read them."""
    if processes not in bench.drains:
        teams = {**all_systems(bench), WITHOUT_RESULTS: RawTeam(bench, with_results=False)}
        bench.drains[processes] = bench.in_turns(
            {system: partial(drain, bench, team, processes=processes) for system, team in teams.items()}
        )
    return bench.drains[processes]


def drain(bench: Bench, team: Team, *, processes: int) -> Drain:
    """Submit all tasks, then let the workers loose on them, and watch until the last is finished."""
    tasks = team.sizes.drain_tasks
    team.prepare()
    before, loaded = run_loop(_load, bench, team, tasks)
    with team.worker_processes(processes) as worker_processes:
        ready = read_server(bench.meter)
        after_ramp_s: list[float] = []
        worker_processes.start()
        children = [*worker_processes.workers, *worker_processes.helpers]
        # Processor time counts from the end of the ramp on, so that the start of a supervisor is left out.
        watched = watch(
            team.remaining, tasks, children, on_ramp=lambda: after_ramp_s.extend(child.cpu_s() for child in children)
        )
        used_s = [child.cpu_s() - before_s for child, before_s in zip(children, after_ramp_s, strict=True)]
        done = read_server(bench.meter)
        return Drain(
            tasks=tasks,
            loaded_tasks=tasks - _FIRST_TASKS,
            timed_tasks=watched.tasks,
            rate_per_s=watched.rate_per_s,
            load_cost=cost_between(before, loaded),
            drain_cost=cost_between(ready, done),
            worker_cpu_s=sum(used_s[: len(worker_processes.workers)]),
            helper_cpu_s=sum(used_s[len(worker_processes.workers) :]),
        )


def watch(
    count_remaining: Callable[[], int],
    tasks: int,
    children: Sequence[Child],
    *,
    on_ramp: Callable[[], None] = lambda: None,
) -> Watched:
    """Wait until nothing remains; `on_ramp` is called when the timed part begins."""
    ramp_end = int(tasks * (1 - _RAMP_SHARE))
    started: tuple[float, int] | None = None
    last, last_change_s = tasks, time.monotonic()
    while True:
        remaining, now_s = count_remaining(), time.monotonic()
        if started is None and remaining <= ramp_end:
            started = now_s, remaining
            on_ramp()
        if remaining == 0:
            break
        if remaining != last:
            last, last_change_s = remaining, now_s
        elif now_s - last_change_s > _STALL_S:
            logs = ", ".join(str(child.log) for child in children)
            raise ChildFailedError(f"{remaining} of {tasks} tasks are left and none ended for {_STALL_S:.0f} s: {logs}")
        for child in children:
            child.check()
        time.sleep(_SAMPLE_S)
    assert started is not None
    started_s, left = started
    return Watched(left, now_s - started_s)


async def _load(bench: Bench, team: Team, tasks: int) -> tuple[ServerReading, ServerReading]:
    # Both readings see the client's connections open: those it closed are missing from the server's counts.
    async with team.client() as driver:
        await driver.load(_FIRST_TASKS)
        before = read_server(bench.meter)
        await driver.load(tasks - _FIRST_TASKS)
        return before, read_server(bench.meter)
