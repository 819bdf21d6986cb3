"""Reads one limit: of a provider the calls that run; the agents that have the limit, and their queues."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - a part of public values
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound, ServerUnavailable
from orchestrator.core.ids import check_name
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text, read_whole
from orchestrator.limits.shared import keys_of
from orchestrator.views.active_commands import desired_reads
from orchestrator.views.limit_pages import LimitRow, read_limit_rows, time_us
from orchestrator.views.paging import read_beside, read_together
from orchestrator.views.providers import read_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import Services

CALLS: Final = 50
MOST_AGENTS: Final = 150
"""Agents that are looked at, those with the latest heartbeats."""
MOST_QUEUES: Final = 50
_TASK: Final = re.compile(r"(?:^|, )task ([0-9a-f-]{1,64})(?:,|$)")


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call of a provider that runs.

    Attributes:
        by: agent, task and worker, as the worker wrote them; of a provider that pools share first the pool.
        task: its task, if `by` names one of this pool.
        tokens: that it has reserved.
        since: when it began.
        lease_until: when its place is free unless its worker renews it.
    """

    by: str
    task: str | None
    tokens: int
    since: datetime
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class LimitedQueue:
    """A queue from which agents with the limit take, and the number of its tasks."""

    queue: str
    tasks: int


@dataclass(frozen=True, slots=True)
class LimitDetail:
    """One limit.

    Attributes:
        limit: as in a list.
        calls: calls of the provider that run, those whose lease ends first in front; at most 50.
        running: number of all.
        agents: of the agents that were looked at, those that have the limit, by name.
        looked: number of agents that were looked at.
        known: number of all agents.
        queues: queues of these agents that hold tasks, by name, of the first 50.
    """

    limit: LimitRow
    calls: tuple[RunningCall, ...]
    running: int
    agents: tuple[str, ...]
    looked: int
    known: int
    queues: tuple[LimitedQueue, ...]


async def read_limit_page(services: Services, name: str) -> LimitDetail:
    """Read one limit.

    Raises:
        InvalidInput: no name of a limit.
        NotFound: neither agents nor settings define it, and no worker has called such a provider.
    """
    check_name("limit", name.removeprefix("@"))
    keys = services.keys
    defined, stored, latest, known, *desired = await read_together(
        services,
        [
            ("HEXISTS", keys.limits, name),
            ("HGET", keys.providers, name),
            ("ZRANGE", keys.agents, 0, MOST_AGENTS - 1, "REV"),
            ("ZCARD", keys.agents),
            *desired_reads(services),
        ],
    )
    if not defined and stored is None:
        raise NotFound(f"limit {name!r} is not defined; `orc limits list` names those that are")
    providers = read_limits((name.encode(), stored) if stored is not None else ())
    now_us, agents = time_us(desired[-1]), [read_text(agent) for agent in latest or ()]
    (row,) = await read_limit_rows(services, [name], providers, desired)
    its = keys_of(keys, name, shared=name in providers and providers[name].shared)
    offers, of_calls = await read_beside(
        services,
        [("TIME",), *(("HMGET", keys.agent(agent), "limits", "skills") for agent in agents)],
        [
            ("ZRANGE", its.provider_leases(name), f"({now_us}", "+inf", "BYSCORE", "LIMIT", 0, CALLS, "WITHSCORES"),
            ("ZCOUNT", its.provider_leases(name), f"({now_us}", "+inf"),
        ],
    )
    # What a server that does not answer has counted is unknown; the state of the provider says so.
    leases, running = (None if isinstance(reply, ServerUnavailable) else reply for reply in of_calls)
    bound = {agent: offer for agent, offer in zip(agents, offers[1:], strict=True) if _has(name, offer)}
    queues = sorted({queue for agent, offer in bound.items() for queue in _queues(agent, offer)})[:MOST_QUEUES]
    ids = (leases or ())[::2]
    lengths, begun = await read_beside(
        services,
        [("TIME",), *(("ZCARD", keys.queue(queue)) for queue in queues)],
        [("HMGET", its.provider_calls(name), *ids)] if ids else [],
    )
    stored_calls = next((reply for reply in begun if isinstance(reply, list)), [])
    calls = zip(stored_calls, (leases or ())[1::2], strict=False)
    waiting = (LimitedQueue(queue, tasks or 0) for queue, tasks in zip(queues, lengths[1:], strict=True))
    return LimitDetail(
        row,
        tuple(_call(stored, ends_us, keys.pool) for stored, ends_us in calls if stored is not None),
        running or 0,
        tuple(sorted(bound)),
        len(agents),
        known or 0,
        tuple(one for one in waiting if one.tasks),
    )


def _has(limit: str, offer: Sequence[Any] | None) -> bool:
    return offer is not None and limit in read_text(offer[0] or b"").split()


def _queues(agent: str, offer: Sequence[Any]) -> list[str]:
    skills = read_text(offer[1] or b"").split()
    return [str(QueueName.of_agent(agent)), *(str(QueueName.of_skill(skill)) for skill in skills)]


def _call(stored: bytes, ends_us: bytes, pool: str) -> RunningCall:
    tokens, _, rest = read_text(stored).partition(" ")
    at_us, _, by = rest.partition(" ")
    of_other = by.startswith("pool ") and not by.startswith(f"pool {pool}, ")
    task = None if of_other else _TASK.search(by)
    return RunningCall(
        by=by,
        task=task[1] if task else None,
        tokens=read_whole(tokens),
        since=from_instant_ms(read_whole(at_us) // 1000),
        lease_until=from_instant_ms(read_whole(ends_us) // 1000),
    )
