"""Opens for an attempt what the agents of its session share, under the attempt's own right to change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import OrchestratorError
from orchestrator.workspace.changing import make_place
from orchestrator.workspace.workspace import Workspace

if TYPE_CHECKING:
    from orchestrator.services import Services
    from workers.context import TaskContext


def attempt_workspace(context: TaskContext, services: Services) -> Workspace:
    """The workspace of the session of an attempt, whose changes are made in the name of its agent.

    Raises:
        OrchestratorError: its task has no session.
    """
    if context.session is None:
        raise OrchestratorError(f"task {context.task_id} belongs to no session, so it shares nothing; use session=")
    locks = context.opened_locks()
    return Workspace(
        make_place(services.store, context.session, services.settings),
        authority=locks.execution.session,
        agent=context.agent,
        locks=locks.named,
    )
