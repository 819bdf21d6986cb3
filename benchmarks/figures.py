"""A measured figure with its baseline and its goals, and the few statistics that figures are made of."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound in the unit of its figure; `text` says where the bound comes from."""

    text: str
    bound: float
    at_most: bool

    def met_by(self, value: float) -> bool:
        """Whether the value keeps the bound."""
        return value <= self.bound if self.at_most else value >= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the report."""

    measure: str
    name: str
    unit: str
    value: float
    raw: float | None = None
    goals: tuple[Goal, ...] = ()
    rounds: tuple[float, ...] = ()
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of the raw loop's, of the same run."""
        return self.value / self.raw if self.raw else None

    @property
    def met(self) -> bool | None:
        """Whether every goal is met; None without a goal."""
        return all(goal.met_by(self.value) for goal in self.goals) if self.goals else None


@dataclass(frozen=True, slots=True)
class Failure:
    """A measure that could not be taken, and why."""

    measure: str
    reason: str


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles of one pass, in milliseconds."""

    p50: float
    p95: float
    p99: float
    count: int = field(compare=False)


def percentiles(values_ms: Sequence[float]) -> Latencies:
    """Percentiles by the nearest rank."""
    ordered = sorted(values_ms)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Latencies(rank(0.50), rank(0.95), rank(0.99), len(ordered))


def median(values: Sequence[float]) -> float:
    """The middle value of the rounds."""
    return statistics.median(values)
