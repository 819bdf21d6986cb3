"""Formats the earlier attempts and the children of a task for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.cli.terminal import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.tasks.history import TaskAttempt
    from orchestrator.why.model import TaskInfo

SHOWN_CHILDREN: Final = 10


def attempt_lines(attempts: Sequence[TaskAttempt]) -> list[str]:
    """Return one text per attempt: how it ended, who had it, when, and the reason on a second line."""
    lines = [_lines(attempt) for attempt in attempts]
    if attempts and attempts[0].number > 1:
        lines[0] = f"(the record keeps none before number {attempts[0].number})\n{lines[0]}"
    return lines


def child_ids(task: TaskInfo) -> list[str]:
    """Return the first children of a task, and how to list the others."""
    shown = list(task.children[:SHOWN_CHILDREN])
    more = len(task.children) + task.children_dropped - len(shown)
    return [*shown, f"and {more} more: `orc tasks list --parent {task.id}`"] if more else shown


def _lines(attempt: TaskAttempt) -> str:
    began = attempt.began_at or attempt.assigned_at
    taken = ""
    if attempt.ended_at is not None:
        taken = f" after {max(0.0, (attempt.ended_at - began).total_seconds()):.3g} s"
    words = [
        "running" if attempt.outcome is None else attempt.outcome.replace("_", " "),
        f"{output.ago(attempt.ended_at or began)}{taken}",
        *([f"agent {attempt.agent}"] if attempt.agent else []),
        *([f"worker {attempt.worker}"] if attempt.worker else []),
    ]
    # The line end makes the list a numbered one.
    return ", ".join(words) + "\n" + attempt.reason
