"""What every measure is given: the server, the sizes of this run, and passes of both sides in turns."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from benchmarks.goals import PeerHere

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from redis import Redis

    from benchmarks.goals import Peer
    from benchmarks.server import Server

K = TypeVar("K", bound="str | tuple[str, int] | tuple[str, str] | Peer")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; the quick ones are for a first look, their figures are rougher."""

    rounds: int
    drain_tasks: int
    submits_one_by_one: int
    submits_at_once: int
    submits_many: int
    round_trips: int
    pick_up_s: float
    rest_s: float


FULL = Sizes(
    rounds=3,
    drain_tasks=50_000,
    submits_one_by_one=3_000,
    submits_at_once=10_000,
    submits_many=25_000,
    round_trips=300,
    pick_up_s=4.0,
    rest_s=20.0,
)
QUICK = Sizes(
    rounds=1,
    drain_tasks=10_000,
    submits_one_by_one=1_000,
    submits_at_once=5_000,
    submits_many=10_000,
    round_trips=150,
    pick_up_s=2.0,
    rest_s=6.0,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of the benchmarks."""

    server: Server
    meter: Redis
    sizes: Sizes
    folder: Path
    ours: bool = True
    measured_peers: dict[Peer, float] = field(default_factory=dict)

    def peer(self, reference: Peer, raw: float) -> PeerHere:
        """The peer as this run measured it, else as the raw loop carries it over from another day."""
        measured = self.measured_peers.get(reference)
        return reference.carried_over(raw) if measured is None else PeerHere(measured, "the fastest peer")

    def clean(self) -> None:
        """Empty the server between two passes."""
        self.meter.flushall(asynchronous=False)

    def in_turns(self, passes: Mapping[K, Callable[[], T]], *, rounds_factor: int = 1) -> dict[K, list[T]]:
        """Run every pass once per round, so that a noisy moment of the machine hits all sides alike.

        Args:
            passes: what to run, by name.
            rounds_factor: more rounds than usual, for short passes that the scheduler treats now so, now otherwise.
        """
        rounds = self.sizes.rounds * rounds_factor
        taken: dict[K, list[T]] = {name: [] for name in passes}
        for number in range(1, rounds + 1):
            for name, one_pass in passes.items():
                words = " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
                say(f"  {words}, round {number} of {rounds}")
                self.clean()
                taken[name].append(one_pass())
        self.clean()
        return taken


def say(line: str) -> None:
    """Show progress; the report alone goes to the standard output."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
