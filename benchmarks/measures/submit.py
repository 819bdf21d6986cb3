"""How fast one client submits: one by one, a hundred at once, a thousand in a call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, Goal, figure_of, median
from benchmarks.goals import (
    FASTEST_SUBMIT_100,
    FASTEST_SUBMIT_MANY,
    FASTEST_SUBMIT_ONE,
    Peer,
    at_least_peer,
    at_least_raw,
)
from benchmarks.passes import submit_rate
from benchmarks.sides import both_sides

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from benchmarks.harness import Bench
    from benchmarks.team import Client


@dataclass(frozen=True, slots=True)
class _Traffic:
    name: str
    count: int
    send: Callable[[Client, int], Awaitable[None]]
    peer: Peer
    peer_share: float
    raw_share: float | None = None

    def goals(self, bench: Bench, raw: float) -> tuple[Goal, ...]:
        against_peer = at_least_peer(self.peer_share, bench.peer(self.peer, raw))
        return (against_peer,) if self.raw_share is None else (at_least_raw(self.raw_share), against_peer)


def measure(bench: Bench) -> Iterator[Figure]:
    """Three kinds of traffic; the raw loop's are single XADDs and pipelines of a hundred and a thousand."""
    sizes = bench.sizes
    kinds = (
        _Traffic(
            "one by one",
            sizes.submits_one_by_one,
            lambda client, count: client.submit_one_by_one(count),
            FASTEST_SUBMIT_ONE,
            peer_share=1.0,
            raw_share=0.75,
        ),
        _Traffic(
            "100 at once",
            sizes.submits_at_once,
            lambda client, count: client.submit_at_once(count),
            FASTEST_SUBMIT_100,
            peer_share=1.2,
        ),
        _Traffic(
            "1000 in a call",
            sizes.submits_many,
            lambda client, count: client.submit_many(count),
            FASTEST_SUBMIT_MANY,
            peer_share=2.0,
        ),
    )
    teams = both_sides(bench)
    rates = bench.in_turns(
        {
            (side, kind.name): partial(submit_rate, team, kind.count, kind.send)
            for kind in kinds
            for side, team in teams.items()
        },
        rounds_factor=3,
    )
    for kind in kinds:
        raw = rates["raw", kind.name]
        if ours := rates.get(("ours", kind.name)):
            yield figure_of("submit", kind.name, "tasks/s", ours, raw, goals=kind.goals(bench, median(raw)))
        yield figure_of("submit", f"{kind.name}, raw XADD", "tasks/s", raw)
