"""What a rate limit on every task takes off the drain rate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.drains import drain
from benchmarks.figures import Figure, Goal, median
from benchmarks.sides import our_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench
    from benchmarks.team import Team


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain with an agent that has a limit which never binds, beside the same agent without one."""
    teams = {
        f"ours{suffix}": team
        for suffix, limited in (("", False), (" limited", True))
        for team in our_side(bench, limited=limited).values()
    }
    rates = bench.in_turns({name: partial(_rate, bench, team) for name, team in teams.items()})
    if rates:
        free, limited = rates["ours"], rates["ours limited"]
        goal = Goal("≥ 0.85 x without", 0.85 * median(free), at_most=False)
        note = f"without a limit {median(free):,.0f}"
        yield Figure(
            "limits",
            "1 worker process, a limit on every task",
            "tasks/s",
            median(limited),
            None,
            (goal,),
            tuple(limited),
            note,
        )


def _rate(bench: Bench, team: Team) -> float:
    return drain(bench, team, tasks=bench.sizes.drain_tasks, processes=1).rate_per_s
