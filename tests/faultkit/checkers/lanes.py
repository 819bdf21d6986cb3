"""I12: tasks of one lane run one after another, and in the order in which they were submitted."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tests.faultkit.checkers.check_result import CheckResult, check_result
from tests.faultkit.checkers.history import History, RunStarted

if TYPE_CHECKING:
    from tests.faultkit.checkers.final_state import FinalState
    from tests.faultkit.checkers.rules import Rules

SLACK_MS: Final = 5


def check_lanes(history: History, final: FinalState, rules: Rules) -> CheckResult:
    """Judge lanes whose tasks were submitted by one client in the order of their ids.

    From the moment at which the first attempt of a task was assigned until its end no other task of its lane may be
    assigned. A task whose attempts left no trace was cancelled, or expired, before it began.
    """
    first_ms: dict[str, int] = {}
    for one in history.of(RunStarted):
        first_ms[one.task] = min(one.assigned_ms, first_ms.get(one.task, one.assigned_ms))
    lanes: dict[str, list[tuple[int, str]]] = {}
    for task in final.tasks.values():
        if task.lane is not None and task.id in first_ms:
            lanes.setdefault(task.lane, []).append((first_ms[task.id], task.id))
    wrong: list[str] = []
    for lane, members in lanes.items():
        members.sort()
        for (_, before), (began_ms, after) in pairwise(members):
            ended_ms = final.tasks[before].ended_ms
            if ended_ms is None or began_ms < ended_ms - SLACK_MS:
                wrong.append(f"lane {lane}: task {after} was assigned at {began_ms}, {before} ended at {ended_ms}")
            if before > after and not lane.startswith(rules.steered_lanes):
                wrong.append(f"lane {lane}: task {before} ran before {after}, which was submitted earlier")
    return check_result("I12 lanes keep their order", sum(map(len, lanes.values())), wrong)
