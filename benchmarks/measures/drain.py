"""How fast a full queue empties, with one worker process and with two."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.drains import drain
from benchmarks.figures import Figure, figure_of, median
from benchmarks.goals import FASTEST_DRAIN_1, FASTEST_DRAIN_2, at_least_peer, at_least_raw
from benchmarks.raw.team import RawTeam
from benchmarks.sides import both_sides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench
    from benchmarks.team import Team

_GOALS = {1: (1.0, 4.0, FASTEST_DRAIN_1), 2: (0.9, 3.0, FASTEST_DRAIN_2)}


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain the same number of tasks with ours and with both raw loops."""
    teams = {**both_sides(bench), "bare": RawTeam(bench, with_results=False)}
    passes = {
        (side, processes): partial(_rate, bench, teams[side], processes) for processes in _GOALS for side in teams
    }
    rates = bench.in_turns(passes)
    for processes, (raw_share, peer_share, peer) in _GOALS.items():
        words = "1 worker process" if processes == 1 else f"{processes} worker processes"
        raw = rates["raw", processes]
        if ours := rates.get(("ours", processes)):
            goals = (at_least_raw(raw_share), at_least_peer(peer_share, bench.peer(peer, median(raw))))
            yield figure_of("drain", words, "tasks/s", ours, raw, goals=goals)
        yield figure_of("drain", f"{words}, raw loop with results", "tasks/s", raw)
        yield figure_of("drain", f"{words}, raw loop without results", "tasks/s", rates["bare", processes], raw)


def _rate(bench: Bench, team: Team, processes: int) -> float:
    return drain(bench, team, tasks=bench.sizes.drain_tasks, processes=processes).rate_per_s
