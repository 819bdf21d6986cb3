"""I5: the starts that a limit governs stay within it in every window, by the server's clock."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tests.faultkit.checkers.check_result import CheckResult, check_result
from tests.faultkit.checkers.history import History, RunStarted

if TYPE_CHECKING:
    from tests.faultkit.checkers.rules import Rules

SLACK_MS: Final = 5
"""A generation that was raised twice within a millisecond is ahead of the clock by as much."""


def check_rates(history: History, rules: Rules) -> CheckResult:
    """Look at every window that ends with a start. What was granted and never began is not seen, so this is mild."""
    starts = defaultdict[str, dict[tuple[str, str], int]](dict)
    for one in history.of(RunStarted):
        for limit in one.limits:
            starts[limit][one.task, one.generation] = one.granted_ms
    wrong: list[str] = []
    for name, rule in rules.limits.items():
        stamps = sorted(starts[name].values())
        for first, last in zip(stamps, stamps[rule.starts :], strict=False):
            if last - first < rule.window_ms - SLACK_MS:
                wrong.append(
                    f"limit {name}: {rule.starts + 1} starts from {first} to {last}, within {last - first} ms; "
                    f"{rule.starts} are allowed in {rule.window_ms}"
                )
    return check_result("I5 limits in every window", sum(len(starts[name]) for name in rules.limits), wrong)
