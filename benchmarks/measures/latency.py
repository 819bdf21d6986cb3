"""From submit to result when nothing else happens: every hop waits in a blocking read and must wake up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, figure_of, median, percentiles
from benchmarks.goals import FASTEST_END_TO_END_P50, FASTEST_END_TO_END_P99, at_most_peer, at_most_raw
from benchmarks.passes import round_trips_ms
from benchmarks.sides import both_sides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench


def measure(bench: Bench) -> Iterator[Figure]:
    """Percentiles of each round, and the median of the rounds."""
    taken = bench.in_turns(
        {side: partial(round_trips_ms, team, bench.sizes.round_trips) for side, team in both_sides(bench).items()}
    )
    rounds = {side: [percentiles(values) for values in passes] for side, passes in taken.items()}
    for name in ("p50", "p95", "p99"):
        values = {side: [getattr(latencies, name) for latencies in passes] for side, passes in rounds.items()}
        raw = median(values["raw"])
        goals = {
            "p50": (at_most_raw(1.8), at_most_peer(0.75, bench.peer(FASTEST_END_TO_END_P50, raw))),
            "p95": (),
            "p99": (at_most_peer(1.0, bench.peer(FASTEST_END_TO_END_P99, raw)),),
        }[name]
        if ours := values.get("ours"):
            yield figure_of("latency", f"end to end at rest, {name}", "ms", ours, values["raw"], goals=goals)
        yield figure_of("latency", f"end to end at rest, {name}, raw loop", "ms", values["raw"])
