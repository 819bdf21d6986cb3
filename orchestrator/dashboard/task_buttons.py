"""Declares the actions on one task: their classes and what they call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.client.task_actions import cancel_tasks, delete_tasks, retry_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from orchestrator.client.task_actions import ActionReport
    from orchestrator.control.commands import Danger


@dataclass(frozen=True, slots=True)
class TaskButton:
    """An action on one task.

    Attributes:
        danger: its class, which decides about the role, and whether it needs a reason.
        act: takes services, ids, reason and actor.
    """

    danger: Danger
    act: Callable[..., Awaitable[ActionReport[Any]]]


BUTTONS: Final[Mapping[str, TaskButton]] = {
    "cancel": TaskButton("B", cancel_tasks),
    "retry": TaskButton("B", retry_tasks),
    "delete": TaskButton("C", delete_tasks),
}
