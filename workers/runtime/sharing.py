"""Opens for an attempt what it shares: with its session under its own right to change it, and with everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agent_state.states import AgentState, agent_scope
from orchestrator.client.shared_config import SharedConfig
from orchestrator.core.errors import OrchestratorError
from orchestrator.limits.limits import Limits
from orchestrator.workspace.workspace import Workspace
from orchestrator.workspace.writer import session_scope

if TYPE_CHECKING:
    from orchestrator.services import Services
    from workers.context import TaskContext
    from workers.runtime.active_commands import WorkerCommands


def attempt_workspace(context: TaskContext, services: Services) -> Workspace:
    """The workspace of the session of an attempt, whose changes are made in the name of its agent.

    Raises:
        OrchestratorError: its task has no session.
    """
    if context.session is None:
        raise OrchestratorError(f"task {context.task_id} belongs to no session, so it shares nothing; use session=")
    locks = context.opened_locks()
    return Workspace(
        session_scope(services.store, services.settings, context.session),
        guard=locks.execution.session,
        agent=context.agent,
        locks=locks.named,
    )


class Shared:
    """What an attempt shares beyond its session; see `workers.context.Around`. Nothing is sent before it is used."""

    __slots__ = ("_commands", "_context", "_services")

    def __init__(self, context: TaskContext, services: Services, commands: WorkerCommands) -> None:
        self._context, self._services, self._commands = context, services, commands

    @property
    def limits(self) -> Limits:
        """Limits by name."""
        settings = self._services.settings
        return Limits(self._services.store, prefix=settings.prefix, retry_for_s=settings.redis.command_timeout_s)

    @property
    def agent_state(self) -> AgentState:
        """What the agent says of itself, under the attempt's right to change what its agent remembers."""
        scope = agent_scope(self._services.store, self._services.settings, self._context.agent)
        return AgentState(scope, self._context.opened_locks().execution.agent)

    @property
    def config(self) -> SharedConfig:
        """What operators have published, as the worker knows it."""
        return SharedConfig(self._services, known=lambda: self._commands.desired)
