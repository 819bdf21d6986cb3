"""Looks up the agents, queues, limits and workers that control commands name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.terminal import output
from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.core.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.agents.model import AgentInfo, WorkerInfo
    from orchestrator.control.commands import Command
    from orchestrator.services import Services


async def resolve(services: Services, command: Command) -> Command:
    """Return the command with the full id of its worker, and say so when its agent, queue or limit is unknown.

    Raises:
        NotFound: no live worker has such an id.
        InvalidInput: several have.
    """
    if agent := getattr(command, "agent", None):
        await known_agent(services, agent)
    if queue := getattr(command, "queue", None):
        await _check_queue(services, queue)
    if limit := getattr(command, "limit", None):
        await _check_limit(services, limit)
    if worker := getattr(command, "worker", None):
        return command.model_copy(update={"worker": (await find_worker(services, worker)).id})
    return command


async def known_agent(services: Services, name: str) -> AgentInfo | None:
    """Return the agent of this name; say so when there is none."""
    from orchestrator.agents import queries

    known = {found.name: found for found in await queries.agents(services.store)}
    if name not in known:
        output.say(f"no agent {name!r} is known now (known: {_listed(known)}); the command applies when it registers")
    return known.get(name)


async def find_worker(services: Services, typed: str) -> WorkerInfo:
    """Return the live worker with this id, or the only one whose id begins with it.

    Raises:
        NotFound: there is none.
        InvalidInput: there are several.
    """
    from orchestrator.agents import queries

    known = await queries.workers(services.store)
    found = [one for one in known if one.id == typed] or [one for one in known if one.id.startswith(typed)]
    if not found:
        raise NotFound(f"no live worker has the id {typed!r}; `orc workers list` shows them")
    if len(found) > 1:
        raise InvalidInput(
            f"{len(found)} workers match {typed!r}: {', '.join(one.id for one in found)}; give more of the id"
        )
    return found[0]


async def _check_queue(services: Services, queue: str) -> None:
    from orchestrator.agents import queries as agents
    from orchestrator.tasks import queries as tasks

    known = await agents.agents(services.store)
    names = {str(QueueName.of_agent(agent.name)) for agent in known}
    names |= {str(QueueName.of_skill(skill)) for agent in known for skill in agent.skills}
    if queue not in names and queue not in await tasks.queue_lengths(services.store):
        output.say(f"queue {queue} is empty and no known agent serves it; the command applies all the same")


async def _check_limit(services: Services, limit: str) -> None:
    from orchestrator.agents import queries

    known = [name for name in await queries.limits(services.store) if not name.startswith("=")]
    if limit not in known:
        output.say(
            f"no known agent has the limit {output.clean(limit)!r} (known: {_listed(known)}); "
            "the command applies all the same"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
