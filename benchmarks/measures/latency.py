"""Time from submit to result at rest, where every hop wakes from a blocking read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.comparison import OURS, RAW
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import FASTEST_END_TO_END, LATENCY_TO_PEER, LATENCY_TO_RAW, at_most_peer, at_most_raw, rival
from benchmarks.systems import all_systems
from benchmarks.traffic_runs import round_trips_ms
from orchestrator.bench.measures import percentiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.comparison import Comparison
    from benchmarks.harness import Bench


def measure(bench: Bench) -> Iterator[Figure]:
    """Report percentiles of each round, and the median of the rounds."""
    taken = bench.in_turns({system: partial(round_trips_ms, team) for system, team in all_systems(bench).items()})
    rounds = {system: [percentiles(values) for values in runs] for system, runs in taken.items()}
    for name in ("p50", "p95", "p99"):
        words = f"end to end at rest, {name}"
        values = {system: [getattr(latencies, name) for latencies in runs] for system, runs in rounds.items()}
        comparison = bench.compare(words, "ms", values)
        if ours := values.get(OURS):
            yield figure_of("latency", words, "ms", ours, values[RAW], goals=_goals(name, comparison))
        yield figure_of("latency", f"{words}, raw loop", "ms", values[RAW])


def _goals(name: str, comparison: Comparison) -> tuple[Goal, ...]:
    if name not in FASTEST_END_TO_END:
        return ()
    to_peer = at_most_peer(LATENCY_TO_PEER, rival(comparison, FASTEST_END_TO_END[name]))
    return (at_most_raw(LATENCY_TO_RAW), to_peer) if name == "p50" else (to_peer,)
