"""From submit to the start of the handler while 500 tasks a second come in."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, figure_of, median, percentiles
from benchmarks.goals import FASTEST_PICK_UP_P50, FASTEST_PICK_UP_P99, at_most_peer
from benchmarks.passes import pick_up_waits_ms
from benchmarks.payload import STARTS_FILE_VARIABLE
from benchmarks.sides import both_sides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench

_RATE_PER_S = 500
_GOALS = {"p50": FASTEST_PICK_UP_P50, "p99": FASTEST_PICK_UP_P99}


def measure(bench: Bench) -> Iterator[Figure]:
    """Percentiles of each round, and the median of the rounds."""
    starts_file = bench.folder / "starts"
    teams = both_sides(bench, {STARTS_FILE_VARIABLE: str(starts_file)})
    one_pass = partial(pick_up_waits_ms, rate_per_s=_RATE_PER_S, duration_s=bench.sizes.pick_up_s)
    taken = bench.in_turns({side: partial(one_pass, team, starts_file) for side, team in teams.items()})
    rounds = {side: [percentiles(values) for values in passes] for side, passes in taken.items()}
    for name, peer in _GOALS.items():
        values = {side: [getattr(latencies, name) for latencies in passes] for side, passes in rounds.items()}
        goals = (at_most_peer(1.0, bench.peer(peer, median(values["raw"]))),)
        words = f"pick-up at {_RATE_PER_S} tasks/s, {name}"
        if ours := values.get("ours"):
            yield figure_of("pickup", words, "ms", ours, values["raw"], goals=goals)
        yield figure_of("pickup", f"{words}, raw loop", "ms", values["raw"])
