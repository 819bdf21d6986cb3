"""Makes the many dead letters of one trouble a line: groups by what went wrong. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from orchestrator.tasks.records import TaskRecord

_EXCEPTION: Final = re.compile(r"([A-Za-z_][\w.]*)(?:: |$)")
_VARIABLE: Final = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d+")


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Dead letters that failed alike.

    Attributes:
        error: the kind of exception, else the reason with its numbers left out.
        example: the newest of them.
    """

    error: str
    skill: str
    tasks: int
    oldest: datetime
    newest: datetime
    example: str


def error_class(reason: str) -> str:
    """What kind of trouble a reason tells of: the exception's name, else the text without numbers and ids."""
    found = _EXCEPTION.match(reason)
    return found[1] if found else _VARIABLE.sub("#", reason) or "(no reason)"


def group_by_error(tasks: Iterable[TaskRecord]) -> list[ErrorGroup]:
    """Group by skill and kind of trouble, the largest group first."""
    members: dict[tuple[str, str], list[TaskRecord]] = {}
    for task in tasks:
        members.setdefault((error_class(task.reason), task.skill), []).append(task)
    groups = []
    for (error, skill), alike in members.items():
        newest = max(alike, key=lambda task: task.at)
        oldest = min(task.at for task in alike)
        groups.append(ErrorGroup(error, skill, len(alike), oldest, newest.at, newest.id))
    return sorted(groups, key=lambda one: (-one.tasks, one.error, one.skill))
