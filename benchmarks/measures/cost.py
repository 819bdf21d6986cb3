"""What one task costs over its whole life in batches: commands, server time, network, memory, worker time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.drains import Drain, drain
from benchmarks.figures import Figure, Goal, median
from benchmarks.goals import at_most
from benchmarks.sides import both_sides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harness import Bench

_US = 1e6

_COSTS: tuple[tuple[str, str, Callable[[Drain], float], tuple[Goal, ...]], ...] = (
    ("commands sent per task", "commands", lambda d: (d.load_cost.sent + d.drain_cost.sent) / d.tasks, (at_most(0.2),)),
    ("calls inside scripts per task", "calls", lambda d: (d.load_cost.nested + d.drain_cost.nested) / d.tasks, ()),
    (
        "server CPU per task, whole life",
        "µs",
        lambda d: (d.load_cost.cpu_s + d.drain_cost.cpu_s) / d.tasks * _US,
        (at_most(40),),
    ),
    ("server CPU per task, submit", "µs", lambda d: d.load_cost.cpu_s / d.tasks * _US, ()),
    ("server CPU per task, draining", "µs", lambda d: d.drain_cost.cpu_s / d.tasks * _US, (at_most(30),)),
    ("network per task", "bytes", lambda d: (d.load_cost.net_bytes + d.drain_cost.net_bytes) / d.tasks, ()),
    ("memory per queued task", "bytes", lambda d: d.memory_bytes / d.tasks, (at_most(420),)),
    ("worker CPU per 1000 tasks", "s", lambda d: d.worker_cpu_s / d.tasks * 1000, (at_most(0.06),)),
    ("supervisor CPU per 1000 tasks, its start included", "s", lambda d: d.helper_cpu_s / d.tasks * 1000, ()),
)


def measure(bench: Bench) -> Iterator[Figure]:
    """Costs of submitting with `submit_many` and of draining with one worker process."""
    taken = bench.in_turns(
        {
            side: partial(drain, bench, team, tasks=bench.sizes.drain_tasks, processes=1)
            for side, team in both_sides(bench).items()
        }
    )
    for name, unit, per_task, goals in _COSTS:
        values = {side: tuple(per_task(one) for one in passes) for side, passes in taken.items()}
        raw = median(values["raw"])
        if ours := values.get("ours"):
            yield Figure("cost", name, unit, median(ours), raw, goals, ours)
        else:
            yield Figure("cost", f"{name}, raw loop", unit, raw, rounds=values["raw"])
