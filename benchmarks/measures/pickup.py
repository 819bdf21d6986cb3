"""Time from submit to the start of the handler at 500 tasks a second."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.comparison import OURS, RAW
from benchmarks.figures import Figure, figure_of
from benchmarks.goals import FASTEST_PICK_UP, at_most_peer, rival
from benchmarks.payload import STARTS_FILE_VARIABLE
from benchmarks.systems import all_systems
from benchmarks.traffic_runs import pick_up_waits_ms
from orchestrator.bench.measures import percentiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench

_RATE_PER_S = 500


def measure(bench: Bench) -> Iterator[Figure]:
    """Report percentiles of each round, and the median of the rounds."""
    starts_file = bench.folder / "starts"
    teams = all_systems(bench, {STARTS_FILE_VARIABLE: str(starts_file)})
    run_once = partial(pick_up_waits_ms, rate_per_s=_RATE_PER_S)
    taken = bench.in_turns({system: partial(run_once, team, starts_file) for system, team in teams.items()})
    rounds = {system: [percentiles(values) for values in runs] for system, runs in taken.items()}
    for name, on_record in FASTEST_PICK_UP.items():
        words = f"pick-up at {_RATE_PER_S} tasks/s, {name}"
        values = {system: [getattr(latencies, name) for latencies in runs] for system, runs in rounds.items()}
        comparison = bench.compare(words, "ms", values)
        if ours := values.get(OURS):
            goals = (at_most_peer(1.0, rival(comparison, on_record)),)
            yield figure_of("pickup", words, "ms", ours, values[RAW], goals=goals)
        yield figure_of("pickup", f"{words}, raw loop", "ms", values[RAW])
