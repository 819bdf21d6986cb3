"""Reads the numbers of a pool for a scrape with eight commands.

The first read of a process reads all agents and queues. Each later one reads the next `AT_ONCE` and keeps the earlier
numbers of the others, so that it costs Redis the same for any number of agents.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from orchestrator.core.errors import StoreError
from orchestrator.monitoring.scripts import (
    AT_ONCE,
    AgentNumbers,
    PoolNumbers,
    QueueNumbers,
    measure_agents,
    measure_pool,
    measure_queues,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.store.server_info import ServerInfo
    from orchestrator.store.store import Store

Numbers = TypeVar("Numbers", AgentNumbers, QueueNumbers)


@dataclass(frozen=True, slots=True)
class PoolReading:
    """The numbers of a pool at one time.

    Attributes:
        numbers: counters and sizes.
        attempts: packed cells by agent and skill, separated by a blank.
        agents: numbers by agent, in the order of names.
        queues: numbers by suffix of the key: `queue:skill:S`, `queue:agent:A`, `suspects:QUEUE`, `held:SCOPE`.
        server: facts of INFO.
        skew_s: clock of the server minus that of this machine.
        took_s: duration of the read.
    """

    numbers: PoolNumbers
    attempts: Mapping[bytes, bytes]
    agents: Mapping[str, AgentNumbers]
    queues: Mapping[str, QueueNumbers]
    server: ServerInfo
    skew_s: float
    took_s: float


class PoolReader:
    """Reads a pool again and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._agents: dict[str, AgentNumbers] = {}
        self._queues: dict[str, QueueNumbers] = {}
        self._next_agent = self._next_queue = ""
        self._at_once = sys.maxsize

    async def read(self) -> PoolReading:
        """Read all numbers.

        Raises:
            StoreError: Redis does not answer, or a key has a wrong type.
        """
        store, keys = self._store, self._store.keys
        started_s, asked_at_s = time.monotonic(), time.time()
        numbers = await store.call(measure_pool(keys))
        skew_s = numbers.now_ms / 1000 - (asked_at_s + (time.monotonic() - started_s) / 2)
        indexes = (("queue", keys.queues), ("suspects", keys.suspected_queues), ("held", keys.suspended_scopes))
        replies = await store.pipeline([("HGETALL", keys.attempt_totals), *[("SMEMBERS", key) for _, key in indexes]])
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        server = await store.info()
        flat, *members = replies
        attempts = dict(zip(flat[::2], flat[1::2], strict=True))
        suffixes = sorted(
            f"{kind}:{name.decode()}" for (kind, _), names in zip(indexes, members, strict=True) for name in names
        )
        agents = sorted(numbers.agents)
        due_agents = _next(agents, self._next_agent, self._at_once)
        due_queues = _next(suffixes, self._next_queue, self._at_once)
        agent_calls = [measure_agents(keys, agents=chunk) for chunk in _split(due_agents)]
        queue_calls = [measure_queues(keys, suffixes=chunk) for chunk in _split(due_queues)]
        fresh_agents = {name: one for part in await store.call_all(agent_calls) for name, one in part.items()}
        fresh_queues = {name: one for part in await store.call_all(queue_calls) for name, one in part.items()}
        self._agents = _merged(agents, self._agents, fresh_agents)
        self._queues = _merged(suffixes, self._queues, fresh_queues)
        self._next_agent = due_agents[-1] if len(due_agents) < len(agents) else ""
        self._next_queue = due_queues[-1] if len(due_queues) < len(suffixes) else ""
        self._at_once = AT_ONCE
        return PoolReading(numbers, attempts, self._agents, self._queues, server, skew_s, time.monotonic() - started_s)


def _split(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[at : at + AT_ONCE] for at in range(0, len(names), AT_ONCE)]


def _next(names: Sequence[str], after: str, limit: int) -> Sequence[str]:
    """Return up to `limit` names behind `after`, and from the beginning again."""
    if len(names) <= limit:
        return names
    at = sum(name <= after for name in names)
    return [*names[at:], *names[:at]][:limit]


def _merged(names: Iterable[str], kept: Mapping[str, Numbers], fresh: Mapping[str, Numbers]) -> dict[str, Numbers]:
    return {name: one for name in names if (one := fresh.get(name) or kept.get(name)) is not None}
