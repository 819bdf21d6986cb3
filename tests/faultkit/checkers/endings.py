"""I2, I11, I16: each task has one confirmed end and no start after it; dead letters are complete and deserved."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.faultkit.checkers.check_result import SLACK_MS, CheckResult, check_result
from tests.faultkit.checkers.history import CancelAnswered, EndNoted, EndSeen, History, RunStarted

if TYPE_CHECKING:
    from tests.faultkit.checkers.final_state import FinalState, StoredTask
    from tests.faultkit.checkers.rules import Rules


def check_endings(history: History, final: FinalState) -> CheckResult:
    """Compare every observed end with the stored one."""
    told = history.of(EndSeen)
    wrong: list[str] = []
    for one in told:
        task = final.tasks.get(one.task)
        if task is None:
            wrong.append(f"task {one.task} was seen to end as {one.state} and is gone")
        elif task.state != one.state:
            wrong.append(f"task {one.task} was seen to end as {one.state} and is {task.state}")
        elif task.state == "succeeded" and task.result != one.result:
            wrong.append(f"task {one.task} was seen with the result {one.result} and has {task.result}")
    for cancel in history.of(CancelAnswered):
        task = final.tasks.get(cancel.task)
        if cancel.status == "ended" and task is not None and task.state != "cancelled":
            wrong.append(f"task {cancel.task} was cancelled for good and is {task.state}")
    wrong += _noted(history, final)
    for begun in history.of(RunStarted):
        task = final.tasks.get(begun.task)
        if task is not None and task.ended_ms is not None and begun.granted_ms > task.ended_ms + SLACK_MS:
            wrong.append(
                f"task {begun.task} ended at {task.ended_ms} and its generation {begun.generation} was granted at "
                f"{begun.granted_ms}"
            )
    return check_result("I2 one end, nothing after it", len(told), wrong)


def _noted(history: History, final: FinalState) -> list[str]:
    noted = defaultdict[str, list[str]](list)
    seen = {(one.entry, one.task) for one in history.of(EndNoted)}
    for one in history.of(EndNoted):
        noted[one.task].append(one.state)
    if not seen:
        for id_, state in final.ends:
            noted[id_].append(state)
    wrong: list[str] = []
    for id_, states in noted.items():
        task = final.tasks.get(id_)
        if len(states) > 1:
            wrong.append(f"task {id_} ended {len(states)} times: {', '.join(states)}")
        elif task is not None and [task.state] != states:
            wrong.append(f"task {id_} ended as {states[0]} and is {task.state}")
    return wrong


def check_dead_letters(final: FinalState, rules: Rules) -> CheckResult:
    """Check the records of all tasks, and more closely those of dead ones."""
    wrong: list[str] = []
    for task in final.tasks.values():
        terms = rules.skill(task.skill)
        fails = task.fails - task.forgiven[0]
        if fails > terms.max_attempts:
            wrong.append(f"task {task.id} failed {fails} times of {terms.max_attempts}")
        if task.blamed > terms.max_deaths:
            wrong.append(f"task {task.id} died {task.blamed} times as the only suspect, of {terms.max_deaths}")
        if task.deaths != len(task.death_notes):
            wrong.append(f"task {task.id} counts {task.deaths} deaths and has evidence of {len(task.death_notes)}")
        if task.state == "dead":
            wrong += _incomplete(task)
    dead = sum(task.state == "dead" for task in final.tasks.values())
    return check_result("I11 dead letters are complete", dead, wrong)


def _incomplete(task: StoredTask) -> list[str]:
    missing = []
    if not task.skill:
        missing.append("its payload")
    if not task.reason:
        missing.append("its reason")
    if not task.errors and not task.death_notes:
        missing.append("its attempts")
    if any(not text for text in (*task.errors.values(), *task.death_notes.values())):
        missing.append("the text of an attempt")
    return [f"dead letter {task.id} lacks {what}" for what in missing]


def check_innocents(final: FinalState, rules: Rules) -> CheckResult:
    """Check that deaths make a dead letter only of a task that kills its process."""
    judged = [task for task in final.tasks.values() if task.deaths and not rules.skill(task.skill).kills]
    wrong = [
        f"task {task.id} ({task.op}) of {task.skill} kills no process and is a dead letter after {task.deaths} deaths"
        for task in judged
        if task.state == "dead" and task.reason == "deaths"
    ]
    return check_result("I16 no innocent is given up", len(judged), wrong)
