"""Goals of the project: absolute, against the raw loop of the same run, or against the fastest peer.

Peers are measured with `--peers`. Otherwise their figures are carried over from the day when each was measured beside
the raw loop: by the ratio of that day's raw loop to this run's.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.figures import Goal


@dataclass(frozen=True, slots=True)
class PeerHere:
    """A peer's figure as it counts in this run."""

    value: float
    words: str


@dataclass(frozen=True, slots=True)
class Peer:
    """The best figure among the peers, and the raw loop's figure beside it."""

    figure: str
    name: str
    value: float
    raw: float

    def __str__(self) -> str:
        return f"{self.name}, {self.figure}"

    def carried_over(self, raw_now: float) -> PeerHere:
        """What the peer would show in this run, as far as the raw loop tells."""
        return PeerHere(self.value * raw_now / self.raw, f"{self.name}, carried over")


FASTEST_DRAIN_1 = Peer("drain, 1 worker process", "ardiq", value=5407, raw=20236)
FASTEST_DRAIN_2 = Peer("drain, 2 worker processes", "ardiq", value=7094, raw=26761)
FASTEST_SUBMIT_ONE = Peer("submit one by one", "dramatiq", value=4921, raw=7263)
FASTEST_SUBMIT_100 = Peer("submit 100 at once", "ardiq", value=21348, raw=64746)
FASTEST_SUBMIT_MANY = Peer("submit 1000 in a call", "ardiq", value=22726, raw=64746)
FASTEST_END_TO_END_P50 = Peer("end to end at rest, p50", "ardiq", value=3.0, raw=1.3)
FASTEST_END_TO_END_P99 = Peer("end to end at rest, p99", "ardiq", value=3.9, raw=2.4)
FASTEST_PICK_UP_P50 = Peer("pick-up at 500 tasks/s, p50", "huey", value=0.9, raw=0.4)
FASTEST_PICK_UP_P99 = Peer("pick-up at 500 tasks/s, p99", "ardiq", value=5.5, raw=0.9)


def at_least(bound: float) -> Goal:
    """A plain lower bound."""
    return Goal(f"≥ {bound:g}", bound, at_most=False)


def at_most(bound: float) -> Goal:
    """A plain upper bound."""
    return Goal(f"≤ {bound:g}", bound, at_most=True)


def at_least_raw(factor: float) -> Goal:
    """At least so many times the raw loop."""
    return Goal(f"≥ {factor:g} x raw", factor, at_most=False, of_ratio=True)


def at_most_raw(factor: float) -> Goal:
    """At most so many times the raw loop."""
    return Goal(f"≤ {factor:g} x raw", factor, at_most=True, of_ratio=True)


def at_least_peer(factor: float, peer: PeerHere) -> Goal:
    """At least so many times the fastest peer."""
    return Goal(f"≥ {factor:g} x {peer.words} ({peer.value:,.0f})", factor * peer.value, at_most=False)


def at_most_peer(factor: float, peer: PeerHere) -> Goal:
    """At most so many times the fastest peer."""
    return Goal(f"≤ {factor:g} x {peer.words} ({peer.value:.2f})", factor * peer.value, at_most=True)
