"""Drain rate of a full queue, with one worker process and with two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.comparison import OURS, RAW
from benchmarks.drains import WITHOUT_RESULTS, drains_of_all_systems
from benchmarks.figures import Figure, figure_of
from benchmarks.goals import (
    DRAIN_PER_S,
    DRAIN_TO_PEER,
    DRAIN_TO_RAW,
    FASTEST_DRAIN,
    at_least,
    at_least_peer,
    at_least_raw,
    rival,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain with ours, both raw loops and the peers."""
    for processes in (1, 2):
        words = "1 worker process" if processes == 1 else f"{processes} worker processes"
        rates = {
            system: [one.rate_per_s for one in runs] for system, runs in drains_of_all_systems(bench, processes).items()
        }
        raw, bare = rates[RAW], rates.pop(WITHOUT_RESULTS)
        comparison = bench.compare(f"drain, {words}", "tasks/s", rates, more_is_better=True)
        if ours := rates.get(OURS):
            peer = rival(comparison, FASTEST_DRAIN[processes])
            goals = [at_least_raw(DRAIN_TO_RAW[processes]), at_least_peer(DRAIN_TO_PEER[processes], peer)]
            goals += [at_least(DRAIN_PER_S[processes])] if processes in DRAIN_PER_S else []
            yield figure_of("drain", words, "tasks/s", ours, raw, goals=tuple(goals))
        yield figure_of("drain", f"{words}, raw loop with results", "tasks/s", raw)
        yield figure_of("drain", f"{words}, raw loop without results", "tasks/s", bare, raw)
