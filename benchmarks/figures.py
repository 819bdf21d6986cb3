"""Measured figures with baselines and goals."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.server import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound of the value or of the ratio of a figure; `text` names its source."""

    text: str
    bound: float
    at_most: bool
    of_ratio: bool = False

    def met_by(self, figure: Figure) -> bool:
        """Return True if the figure keeps the bound."""
        measured = figure.ratio if self.of_ratio else figure.value
        assert measured is not None
        return measured <= self.bound if self.at_most else measured >= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the report; `settings` are those of the server."""

    measure: str
    name: str
    unit: str
    value: float
    goals: tuple[Goal, ...] = ()
    rounds: tuple[float, ...] = ()
    base_rounds: tuple[float, ...] = ()
    note: str = ""
    settings: str = EMBEDDED

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of its base, usually the raw loop, compared round by round."""
        if not self.base_rounds or not all(self.base_rounds):
            return None
        return median([value / base for value, base in zip(self.rounds, self.base_rounds, strict=True)])

    @property
    def met(self) -> bool | None:
        """True if every goal is met; None without a goal."""
        return all(goal.met_by(self) for goal in self.goals) if self.goals else None


def figure_of(
    measure: str,
    name: str,
    unit: str,
    rounds: Sequence[float],
    base: Sequence[float] = (),
    *,
    goals: tuple[Goal, ...] = (),
) -> Figure:
    """Build a figure from its rounds and those of its base."""
    return Figure(measure, name, unit, median(rounds), goals, tuple(rounds), tuple(base))


@dataclass(frozen=True, slots=True)
class Failure:
    """A measure that failed, and the reason."""

    measure: str
    reason: str


def median(values: Sequence[float]) -> float:
    """Return the median of the rounds."""
    return statistics.median(values)
