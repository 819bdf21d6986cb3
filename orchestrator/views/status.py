"""Reads the state of a pool for one screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.agents import queries as registry
from orchestrator.tasks import queries as tasks
from orchestrator.tasks.losses import LostWrites, read_losses
from orchestrator.views.active_commands import read_desired, view
from orchestrator.views.queues import list_queues

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.agents.model import AgentInfo, WorkerInfo
    from orchestrator.services import Services
    from orchestrator.store.server_info import ServerInfo
    from orchestrator.store.store import Store
    from orchestrator.views.active_commands import ActiveCommandView
    from orchestrator.views.queues import QueueView

LIMIT: Final = 500
"""Agents, workers, queues and active commands that a status has unless the caller asks for more."""


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """Numbers of members of a pool; a status has some of each."""

    agents: int
    workers: int
    queues: int
    active_commands: int


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """State of a pool.

    Attributes:
        supervisor: id of the leading supervisor, or None.
        server: the server that has the pool.
        other_servers: by address, the other servers of a cluster, which have sessions, agents and shared state.
        agents: those with the latest heartbeats, by name.
        workers: those with the latest heartbeats, longest silent first.
        tasks: counters since the pool began: submitted, assigned, succeeded, dead, retried, ...
        now: tasks that are there now: `ready`, `assigned` (running or in an inbox), `scheduled`, `awaiting_input`,
            `joining`, `awaiting_tasks`, and `dead` (dead letters that are kept).
        waiting_bytes: bytes of the tasks that wait, large arguments included; about right for small tasks.
        totals: how many agents, workers, queues and active commands there are.
        lost: writes that Redis had confirmed and has lost, as noticed in the last day; None if there are none.
    """

    pool: str
    prefix: str
    supervisor: str | None
    server: ServerInfo
    other_servers: Mapping[str, ServerInfo]
    agents: tuple[AgentInfo, ...]
    workers: tuple[WorkerInfo, ...]
    queues: tuple[QueueView, ...]
    active_commands: tuple[ActiveCommandView, ...]
    tasks: Mapping[str, int]
    now: Mapping[str, int]
    waiting_bytes: int
    totals: PoolTotals
    lost: LostWrites | None


async def read_status(services: Services, *, limit: int = LIMIT) -> PoolStatus:
    """Read the state of a pool; `limit`: most agents, workers, queues (the longest) and active commands."""
    store = services.store
    queues, desired = await list_queues(services, limit=limit, longest_first=True), await read_desired(services)
    return PoolStatus(
        pool=services.settings.pool,
        prefix=services.settings.prefix,
        supervisor=await registry.leader(store),
        server=await store.server_info(),
        other_servers={str(address): await store.server_info(at=address) for address in store.others},
        agents=tuple(await registry.agents(store, limit)),
        workers=tuple(await registry.workers(store, limit)),
        queues=queues.queues,
        active_commands=tuple(view(one) for _, one in sorted(desired.active.items())[:limit]),
        tasks=await read_counters(services),
        now=await _read_present(store),
        waiting_bytes=queues.bytes,
        totals=PoolTotals(
            agents=await registry.count_agents(store),
            workers=await registry.count_workers(store),
            queues=queues.total,
            active_commands=len(desired.active),
        ),
        lost=await read_losses(store),
    )


async def read_counters(services: Services) -> Mapping[str, int]:
    """Read the counters of the pool since the beginning; see `PoolStatus.tasks`."""
    return await tasks.counters(services.store)


async def _read_present(store: Store) -> Mapping[str, int]:
    lengths = await tasks.queue_lengths(store)
    waits = {name: lengths.pop(name, 0) for name in ("scheduled", "awaiting_input", "joining", "awaiting_tasks")}
    assigned = sum(await registry.inbox_lengths(store))
    return {"ready": sum(lengths.values()), "assigned": assigned, **waits, "dead": await tasks.dead_letters(store)}
