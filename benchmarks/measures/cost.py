"""What one task costs over its whole life in batches: commands, server time, network, memory, worker time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.drains import Drain, drain
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import at_most
from benchmarks.harness import say
from benchmarks.metering import SentCommands
from benchmarks.sides import both_sides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harness import Bench
    from benchmarks.metering import ServerCost

_US = 1e6


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
        (at_most(40),),
    ),
    ("server CPU per task, submit", "µs", lambda d: d.load_cost.cpu_s / d.loaded_tasks * _US, ()),
    ("server CPU per task, draining", "µs", lambda d: d.drain_cost.cpu_s / d.tasks * _US, (at_most(30),)),
    ("network per task", "bytes", lambda d: _whole_life(d, lambda cost: cost.net_bytes), ()),
    ("memory per queued task", "bytes", lambda d: d.memory_bytes / d.loaded_tasks, (at_most(420),)),
    ("worker CPU per 1000 tasks", "s", lambda d: d.worker_cpu_s / d.timed_tasks * 1000, (at_most(0.06),)),
    ("supervisor CPU per 1000 tasks", "s", lambda d: d.helper_cpu_s / d.timed_tasks * 1000, ()),
)


def measure(bench: Bench) -> Iterator[Figure]:
    """Costs of submitting with `submit_many` and of draining with one worker process."""
    yield from _commands_sent(bench)
    taken = bench.in_turns(
        {
            side: partial(drain, bench, team, tasks=bench.sizes.drain_tasks, processes=1)
            for side, team in both_sides(bench).items()
        }
    )
    for name, unit, per_task, goals in _COSTS:
        values = {side: [per_task(one) for one in passes] for side, passes in taken.items()}
        if ours := values.get("ours"):
            yield figure_of("cost", name, unit, ours, values["raw"], goals=goals)
        else:
            yield figure_of("cost", f"{name}, raw loop", unit, values["raw"])


def _commands_sent(bench: Bench) -> Iterator[Figure]:
    """Count in a pass of its own, since counting slows the server down."""
    sent: dict[str, float] = {}
    for side, team in both_sides(bench).items():
        say(f"  {side}, commands counted")
        bench.clean()
        counter = SentCommands(bench.meter, bench.server.url)
        with counter.counting():
            drain(bench, team, tasks=bench.sizes.drain_tasks, processes=1)
        sent[side] = counter.count / bench.sizes.drain_tasks
    if "ours" in sent:
        yield figure_of(
            "cost", "commands sent per task", "commands", [sent["ours"]], [sent["raw"]], goals=(at_most(0.2),)
        )
    else:
        yield figure_of("cost", "commands sent per task, raw loop", "commands", [sent["raw"]])
