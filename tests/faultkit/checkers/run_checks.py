"""Runs all checkers; a run fails if one of them had nothing to check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faultkit.checkers.endings import check_dead_letters, check_endings, check_innocents
from tests.faultkit.checkers.keyspace import check_keys
from tests.faultkit.checkers.kills import check_ends_after_kills, check_fresh_after_kills
from tests.faultkit.checkers.order import check_lanes, check_order
from tests.faultkit.checkers.output import check_output
from tests.faultkit.checkers.ownership import check_leases, check_ownership
from tests.faultkit.checkers.timing import check_rates, check_recovery, check_stops
from tests.faultkit.checkers.total import check_total

if TYPE_CHECKING:
    from tests.faultkit.checkers.check_result import CheckResult
    from tests.faultkit.checkers.final_state import FinalState
    from tests.faultkit.checkers.history import History
    from tests.faultkit.checkers.rules import Rules


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Results of all checkers."""

    findings: tuple[CheckResult, ...]

    @property
    def violations(self) -> list[str]:
        """One sentence each, with the promise before it."""
        return [f"{one.invariant}: {text}" for one in self.findings for text in one.violations]

    @property
    def unchecked(self) -> list[str]:
        """Promises that the run does not show."""
        return [one.invariant for one in self.findings if not one.checked]

    @property
    def passed(self) -> bool:
        """True if everything was checked without violations."""
        return not self.violations and not self.unchecked

    def __str__(self) -> str:
        rows = [
            f"{one.invariant:<40} {one.checked:>7} judged, {len(one.violations)} violations" for one in self.findings
        ]
        return "\n".join(rows)


def run_checks(history: History, final: FinalState, rules: Rules) -> CheckReport:
    """Check a drained run."""
    return CheckReport(
        (
            check_total(history, final, rules),
            check_endings(history, final),
            check_output(history, final, rules),
            check_ownership(history, final),
            check_rates(history, rules),
            check_order(history, final, rules),
            check_leases(history),
            check_stops(history),
            check_recovery(history, final, rules),
            check_keys(final, rules),
            check_dead_letters(final, rules),
            check_lanes(history, final, rules),
            check_ends_after_kills(history, final, rules),
            check_fresh_after_kills(history, final, rules),
            check_innocents(final, rules),
        )
    )
