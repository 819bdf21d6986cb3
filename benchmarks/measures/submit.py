"""Submit rate of one client: one by one, a hundred at once, a thousand in a call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.comparison import OURS, RAW
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import (
    FASTEST_SUBMIT_AT_ONCE,
    FASTEST_SUBMIT_MANY,
    FASTEST_SUBMIT_ONE,
    SUBMIT_AT_ONCE_TO_PEER,
    SUBMIT_MANY_TO_PEER,
    SUBMIT_ONE_TO_PEER,
    OnRecord,
    at_least_peer,
    at_least_raw,
    rival,
)
from benchmarks.systems import all_systems
from benchmarks.traffic_runs import submit_rate
from orchestrator.bench.measures import AT_ONCE, MANY, ONE_BY_ONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.comparison import Comparison
    from benchmarks.harness import Bench


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    peer: OnRecord
    peer_share: float
    raw_share: float | None = None

    def goals(self, comparison: Comparison) -> tuple[Goal, ...]:
        against_peer = at_least_peer(self.peer_share, rival(comparison, self.peer))
        return (against_peer,) if self.raw_share is None else (at_least_raw(self.raw_share), against_peer)


_KINDS = (
    _Kind(ONE_BY_ONE, FASTEST_SUBMIT_ONE, peer_share=SUBMIT_ONE_TO_PEER, raw_share=0.75),
    _Kind(AT_ONCE, FASTEST_SUBMIT_AT_ONCE, peer_share=SUBMIT_AT_ONCE_TO_PEER),
    _Kind(MANY, FASTEST_SUBMIT_MANY, peer_share=SUBMIT_MANY_TO_PEER),
)


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure three kinds of traffic; the raw loop uses XADDs and pipelines of a hundred and a thousand."""
    rates = bench.in_turns(
        {
            (system, kind.name): partial(submit_rate, team, kind.name, team.sizes.submits(kind.name))
            for kind in _KINDS
            for system, team in all_systems(bench).items()
            if team.has_bulk or kind.name != MANY
        },
        rounds_factor=3,
    )
    for kind in _KINDS:
        of_kind = {system: values for (system, name), values in rates.items() if name == kind.name}
        comparison = bench.compare(f"submit, {kind.name}", "tasks/s", of_kind, more_is_better=True)
        raw = of_kind[RAW]
        if ours := of_kind.get(OURS):
            yield figure_of("submit", kind.name, "tasks/s", ours, raw, goals=kind.goals(comparison))
        yield figure_of("submit", f"{kind.name}, raw XADD", "tasks/s", raw)
