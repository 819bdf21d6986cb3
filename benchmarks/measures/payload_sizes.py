"""Drain, submit and latency with large arguments and results, beside the same work of the raw loop and of the peers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import goals
from benchmarks.comparison import OURS, RAW
from benchmarks.drains import drain
from benchmarks.figures import figure_of
from benchmarks.ours.team import OurTeam
from benchmarks.systems import all_systems
from benchmarks.traffic_runs import round_trips_ms, submit_rate
from orchestrator.bench.measures import MANY, ONE_BY_ONE, percentiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.figures import Figure, Goal
    from benchmarks.harness import Bench
    from benchmarks.server_cost import Drain
    from benchmarks.team import Team

SIZES = {10_000: "10 kB", 100_000: "100 kB"}
"""Sizes of the body in arguments and result, with their names. Other measures have small arguments, about 100 B."""
_LARGEST, _NAME_OF_LARGEST = 250_000, "250 kB"
_US = 1e6


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure each size; systems take turns."""
    for payload_bytes, name in SIZES.items():
        yield from _size(bench.with_payload(payload_bytes), payload_bytes, name)
    yield from _largest(bench.with_payload(_LARGEST))


def _size(bench: Bench, payload_bytes: int, name: str) -> Iterator[Figure]:
    rounds = bench.sizes.rounds
    teams = all_systems(bench)
    drains = bench.in_turns(
        {system: partial(_checked_drain, bench, team) for system, team in teams.items()}, rounds=1, rounds_factor=rounds
    )
    compared = partial(_compared, bench, name)
    rates = {system: [one.rate_per_s for one in runs] for system, runs in drains.items()}
    yield from compared(
        "drain, 1 worker process",
        "tasks/s",
        rates,
        to_peer=goals.PAYLOAD_DRAIN_TO_PEER.get(payload_bytes),
        more_is_better=True,
    )
    costs: tuple[tuple[str, str, Callable[[Drain], float], tuple[Goal, ...]], ...] = (
        (
            "server CPU per task, draining",
            "µs",
            lambda one: one.drain_cost.cpu_s / one.tasks * _US,
            goals.at_most_of(goals.PAYLOAD_SERVER_US, payload_bytes),
        ),
        ("server CPU per task, submit", "µs", lambda one: one.load_cost.cpu_s / one.loaded_tasks * _US, ()),
        ("longest call on the server", "ms", lambda one: one.longest_call_ms, (goals.at_most(goals.LONGEST_CALL_MS),)),
        (
            "network per task",
            "bytes",
            lambda one: one.load_cost.net_bytes / one.loaded_tasks + one.drain_cost.net_bytes / one.tasks,
            (),
        ),
    )
    for words, unit, of_one, bounds in costs:
        values = {system: [of_one(one) for one in runs] for system, runs in drains.items()}
        yield from compared(words, unit, values, bounds=bounds)
    submits = bench.in_turns(
        {
            (system, kind): partial(submit_rate, team, kind, team.sizes.submits(kind))
            for kind in (ONE_BY_ONE, MANY)
            for system, team in teams.items()
            if team.has_bulk or kind != MANY
        },
        rounds=1,
        rounds_factor=rounds,
    )
    for kind, words in ((ONE_BY_ONE, "submit, one by one"), (MANY, "submit, in bulk")):
        values = {system: taken for (system, of_kind), taken in submits.items() if of_kind == kind}
        to_peer = goals.PAYLOAD_SUBMIT_TO_PEER.get(payload_bytes)
        yield from compared(words, "tasks/s", values, to_peer=to_peer, more_is_better=True)
    trips = bench.in_turns(
        {system: partial(round_trips_ms, team) for system, team in teams.items()}, rounds=1, rounds_factor=rounds
    )
    for rank in ("p50", "p99"):
        values = {system: [getattr(percentiles(run), rank) for run in runs] for system, runs in trips.items()}
        yield from compared(f"end to end at rest, {rank}", "ms", values)


def _compared(
    bench: Bench,
    size: str,
    words: str,
    unit: str,
    values: Mapping[str, list[float]],
    *,
    bounds: tuple[Goal, ...] = (),
    to_peer: float | None = None,
    more_is_better: bool = False,
) -> Iterator[Figure]:
    comparison = bench.compare(f"{size}: {words}", unit, values, more_is_better=more_is_better)
    if to_peer and (rival := goals.measured_rival(comparison)):
        bounds = (*bounds, goals.at_least_peer(to_peer, rival))
    if ours := values.get(OURS):
        yield figure_of("payload-sizes", f"{size}: {words}", unit, ours, values[RAW], goals=bounds)
    yield figure_of("payload-sizes", f"{size}: {words}, raw loop", unit, values[RAW])


def _checked_drain(bench: Bench, team: Team) -> Drain:
    """Drain, and fail if tasks of ours ended without success."""
    done = drain(bench, team, processes=1)
    if isinstance(team, OurTeam) and (succeeded := team.succeeded()) != done.tasks:
        raise RuntimeError(f"{succeeded} of {done.tasks} tasks succeeded")
    return done


def _largest(bench: Bench) -> Iterator[Figure]:
    """Drain with bodies just below the default limit of arguments, ours and the raw loop."""
    systems: dict[str, Any] = {name: team for name, team in all_systems(bench).items() if name in (OURS, RAW)}
    drains = bench.in_turns({name: partial(_checked_drain, bench, team) for name, team in systems.items()}, rounds=1)
    rates = {system: [one.rate_per_s for one in runs] for system, runs in drains.items()}
    calls = {system: [one.longest_call_ms for one in runs] for system, runs in drains.items()}
    words = f"{_NAME_OF_LARGEST}: drain, 1 worker process"
    if OURS in rates:
        yield figure_of("payload-sizes", words, "tasks/s", rates[OURS], rates[RAW])
        words = f"{_NAME_OF_LARGEST}: longest call on the server"
        yield figure_of("payload-sizes", words, "ms", calls[OURS], calls[RAW])
