"""I6: a waiting task of better priority is not overtaken."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from tests.faultkit.checkers.check_result import CheckResult, check_result
from tests.faultkit.checkers.history import History, RunStarted

if TYPE_CHECKING:
    from tests.faultkit.checkers.final_state import FinalState
    from tests.faultkit.checkers.rules import Rules

SLACK_MS: Final = 5
_MOST_ATTEMPTS: Final = 2
"""Later ones may have waited in the schedule: from the second death on a task comes back with a delay."""


def check_order(history: History, final: FinalState, rules: Rules) -> CheckResult:
    """Judge skills whose tasks wait for nothing but their turn: no delays, retries, snoozes, limits.

    The generation of such an attempt is the server's time at which its task became ready, its entry tells when it was
    assigned. In between it stood in its queue, so nothing that is less urgent may have been assigned.
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
