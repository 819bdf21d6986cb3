"""Goals of the project: absolute, against the raw loop of the same run, or against the fastest peer.

Peers are not part of a run. Each was measured once beside the raw loop, so its figure is carried over to this
machine and this moment by the ratio of the two raw loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.figures import Goal


@dataclass(frozen=True, slots=True)
class Peer:
    """The best figure among the peers, and the raw loop's figure beside it."""

    name: str
    value: float
    raw: float

    def here(self, raw_now: float) -> float:
        """What the peer would show in this run, as far as the raw loop tells."""
        return self.value * raw_now / self.raw


FASTEST_DRAIN_1 = Peer("ardiq", value=5407, raw=20236)
FASTEST_DRAIN_2 = Peer("ardiq", value=7094, raw=26761)
FASTEST_SUBMIT_ONE = Peer("dramatiq", value=4921, raw=7263)
FASTEST_SUBMIT_100 = Peer("ardiq", value=21348, raw=25956)
FASTEST_SUBMIT_MANY = Peer("ardiq", value=22726, raw=25956)
FASTEST_END_TO_END_P50 = Peer("ardiq", value=3.0, raw=1.3)
FASTEST_END_TO_END_P99 = Peer("ardiq", value=3.9, raw=2.4)
FASTEST_PICK_UP_P50 = Peer("huey", value=0.9, raw=0.4)
FASTEST_PICK_UP_P99 = Peer("ardiq", value=5.5, raw=4.5)


def at_least(bound: float) -> Goal:
    """A plain lower bound."""
    return Goal(f"≥ {bound:g}", bound, at_most=False)


def at_most(bound: float) -> Goal:
    """A plain upper bound."""
    return Goal(f"≤ {bound:g}", bound, at_most=True)


def at_least_raw(factor: float, raw: float) -> Goal:
    """At least so many times the raw loop."""
    return Goal(f"≥ {factor:g} x raw", factor * raw, at_most=False)


def at_most_raw(factor: float, raw: float) -> Goal:
    """At most so many times the raw loop."""
    return Goal(f"≤ {factor:g} x raw", factor * raw, at_most=True)


def at_least_peer(factor: float, peer: Peer, raw: float) -> Goal:
    """At least so many times the fastest peer, carried over to this run."""
    return Goal(f"≥ {factor:g} x {peer.name} ({peer.here(raw):,.0f})", factor * peer.here(raw), at_most=False)


def at_most_peer(factor: float, peer: Peer, raw: float) -> Goal:
    """At most so many times the fastest peer, carried over to this run."""
    return Goal(f"≤ {factor:g} x {peer.name} ({peer.here(raw):.1f})", factor * peer.here(raw), at_most=True)
