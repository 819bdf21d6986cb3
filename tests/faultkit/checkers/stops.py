"""I13: between the last acknowledgement of a stop and the start that ends it no attempt begins."""

from __future__ import annotations

from typing import Final

from tests.faultkit.checkers.check_result import CheckResult, check_result
from tests.faultkit.checkers.history import AllStopped, History, RunStarted

SLACK_MS: Final = 250
"""An attempt that was let through just before the stop was heard writes its line a little later, on a busy machine."""


def check_stops(history: History) -> CheckResult:
    """Look at every stop that all live workers had acknowledged; all lines are written by clocks of one machine."""
    halts = history.of(AllStopped)
    wrong: list[str] = []
    for at_ms, one in history.lines_of(RunStarted):
        for halt in halts:
            if halt.since_ms + SLACK_MS < at_ms < halt.until_ms:
                late = f"{at_ms - halt.since_ms} ms after all had acknowledged command {halt.command}"
                wrong.append(f"task {one.task} began on {one.worker} {late}")
    return check_result("I13 a stop stops", len(halts), wrong)
