"""Opens for an attempt what it shares: with its session under its own right to change it, and with everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.errors import OrchestratorError
from orchestrator.limits.limits import Limits
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


@dataclass(frozen=True, slots=True)
class Shared:
    """What an attempt shares beyond its session; see `workers.context.Around`."""

    limits: Limits


def attempt_shared(context: TaskContext, services: Services) -> Shared:  # noqa: ARG001
    """What an attempt shares beyond its session; nothing is sent."""
    settings = services.settings
    return Shared(
        limits=Limits(services.store, prefix=settings.prefix, patience_s=settings.redis.command_timeout_s),
    )
