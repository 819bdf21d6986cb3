"""I5, I9, I13: starts stay within limits, resume within bounds after faults, and pause during stops."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tests.faultkit.checkers.check_result import SLACK_MS, CheckResult, check_result
from tests.faultkit.checkers.history import AllStopped, FaultsEnded, History, RunEnded, RunStarted, SubmitAccepted

if TYPE_CHECKING:
    from tests.faultkit.checkers.final_state import FinalState
    from tests.faultkit.checkers.rules import Rules
STOP_SLACK_MS: Final = 250
"""An attempt that passed just before the stop arrived writes its line a little later on a busy machine."""


def check_recovery(history: History, final: FinalState, rules: Rules) -> CheckResult:
    """Check every moment at which all faults had ended."""
    accepted_ms: dict[str, int] = {}
    for at_ms, one in history.lines_of(SubmitAccepted):
        accepted_ms.setdefault(one.task, at_ms)
    by_task = defaultdict[str, list[RunStarted]](list)
    for begun in history.of(RunStarted):
        by_task[begun.task].append(begun)
    stopped = {one.run for one in history.of(RunEnded)}
    healed = [one.server_ms for one in history.of(FaultsEnded)]
    wrong: list[str] = []
    for healed_ms in healed:
        for id_, at_ms in accepted_ms.items():
            task = final.tasks.get(id_)
            if task is None or task.ended_ms is None or at_ms > healed_ms or task.ended_ms <= healed_ms:
                continue
            took_ms = task.ended_ms - healed_ms
            if took_ms > rules.bounds.drained_ms:
                wrong.append(f"task {id_} ({task.op}) ended only {took_ms} ms after everything had healed")
            restarted_ms = _restarted_ms(by_task[id_], stopped, healed_ms, task.ended_ms)
            if restarted_ms - healed_ms > rules.bounds.restarted_ms:
                wrong.append(
                    f"task {id_} ({task.op}), whose worker had died, began again only {restarted_ms - healed_ms} ms "
                    "after everything had healed"
                )
    return check_result("I9 recovery within the bounds", len(healed), wrong)


def _restarted_ms(attempts: list[RunStarted], stopped: set[str], healed_ms: int, ended_ms: int) -> int:
    """Return when an orphaned attempt was followed by the next one; the end of the faults if there was none."""
    attempts = sorted(attempts, key=lambda one: one.granted_ms)
    before = [one for one in attempts if one.granted_ms <= healed_ms]
    after = [one for one in attempts if one.granted_ms > healed_ms]
    if not before or before[-1].run in stopped:
        return healed_ms
    return min([ended_ms, *(one.granted_ms for one in after)])


def check_stops(history: History) -> CheckResult:
    """Check every stop that all live workers acknowledged; all lines have clocks of one machine."""
    halts = history.of(AllStopped)
    wrong: list[str] = []
    for at_ms, one in history.lines_of(RunStarted):
        for halt in halts:
            if halt.since_ms + STOP_SLACK_MS < at_ms < halt.until_ms:
                late = f"{at_ms - halt.since_ms} ms after all had acknowledged command {halt.command}"
                wrong.append(f"task {one.task} began on {one.worker} {late}")
    return check_result("I13 a stop stops", len(halts), wrong)


def check_rates(history: History, rules: Rules) -> CheckResult:
    """Check every window that ends with a start. Grants that never began are not seen."""
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
