"""I1: every accepted task ends, none is lost, none comes from nowhere, one key is one task."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tests.faultkit.checkers.check_result import CheckResult, check_result
from tests.faultkit.checkers.history import (
    CancelStarted,
    History,
    SubmitAccepted,
    SubmitRejected,
    SubmitStarted,
    SubmitUnanswered,
)

if TYPE_CHECKING:
    from tests.faultkit.checkers.final_state import FinalState, StoredTask
    from tests.faultkit.checkers.rules import Rules


def check_total(history: History, final: FinalState, rules: Rules) -> CheckResult:
    """Compare the promises to clients with the stored tasks."""
    accepted = history.of(SubmitAccepted)
    wrong = [f"task {one.task} ({one.op}) was accepted and is lost" for one in accepted if one.task not in final.tasks]
    wrong += [
        f"task {task.id} ({task.op}) has not ended: {task.state}" for task in final.tasks.values() if not task.ended
    ]
    wrong += _from_nowhere(history, final)
    wrong += _refused(history, final)
    wrong += _twice(history, final)
    asked = {one.task for one in history.of(CancelStarted)}
    for task in final.tasks.values():
        if task.ended and not _allowed(task, rules, cancelled=task.id in asked):
            wrong.append(f"task {task.id} ({task.op}) of {task.skill} ended as {task.state}: {task.reason}")
    return check_result("I1 every accepted task ends once", len(accepted), wrong)


def _allowed(task: StoredTask, rules: Rules, *, cancelled: bool) -> bool:
    terms = rules.skill(task.skill)
    if task.state == "dead" and task.reason == "deaths":
        return task.deaths - task.forgiven[1] >= terms.max_deaths
    if task.state == "expired":
        return task.start_by
    return task.state in terms.ends or (task.state == "cancelled" and cancelled)


def _from_nowhere(history: History, final: FinalState) -> list[str]:
    known = {one.task for one in history.of(SubmitAccepted)} | {
        id_ for one in history.of(SubmitUnanswered) for id_ in one.tasks
    }
    intended = {one.op for one in history.of(SubmitStarted)}
    return [
        f"task {task.id} of {task.skill} ({task.op}) was never submitted"
        for task in final.tasks.values()
        if task.id not in known and task.op not in intended
    ]


def _refused(history: History, final: FinalState) -> list[str]:
    # An intention without an outcome may have arrived, so count only those whose every try was refused.
    tried, refused = (
        Counter(one.op for one in history.of(SubmitStarted)),
        Counter(one.op for one in history.of(SubmitRejected)),
    )
    return [
        f"task {task.id} ({task.op}) is stored although its submit was refused"
        for task in final.tasks.values()
        if task.op is not None and refused[task.op] and refused[task.op] == tried[task.op]
    ]


def _twice(history: History, final: FinalState) -> list[str]:
    by_op, by_key = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    key_of = {one.op: one.key for one in history.of(SubmitStarted) if one.key is not None}
    for task in final.tasks.values():
        if task.op is not None:
            by_op[task.op].add(task.id)
        if task.key is not None:
            by_key[task.key].add(task.id)
    for one in history.of(SubmitAccepted):
        by_op[one.op].add(one.task)
        if (key := key_of.get(one.op)) is not None:
            by_key[key].add(one.task)
    wrong = [
        f"{op} was meant once and became tasks {', '.join(sorted(ids))}" for op, ids in by_op.items() if len(ids) > 1
    ]
    return wrong + [f"key {key!r} has tasks {', '.join(sorted(ids))}" for key, ids in by_key.items() if len(ids) > 1]
