"""Cost of a rate limit on every task for the drain rate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.drains import drain
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.systems import our_system

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench
    from benchmarks.team import Team


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain with an agent whose limit never binds, and with the same agent without a limit."""
    teams = {
        f"ours{suffix}": team
        for suffix, limited in (("", False), (" limited", True))
        for team in our_system(bench, limited=limited).values()
    }
    rates = bench.in_turns({name: partial(_rate, bench, team) for name, team in teams.items()})
    if rates:
        goal = Goal("≥ 0.85 x without", 0.85, at_most=False, of_ratio=True)
        name = "1 worker process, a limit on every task"
        yield figure_of("limits", name, "tasks/s", rates["ours limited"], rates["ours"], goals=(goal,))
        yield figure_of("limits", "1 worker process, no limit", "tasks/s", rates["ours"])


def _rate(bench: Bench, team: Team) -> float:
    return drain(bench, team, processes=1).rate_per_s
