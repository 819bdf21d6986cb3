"""Reads the agents of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agents import queries
from orchestrator.core.slots import STOP_ALL, hold_slot, pause_slot, stop_slot
from orchestrator.tasks.queries import server_ms
from orchestrator.views.active_commands import of_slots, read_desired
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from orchestrator.agents.model import AgentInfo
    from orchestrator.control.desired import Desired
    from orchestrator.services import Services
    from orchestrator.views.active_commands import ActiveCommandView


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent, with the active commands that affect it."""

    agent: AgentInfo
    active_commands: tuple[ActiveCommandView, ...]


@dataclass(frozen=True, slots=True)
class AgentList:
    """Agents by name.

    Attributes:
        total: how many there are, including those beyond the limit.
    """

    agents: tuple[AgentView, ...]
    total: int


async def list_agents(services: Services, *, within_s: float | None = None, limit: int = LIMIT) -> AgentList:
    """Read the agents with the latest heartbeats.

    Args:
        services: of the pool.
        within_s: only agents with a heartbeat in this time.
        limit: at most this many.
    """
    store = services.store
    since_ms = 0 if within_s is None else await server_ms(store) - round(within_s * 1000)
    found = await queries.agents(store, limit, since_ms=since_ms)
    now = await read_desired(services)
    total = await queries.count_agents(store, since_ms=since_ms)
    return AgentList(tuple(_view(agent, now) for agent in found), total)


async def read_agent(services: Services, name: str) -> AgentView:
    """Read one agent.

    Raises:
        NotFound: the pool has no agent of this name.
    """
    return _view(await queries.agent(services.store, name), await read_desired(services))


def _view(agent: AgentInfo, now: Desired) -> AgentView:
    slots = (STOP_ALL, stop_slot("agent", agent.name), pause_slot("agent", agent.name), hold_slot("agent", agent.name))
    return AgentView(agent, of_slots(now, *slots))
