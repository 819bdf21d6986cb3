"""Memory of tasks that succeeded, and what it adds up to by the time the server forgets them."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import goals
from benchmarks.comparison import OURS, RAW
from benchmarks.drains import watch
from benchmarks.figures import figure_of
from benchmarks.processes import wait_until
from benchmarks.raw.stream import RESULT_TTL_S
from benchmarks.systems import all_systems
from orchestrator.core.event_loop import run_loop
from orchestrator.core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.figures import Figure
    from benchmarks.harness import Bench
    from benchmarks.team import Team

# These tasks fill tables, logs and caches whose size does not grow with the number of ended tasks.
_FIRST_TASKS = 1_000
# With the first ones they almost fill a table of keys, so that no half-empty table counts.
_TASKS = 7_000
_SETTLE_S = 0.5
_CAPPED = ("*}:events", "*}:replies:*")
_PER_S = 1_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain twice, and compare the memory after both, while neither clients nor workers are connected."""
    runs = {system: partial(_bytes_per_ended_task, bench, team) for system, team in all_systems(bench).items()}
    taken = bench.in_turns(runs, rounds=1)
    bench.compare("memory per ended task", "bytes", taken)
    ttl_s = {OURS: Settings().results.ttl_s, RAW: RESULT_TTL_S}
    ttl_s |= {one.peer.name: one.peer.result_ttl_s for one in bench.peers}
    kept_gb = {system: [value * _PER_S * ttl_s[system] / 1e9 for value in values] for system, values in taken.items()}
    bench.compare(f"memory of ended tasks at {_PER_S:,} tasks/s, with default lifetimes", "GB", kept_gb)
    if ours := taken.get(OURS):
        bounds = (goals.at_most(goals.ENDED_BYTES),)
        yield figure_of("ended", "memory per ended task", "bytes", ours, taken[RAW], goals=bounds)
        words = f"memory of ended tasks at {_PER_S:,} tasks/s, kept for {ttl_s[OURS] / 3600:g} h"
        yield figure_of("ended", words, "GB", kept_gb[OURS], kept_gb[RAW])
    else:
        yield figure_of("ended", "memory per ended task, raw loop", "bytes", taken[RAW])


def _bytes_per_ended_task(bench: Bench, team: Team) -> float:
    team.prepare()
    before = _memory_after_drain(bench, team, _FIRST_TASKS)
    return (_memory_after_drain(bench, team, _TASKS) - before) / _TASKS


def _memory_after_drain(bench: Bench, team: Team, tasks: int) -> int:
    run_loop(_load, team, tasks)
    with team.worker_processes(1) as worker_processes:
        worker_processes.start()
        watch(team.remaining, tasks, worker_processes.workers)
        # Workers write some of what they keep after the end of a task.
        time.sleep(_SETTLE_S)
    wait_until(lambda: bench.meter.info("clients")["connected_clients"] == 1, what="all clients to be gone")
    time.sleep(_SETTLE_S)
    memory = bench.meter.info("memory")
    return int(memory["used_memory"]) - int(memory["used_memory_vm_total"]) - _capped_bytes(bench)


def _capped_bytes(bench: Bench) -> int:
    """Return the memory of our logs of ends and of replies to clients, whose length has a limit."""
    logs = [key for pattern in _CAPPED for key in bench.meter.scan_iter(match=pattern, count=1000)]
    return sum(bench.meter.memory_usage(key, samples=0) or 0 for key in logs)


async def _load(team: Team, tasks: int) -> None:
    async with team.client() as driver:
        await driver.load(tasks)
