"""What one task costs over its whole life in batches: commands, server time, network, memory, worker time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.drains import Drain, drain
from benchmarks.figures import Figure, Goal, median
from benchmarks.goals import at_most
from benchmarks.harness import say
from benchmarks.metering import SentCommands
from benchmarks.sides import both_sides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harness import Bench

_US = 1e6

_COSTS: tuple[tuple[str, str, Callable[[Drain], float], tuple[Goal, ...]], ...] = (
    (
        "calls per task, those inside scripts too",
        "calls",
        lambda d: (d.load_cost.calls + d.drain_cost.calls) / d.tasks,
        (),
    ),
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
        values = {side: tuple(per_task(one) for one in passes) for side, passes in taken.items()}
        raw = median(values["raw"])
        if ours := values.get("ours"):
            yield Figure("cost", name, unit, median(ours), raw, goals, ours)
        else:
            yield Figure("cost", f"{name}, raw loop", unit, raw, rounds=values["raw"])


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
        yield Figure("cost", "commands sent per task", "commands", sent["ours"], sent["raw"], (at_most(0.2),))
    else:
        yield Figure("cost", "commands sent per task, raw loop", "commands", sent["raw"])
