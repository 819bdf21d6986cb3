"""Drain rate of a full queue, with one worker process and with two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.comparison import OURS, RAW
from benchmarks.drains import WITHOUT_RESULTS, drains_of_all_systems
from benchmarks.figures import Figure, figure_of
from benchmarks.goals import FASTEST_DRAIN, at_least_peer, at_least_raw, rival

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench

_SHARES = {1: (1.0, 4.0), 2: (0.9, 3.0)}


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain with ours, both raw loops and the peers."""
    for processes, (raw_share, peer_share) in _SHARES.items():
        words = "1 worker process" if processes == 1 else f"{processes} worker processes"
        rates = {
            system: [one.rate_per_s for one in runs] for system, runs in drains_of_all_systems(bench, processes).items()
        }
        raw, bare = rates[RAW], rates.pop(WITHOUT_RESULTS)
        comparison = bench.compare(f"drain, {words}", "tasks/s", rates, more_is_better=True)
        if ours := rates.get(OURS):
            peer = rival(comparison, FASTEST_DRAIN[processes])
            goals = (at_least_raw(raw_share), at_least_peer(peer_share, peer))
            yield figure_of("drain", words, "tasks/s", ours, raw, goals=goals)
        yield figure_of("drain", f"{words}, raw loop with results", "tasks/s", raw)
        yield figure_of("drain", f"{words}, raw loop without results", "tasks/s", bare, raw)
