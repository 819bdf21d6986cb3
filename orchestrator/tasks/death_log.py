"""Logs the tasks that became dead letters because their workers died.

Supervisors, hosts and workers find such tasks. No worker of such a task is left that could write the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.tasks.scripts import DeadByDeaths

_log = get_logger(__name__)


def log_dead(agent: str, dead: Iterable[DeadByDeaths]) -> None:
    """Write a line for each task; the logger bounds their number in a second."""
    for task in dead:
        _log.error(
            "task_failed",
            task=task.id,
            agent=agent,
            skill=task.skill,
            attempt=task.attempt,
            deaths=task.deaths,
            reason=f"its worker died in {task.deaths} of its attempts",
        )
