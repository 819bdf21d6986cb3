"""Looks up the agents, queues, limits and workers that control commands name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agents import queries
from orchestrator.core.errors import NotFound
from orchestrator.tasks.queries import queue_lengths
from orchestrator.views.tasks import find_task
from orchestrator.views.workers import find_worker

if TYPE_CHECKING:
    from orchestrator.agents.model import AgentInfo
    from orchestrator.control.commands import Command
    from orchestrator.services import Services


@dataclass(frozen=True, slots=True)
class UnknownTarget:
    """A target of a command that is not known now.

    Attributes:
        kind: `agent`, `queue` or `limit`.
        known: agents or limits that are known, some of many; empty for a queue.
    """

    kind: str
    name: str
    known: tuple[str, ...]


async def resolve(services: Services, command: Command) -> tuple[Command, UnknownTarget | None]:
    """Return the command with the full id of its worker, and its target if that is unknown.

    Raises:
        NotFound: no live worker has such an id.
        InvalidInput: several have.
    """
    store, unknown = services.store, None
    if agent := getattr(command, "agent", None):
        _, unknown = await find_agent(services, agent)
    elif family := getattr(command, "family", None):
        return command.model_copy(update={"family": await find_task(services, family)}), None
    elif queue := getattr(command, "queue", None):
        if queue not in await queries.served(store) and queue not in await queue_lengths(store):
            unknown = UnknownTarget("queue", queue, ())
    elif limit := getattr(command, "limit", None):
        known = sorted(name for name in await queries.limits(store) if not name.startswith("="))
        if limit not in known:
            named = [*known[: queries.NAMED], *(["..."] if len(known) > queries.NAMED else [])]
            unknown = UnknownTarget("limit", limit, tuple(named))
    elif worker := getattr(command, "worker", None):
        return command.model_copy(update={"worker": await find_worker(services, worker)}), None
    return command, unknown


async def find_agent(services: Services, name: str) -> tuple[AgentInfo | None, UnknownTarget | None]:
    """Return the agent of this name, or the unknown target."""
    try:
        return await queries.agent(services.store, name), None
    except NotFound:
        return None, UnknownTarget("agent", name, tuple(await queries.some_names(services.store)))
