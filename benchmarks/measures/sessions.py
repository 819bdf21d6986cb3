"""Cost of a session and of tags on every task, for the server and in drains."""

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
    from benchmarks.server_cost import Drain
    from benchmarks.team import Team

_US: Final = 1e6
SESSIONS: Final = 100
TAGS: Final = 2
MOST_US: Final = 12
MOST_DRAIN_PERCENT: Final = 10


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain tasks of a hundred sessions, also with tags, tasks with a session each, and tasks without sessions."""
    if not bench.ours:
        return
    teams: dict[str, Team] = {
        "without": OurTeam(bench),
        "many": SessionTeam(bench, sessions=SESSIONS),
        "alone": SessionTeam(bench, sessions=bench.sizes.drain_tasks),
        "tags": SessionTeam(bench, sessions=SESSIONS, tags=TAGS),
    }
    drains = bench.in_turns({name: partial(drain, bench, team, processes=1) for name, team in teams.items()})
    if not drains:
        return
    plain = drains["without"]
    names = {"many": f"every task in one of {SESSIONS} sessions", "alone": "every task alone in its session"}
    for team, what in names.items():
        added = [_server_us(one) - _server_us(base) for one, base in zip(drains[team], plain, strict=True)]
        yield figure_of("sessions", f"server CPU that a session adds, {what}", "µs", added, goals=(at_most(MOST_US),))
    what = f"every task in one of {SESSIONS} sessions, with {TAGS} tags"
    added = [_server_us(one) - _server_us(base) for one, base in zip(drains["tags"], plain, strict=True)]
    yield figure_of("sessions", f"server CPU that session and tags add, {what}", "µs", added)
    less = [(1 - one.rate_per_s / base.rate_per_s) * 100 for one, base in zip(drains["tags"], plain, strict=True)]
    yield figure_of(
        "sessions", f"rate of a drain, less than plain, {what}", "%", less, goals=(at_most(MOST_DRAIN_PERCENT),)
    )
    for part, seconds in (("server", _drain_s), ("workers", _workers_s)):
        more = [(seconds(one) / seconds(base) - 1) * 100 for one, base in zip(drains["tags"], plain, strict=True)]
        yield figure_of("sessions", f"CPU of the {part} in a drain, more than plain, {what}", "%", more)


def _server_us(one: Drain) -> float:
    return (one.load_cost.cpu_s / one.loaded_tasks + _drain_s(one)) * _US


def _drain_s(one: Drain) -> float:
    return one.drain_cost.cpu_s / one.tasks


def _workers_s(one: Drain) -> float:
    return one.worker_cpu_s / one.timed_tasks
