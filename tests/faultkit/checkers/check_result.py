"""Result of a checker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SLACK_MS: Final = 5
"""Allowed clock difference: a generation that is raised twice within a millisecond runs ahead of the clock."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one checker.

    Attributes:
        invariant: the checked promise.
        checked: number of checked items; 0 proves nothing.
        violations: one sentence each.
    """

    invariant: str
    checked: int
    violations: tuple[str, ...]


def check_result(invariant: str, checked: int, violations: list[str]) -> CheckResult:
    """Return a result with each sentence once."""
    return CheckResult(invariant, checked, tuple(dict.fromkeys(violations)))
