"""Goals of the project: absolute, against the raw loop of the same run, or against the fastest peer.

Peers of this run count with their measured values. Values of other peers are on record from a day when each ran beside
the raw loop, and are scaled by the ratio of that day's raw loop to this run's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.comparison import RAW
from benchmarks.figures import Goal
from benchmarks.server import EMBEDDED, STOCK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.comparison import Comparison

# Small arguments and results; factors are those of the fastest peer or of the raw loop with results.
DRAIN_TO_PEER: Final = {1: 4.0, 2: 3.0}
DRAIN_TO_RAW: Final = {1: 1.5, 2: 1.2}
DRAIN_PER_S: Final = {2: 55_000}
SUBMIT_ONE_TO_PEER: Final = 1.2
SUBMIT_AT_ONCE_TO_PEER: Final = 3.0
SUBMIT_MANY_TO_PEER: Final = 1.7
LATENCY_TO_PEER: Final = 0.9
LATENCY_TO_RAW: Final = 1.45
WHOLE_LIFE_SERVER_US: Final = 20
WORKER_S_PER_1000: Final = 0.02

# By the size of arguments and result in bytes.
PAYLOAD_DRAIN_TO_PEER: Final = {10_000: 1.5, 100_000: 1.0}
PAYLOAD_SUBMIT_TO_PEER: Final = {100_000: 1.0}
PAYLOAD_SERVER_US: Final = {100_000: 130}
LONGEST_CALL_MS: Final = 2.0

QUEUED_BYTES: Final = {EMBEDDED: 380, STOCK: 400}
ENDED_BYTES: Final = 350

# Single submits at a steady rate: server, workers and supervisor, in µs of processor time per task.
STEADY_PER_S: Final = 2_000
STEADY_US: Final = {"server": 90, "workers": 60, "supervisor": 15}
SUSTAINED_PER_S: Final = 15_000

# Handlers of 5 ms in 200 slots.
SHORT_HANDLERS_PER_S: Final = 32_000

# A skill with `process=True`: seconds until the first result by number of slots, and MB of a process.
FIRST_RESULT_S: Final = {25: 0.7, 100: 1.5}
PROCESS_PSS_MB: Final = 15

# A thousand agents in one worker process at rest; the drain of five hundred beside that of one.
AGENTS_CALLS_PER_S: Final = 20
AGENTS_CONNECTIONS: Final = 3
AGENTS_DRAIN_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Rival:
    """The peer to beat in this run."""

    value: float
    words: str


@dataclass(frozen=True, slots=True)
class OnRecord:
    """Best figure among all peers of that day, and the raw loop's figure."""

    peer: str
    value: float
    raw: float

    def carried_over(self, raw_now: float) -> Rival:
        """Scale the figure to this run by the raw loop."""
        return Rival(self.value * raw_now / self.raw, f"{self.peer}, carried over")


FASTEST_DRAIN = {1: OnRecord("ardiq", value=5407, raw=20236), 2: OnRecord("ardiq", value=7094, raw=26761)}
FASTEST_SUBMIT_ONE = OnRecord("dramatiq", value=4921, raw=7263)
FASTEST_SUBMIT_AT_ONCE = OnRecord("ardiq", value=21348, raw=64746)
FASTEST_SUBMIT_MANY = OnRecord("ardiq", value=22726, raw=64746)
FASTEST_END_TO_END = {"p50": OnRecord("ardiq", value=3.0, raw=1.3), "p99": OnRecord("ardiq", value=3.9, raw=2.4)}
FASTEST_PICK_UP = {"p50": OnRecord("huey", value=0.9, raw=0.4), "p99": OnRecord("ardiq", value=5.5, raw=0.9)}


def rival(comparison: Comparison, on_record: OnRecord) -> Rival:
    """Return the fastest peer of this run.

    A recorded peer that is not measured now counts, scaled, if it leads: a goal must not become easier because a peer
    could not be installed.
    """
    raw = comparison.value(RAW)
    assert raw is not None
    carried_over = on_record.carried_over(raw)
    best = comparison.best_peer
    if best is None:
        return carried_over
    value = comparison.value(best)
    assert value is not None
    measured = Rival(value, f"{best}, the fastest peer")
    if comparison.value(on_record.peer) is not None:
        return measured
    harder = max if comparison.more_is_better else min
    return harder(measured, carried_over, key=lambda one: one.value)


def measured_rival(comparison: Comparison) -> Rival | None:
    """Return the fastest peer of this run, or None without peers."""
    best = comparison.best_peer
    value = comparison.value(best) if best else None
    return None if value is None else Rival(value, f"{best}, the fastest peer")


def at_most_of(bounds: Mapping[int, float], key: int) -> tuple[Goal, ...]:
    """Return the upper bound of this key, if there is one."""
    return (at_most(bounds[key]),) if key in bounds else ()


def at_most(bound: float) -> Goal:
    """Return an upper bound."""
    return Goal(f"≤ {bound:g}", bound, at_most=True)


def at_least(bound: float) -> Goal:
    """Return a lower bound."""
    return Goal(f"≥ {bound:g}", bound, at_most=False)


def at_least_raw(factor: float) -> Goal:
    """Return a lower bound as a multiple of the raw loop."""
    return Goal(f"≥ {factor:g} x raw", factor, at_most=False, of_ratio=True)


def at_most_raw(factor: float) -> Goal:
    """Return an upper bound as a multiple of the raw loop."""
    return Goal(f"≤ {factor:g} x raw", factor, at_most=True, of_ratio=True)


def at_least_peer(factor: float, peer: Rival) -> Goal:
    """Return a lower bound as a multiple of the fastest peer."""
    return Goal(f"≥ {factor:g} x {peer.words} ({peer.value:,.0f})", factor * peer.value, at_most=False)


def at_most_peer(factor: float, peer: Rival) -> Goal:
    """Return an upper bound as a multiple of the fastest peer."""
    return Goal(f"≤ {factor:g} x {peer.words} ({peer.value:.2f})", factor * peer.value, at_most=True)
