"""I11: a dead letter has its reason, attempts and payload, and no task had more attempts than it is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faultkit.checkers.check_result import CheckResult, check_result

if TYPE_CHECKING:
    from tests.faultkit.checkers.final_state import FinalState, StoredTask
    from tests.faultkit.checkers.rules import Rules


def check_dead_letters(final: FinalState, rules: Rules) -> CheckResult:
    """Judge the records of all tasks, those of the dead more closely."""
    wrong: list[str] = []
    for task in final.tasks.values():
        terms = rules.skill(task.skill)
        fails, deaths = task.fails - task.forgiven[0], task.deaths - task.forgiven[1]
        if fails > terms.max_attempts:
            wrong.append(f"task {task.id} failed {fails} times of {terms.max_attempts}")
        if deaths > terms.max_deaths:
            wrong.append(f"task {task.id} died {deaths} times of {terms.max_deaths}")
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
