"""One pass over a loaded queue: how fast it empties, and what that costs the server and the workers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from benchmarks.metering import ServerCost, ServerReading, cost_between, read_server
from benchmarks.processes import ChildFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.harness import Bench
    from benchmarks.processes import Child
    from benchmarks.team import Team

_SAMPLE_S = 0.005
# Until a twentieth is done, readers wake up, pipelines fill, and caches warm.
_RAMP_SHARE = 0.05
_STALL_S = 20.0


@dataclass(frozen=True, slots=True)
class Drain:
    """What one pass showed; costs are totals over `tasks`."""

    tasks: int
    rate_per_s: float
    memory_bytes: int
    load_cost: ServerCost
    drain_cost: ServerCost
    worker_cpu_s: float
    helper_cpu_s: float


def drain(bench: Bench, team: Team, *, tasks: int, processes: int) -> Drain:
    """Submit all tasks, then let the workers loose on them, and watch until the last is finished."""
    team.prepare()
    empty, loaded = anyio.run(_load, bench, team, tasks)
    with team.crew(processes) as crew:
        ready = read_server(bench.meter)
        worker_cpu_s, helper_cpu_s = _cpu_s(crew.workers), _cpu_s(crew.helpers)
        crew.go()
        rate_per_s = watch(team.remaining, tasks, [*crew.workers, *crew.helpers])
        done = read_server(bench.meter)
        return Drain(
            tasks=tasks,
            rate_per_s=rate_per_s,
            memory_bytes=loaded.memory_bytes - empty.memory_bytes,
            load_cost=cost_between(empty, loaded),
            drain_cost=cost_between(ready, done),
            worker_cpu_s=_cpu_s(crew.workers) - worker_cpu_s,
            helper_cpu_s=_cpu_s(crew.helpers) - helper_cpu_s,
        )


def watch(count_remaining: Callable[[], int], tasks: int, children: Sequence[Child]) -> float:
    """Tasks per second between the end of the ramp and the last task."""
    ramp_end = int(tasks * (1 - _RAMP_SHARE))
    started: tuple[float, int] | None = None
    last, last_change_s = tasks, time.monotonic()
    while True:
        remaining, now_s = count_remaining(), time.monotonic()
        if started is None and remaining <= ramp_end:
            started = now_s, remaining
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
    return left / max(now_s - started_s, _SAMPLE_S)


async def _load(bench: Bench, team: Team, tasks: int) -> tuple[ServerReading, ServerReading]:
    # Both readings see the client's connections open: those it closed are missing from the server's counts.
    async with team.client() as client:
        empty = read_server(bench.meter)
        await client.submit_many(tasks)
        return empty, read_server(bench.meter)


def _cpu_s(children: Sequence[Child]) -> float:
    return sum(child.cpu_s() for child in children)
