"""I6, I12: a task overtakes no task of better priority, and none of its own lane."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tests.faultkit.checkers.check_result import SLACK_MS, CheckResult, check_result
from tests.faultkit.checkers.history import History, RunStarted

if TYPE_CHECKING:
    from tests.faultkit.checkers.final_state import FinalState
    from tests.faultkit.checkers.rules import Rules

_MOST_ATTEMPTS: Final = 2
"""Later attempts may come from the schedule, because a task is delayed after its second death."""


def check_order(history: History, final: FinalState, rules: Rules) -> CheckResult:
    """Check skills whose tasks wait only for their turn: no delays, retries, snoozes, limits.

    The generation of an attempt is the server time at which its task became ready, and its entry has the time of the
    assignment. In between, no task of lower priority may be assigned.
    """
    waits: dict[str, list[tuple[int, int, int, str]]] = {skill: [] for skill in rules.ranked}
    for one in history.of(RunStarted):
        task = final.tasks.get(one.task)
        if task is not None and task.skill in waits:
            ready_ms = int(one.generation) if one.attempt <= _MOST_ATTEMPTS else one.assigned_ms
            waits[task.skill].append((one.assigned_ms, ready_ms, task.priority, one.task))
    wrong: list[str] = []
    for attempts in waits.values():
        attempts.sort()
        stamps = [assigned_ms for assigned_ms, *_ in attempts]
        for assigned_ms, ready_ms, priority, id_ in attempts:
            between = range(bisect_left(stamps, ready_ms + SLACK_MS), bisect_left(stamps, assigned_ms - SLACK_MS + 1))
            for other_ms, _, other_priority, other in (attempts[index] for index in between):
                if other_priority > priority:
                    wrong.append(
                        f"task {other} of priority {other_priority} was assigned at {other_ms}, while {id_} of "
                        f"priority {priority} waited from {ready_ms} to {assigned_ms}"
                    )
    return check_result("I6 no overtaking", sum(map(len, waits.values())), wrong)


def check_lanes(history: History, final: FinalState, rules: Rules) -> CheckResult:
    """Check lanes whose tasks one client submitted in the order of their ids.

    Between the first assignment of a task and its end, no other task of its lane may be assigned. A task without
    attempts was cancelled or expired.
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
