"""How much of the server's memory one queued task takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.processes import wait_until
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from benchmarks.harness import Bench
    from benchmarks.team import Team

# They fill tables and caches whose size does not grow with the queue.
_FIRST_TASKS = 1000
# With fewer the steps show in which the server's tables grow; with these and the first ones, a table of keys is full.
_FEWEST_TASKS = 7_000


def bytes_per_queued_task(bench: Bench, team: Team) -> float:
    """Load tasks and compare readings between which no client is connected: its buffers are as large as many tasks."""
    tasks = max(team.sizes.drain_tasks, _FEWEST_TASKS)
    team.prepare()
    before = _memory_after_load(bench, team, _FIRST_TASKS)
    return (_memory_after_load(bench, team, tasks) - before) / tasks


def _memory_after_load(bench: Bench, team: Team, tasks: int) -> int:
    run_loop(_load, team, tasks)
    wait_until(lambda: bench.meter.info("clients")["connected_clients"] == 1, what="the client to be gone")
    memory = bench.meter.info("memory")
    # Scripts leave garbage in their interpreter, now more, now less.
    return int(memory["used_memory"]) - int(memory["used_memory_vm_total"])


async def _load(team: Team, tasks: int) -> None:
    async with team.client() as driver:
        await driver.load(tasks)
