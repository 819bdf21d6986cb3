"""Cost of a session on every task for the server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.drains import drain
from benchmarks.figures import Figure, figure_of
from benchmarks.goals import at_most
from benchmarks.ours.team import OurTeam, SessionTeam

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench
    from benchmarks.team import Team

_US: Final = 1e6
SESSIONS: Final = 100
MOST_US: Final = 12


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain tasks of a hundred sessions, tasks with a session each, and tasks without sessions."""
    if not bench.ours:
        return
    teams: dict[str, Team] = {
        "without": OurTeam(bench),
        "many": SessionTeam(bench, sessions=SESSIONS),
        "alone": SessionTeam(bench, sessions=bench.sizes.drain_tasks),
    }
    costs = bench.in_turns({name: partial(_server_us, bench, team) for name, team in teams.items()})
    if costs:
        names = {"many": f"every task in one of {SESSIONS} sessions", "alone": "every task alone in its session"}
        for team, what in names.items():
            added = [cost - plain for cost, plain in zip(costs[team], costs["without"], strict=True)]
            yield figure_of(
                "sessions", f"server CPU that a session adds, {what}", "µs", added, goals=(at_most(MOST_US),)
            )


def _server_us(bench: Bench, team: Team) -> float:
    one = drain(bench, team, processes=1)
    return (one.load_cost.cpu_s / one.loaded_tasks + one.drain_cost.cpu_s / one.tasks) * _US
