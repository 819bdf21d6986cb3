"""A measured figure with its baseline and its goals, and the few statistics that figures are made of."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound for the value of a figure, in its unit, or for its ratio; `text` says where it comes from."""

    text: str
    bound: float
    at_most: bool
    of_ratio: bool = False

    def met_by(self, figure: Figure) -> bool:
        """Whether the figure keeps the bound."""
        measured = figure.ratio if self.of_ratio else figure.value
        assert measured is not None
        return measured <= self.bound if self.at_most else measured >= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the report."""

    measure: str
    name: str
    unit: str
    value: float
    goals: tuple[Goal, ...] = ()
    rounds: tuple[float, ...] = ()
    base_rounds: tuple[float, ...] = ()
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of its base, which is the raw loop as a rule; rounds are compared one by one."""
        if not self.base_rounds or not all(self.base_rounds):
            return None
        return median([value / base for value, base in zip(self.rounds, self.base_rounds, strict=True)])

    @property
    def met(self) -> bool | None:
        """Whether every goal is met; None without a goal."""
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
    """A figure from its rounds and those of what it is compared with."""
    return Figure(measure, name, unit, median(rounds), goals, tuple(rounds), tuple(base))


@dataclass(frozen=True, slots=True)
class Failure:
    """A measure that could not be taken, and why."""

    measure: str
    reason: str


def median(values: Sequence[float]) -> float:
    """The middle value of the rounds."""
    return statistics.median(values)
