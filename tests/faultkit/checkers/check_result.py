"""What a checker answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SLACK_MS: Final = 5
"""Allowed clock difference: a generation that is raised twice within a millisecond runs ahead of the clock."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The judgement of one checker.

    Attributes:
        invariant: which promise was judged.
        checked: over how many things it was judged; a run that judged nothing shows nothing.
        violations: a sentence each.
    """

    invariant: str
    checked: int
    violations: tuple[str, ...]


def check_result(invariant: str, checked: int, violations: list[str]) -> CheckResult:
    """Make a finding of a list that was gathered; each sentence once."""
    return CheckResult(invariant, checked, tuple(dict.fromkeys(violations)))
