"""Cost of a lane on every task for the drain rate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.drains import drain
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.ours.team import LanedTeam, OurTeam

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench
    from benchmarks.team import Team

LANES: Final = 1000
"""More than run at once, so that tasks wait for no lane and the figure shows the overhead."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain tasks in a thousand lanes, tasks alone in their lanes, and tasks without lanes."""
    if not bench.ours:
        return
    teams: dict[str, Team] = {
        "without": OurTeam(bench),
        "many": LanedTeam(bench, lanes=LANES),
        "alone": LanedTeam(bench, lanes=bench.sizes.drain_tasks),
    }
    rates = bench.in_turns({name: partial(_rate, bench, team) for name, team in teams.items()})
    if rates:
        goal = Goal("≥ 0.85 x without", 0.85, at_most=False, of_ratio=True)
        names = {"many": f"every task in one of {LANES} lanes", "alone": "every task alone in its lane"}
        for team, what in names.items():
            name = f"1 worker process, {what}"
            yield figure_of("lanes", name, "tasks/s", rates[team], rates["without"], goals=(goal,))
        yield figure_of("lanes", "1 worker process, no lane", "tasks/s", rates["without"])


def _rate(bench: Bench, team: Team) -> float:
    return drain(bench, team, processes=1).rate_per_s
