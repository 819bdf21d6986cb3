"""Cost of one task over its life in batches: commands, server time, network, memory, worker time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.comparison import OURS, RAW
from benchmarks.drains import WITHOUT_RESULTS, drain, drains_of_all_systems
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import QUEUED_BYTES, WHOLE_LIFE_SERVER_US, WORKER_S_PER_1000, at_most
from benchmarks.processes import wait_until
from benchmarks.server_cost import Drain, SentCommands
from benchmarks.systems import all_systems
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.harness import Bench
    from benchmarks.server_cost import ServerCost
    from benchmarks.team import Team

_US = 1e6
_OF_SUPERVISOR = "supervisor CPU per 1000 tasks"


def _whole_life(one: Drain, part: Callable[[ServerCost], float]) -> float:
    return part(one.load_cost) / one.loaded_tasks + part(one.drain_cost) / one.tasks


_COSTS: tuple[tuple[str, str, Callable[[Drain], float], tuple[Goal, ...]], ...] = (
    (
        "calls per task, those inside scripts too",
        "calls",
        lambda d: _whole_life(d, lambda cost: cost.calls),
        (),
    ),
    (
        "server CPU per task, whole life",
        "µs",
        lambda d: _whole_life(d, lambda cost: cost.cpu_s) * _US,
        (at_most(WHOLE_LIFE_SERVER_US),),
    ),
    ("server CPU per task, submit", "µs", lambda d: d.load_cost.cpu_s / d.loaded_tasks * _US, ()),
    ("server CPU per task, draining", "µs", lambda d: d.drain_cost.cpu_s / d.tasks * _US, (at_most(30),)),
    ("network per task", "bytes", lambda d: _whole_life(d, lambda cost: cost.net_bytes), ()),
    ("worker CPU per 1000 tasks", "s", lambda d: d.worker_cpu_s / d.timed_tasks * 1000, (at_most(WORKER_S_PER_1000),)),
    (_OF_SUPERVISOR, "s", lambda d: d.helper_cpu_s / d.timed_tasks * 1000, ()),
)


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure submits by `submit_many`, or the closest that a peer has, and a drain with one process."""
    # Commands are counted in a separate pass, because counting slows the server down.
    commands = _once_each(bench, _commands_sent)
    yield from _of_both("commands sent per task", "commands", commands, bench, (at_most(0.2),))
    memory = _once_each(bench, bytes_per_queued_task, rounds_factor=bench.sizes.rounds)
    yield from _of_both("memory per queued task", "bytes", memory, bench, (at_most(QUEUED_BYTES[bench.settings]),))
    taken = {system: runs for system, runs in drains_of_all_systems(bench, 1).items() if system != WITHOUT_RESULTS}
    for name, unit, per_task, goals in _COSTS:
        values = {system: [per_task(one) for one in runs] for system, runs in taken.items()}
        yield from _of_both(name, unit, values, bench, goals)


def _of_both(
    name: str, unit: str, values: Mapping[str, list[float]], bench: Bench, goals: tuple[Goal, ...]
) -> Iterator[Figure]:
    if name != _OF_SUPERVISOR:
        bench.compare(name, unit, values)
    if ours := values.get(OURS):
        yield figure_of("cost", name, unit, ours, values[RAW], goals=goals)
    else:
        yield figure_of("cost", f"{name}, raw loop", unit, values[RAW])


def _once_each(
    bench: Bench, run_once: Callable[[Bench, Team], float], *, rounds_factor: int = 1
) -> dict[str, list[float]]:
    runs = {system: partial(run_once, bench, team) for system, team in all_systems(bench).items()}
    return bench.in_turns(runs, rounds=1, rounds_factor=rounds_factor)


def _commands_sent(bench: Bench, team: Team) -> float:
    counter = SentCommands(bench.meter, bench.server.url)
    with counter.counting():
        drain(bench, team, processes=1)
    return counter.count / team.sizes.drain_tasks


# These tasks fill tables and caches whose size does not grow with the queue.
_FIRST_TASKS = 1000
# With fewer tasks, steps show in which the server's tables grow; this number fills a table of keys.
_FEWEST_TASKS = 7_000


def bytes_per_queued_task(bench: Bench, team: Team) -> float:
    """Return the memory per queued task, read while no client is connected, because its buffers are large."""
    tasks = max(team.sizes.drain_tasks, _FEWEST_TASKS)
    team.prepare()
    before = _memory_after_load(bench, team, _FIRST_TASKS)
    return (_memory_after_load(bench, team, tasks) - before) / tasks


def _memory_after_load(bench: Bench, team: Team, tasks: int) -> int:
    run_loop(_load, team, tasks)
    wait_until(lambda: bench.meter.info("clients")["connected_clients"] == 1, what="the client to be gone")
    memory = bench.meter.info("memory")
    # Without the garbage in the script interpreter, which varies.
    return int(memory["used_memory"]) - int(memory["used_memory_vm_total"])


async def _load(team: Team, tasks: int) -> None:
    async with team.client() as driver:
        await driver.load(tasks)
