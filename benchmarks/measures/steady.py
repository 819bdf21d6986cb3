"""Single submits at a steady rate: processor time per task and time to the result; then as many as possible."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.comparison import OURS
from benchmarks.drains import drain
from benchmarks.figures import figure_of
from benchmarks.goals import SHORT_HANDLERS_PER_S, STEADY_PER_S, STEADY_US, SUSTAINED_PER_S, at_least, at_most
from benchmarks.ours.team import FREE, SHORT, OurTeam
from benchmarks.processes import cpu_s
from orchestrator.bench.measures import Latencies, percentiles
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.figures import Figure
    from benchmarks.harness import Bench
    from benchmarks.processes import Child

RATES_PER_S: Final = (200, STEADY_PER_S)
_SUSTAINED_TASKS: Final = 40_000
_US: Final = 1e6


@dataclass(frozen=True, slots=True)
class Steady:
    """One pass at a steady rate: µs of processor time per task by process, and times to the result."""

    used_us: dict[str, float]
    latencies: Latencies


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure ours alone: the costs of supervisor and workers have no counterpart in the raw loop."""
    if not bench.ours:
        return
    for rate in RATES_PER_S:
        passes = bench.in_turns({OURS: partial(steady, bench, rate)})[OURS]
        words = f"{rate:,} single submits a second"
        for process in STEADY_US:
            used = [one.used_us[process] for one in passes]
            goals = (at_most(STEADY_US[process]),) if rate == STEADY_PER_S else ()
            yield figure_of("steady", f"{words}, {process} CPU per task", "µs", used, goals=goals)
        for name in ("p50", "p99"):
            taken_ms = [getattr(one.latencies, name) for one in passes]
            yield figure_of("steady", f"{words}, end to end, {name}", "ms", taken_ms)
    per_s = bench.in_turns({OURS: partial(sustained, bench)})[OURS]
    yield figure_of("steady", "single submits, sustained", "tasks/s", per_s, goals=(at_least(SUSTAINED_PER_S),))
    per_s = bench.in_turns({OURS: partial(short_handlers, bench)})[OURS]
    goals = (at_least(SHORT_HANDLERS_PER_S),)
    yield figure_of("steady", "drain, handlers of 5 ms in 200 slots", "tasks/s", per_s, goals=goals)


def steady(bench: Bench, rate_per_s: int) -> Steady:
    """Submit at a steady rate and wait for the results; the processor time of start and warm-up does not count."""
    team = OurTeam(bench, FREE)
    count = int(rate_per_s * bench.sizes.steady_s)
    with team.worker_processes(1) as processes:
        processes.start()
        before: dict[str, float] = {}

        async def run() -> list[float]:
            async with team.client() as driver:
                # Until workers, supervisor and client have loaded what they need.
                await driver.paced_round_trips_ms(rate_per_s, rate_per_s // 2)
                before.update(_used_s(bench, processes.workers, processes.helpers))
                return await driver.paced_round_trips_ms(rate_per_s, count)

        taken_ms = run_loop(run)
        used_s = _used_s(bench, processes.workers, processes.helpers)
    used_us = {process: (used_s[process] - before[process]) / count * _US for process in used_s}
    return Steady(used_us, percentiles(taken_ms))


def _used_s(bench: Bench, workers: Sequence[Child], supervisors: Sequence[Child]) -> dict[str, float]:
    return {
        "server": cpu_s(bench.server.pid),
        "workers": sum(child.cpu_s() for child in workers),
        "supervisor": sum(child.cpu_s() for child in supervisors),
    }


def sustained(bench: Bench) -> float:
    """Return the single submits per second whose results arrive as fast."""
    team = OurTeam(bench, FREE)
    with team.worker_processes(1) as processes:
        processes.start()

        async def run() -> float:
            async with team.client() as driver:
                return await driver.sustained_per_s(_SUSTAINED_TASKS // (4 if bench.sizes.rounds == 1 else 1))

        return run_loop(run)


def short_handlers(bench: Bench) -> float:
    """Return the tasks per second of a drain whose handlers wait for 5 ms."""
    return drain(bench, OurTeam(bench, SHORT), processes=1).rate_per_s
