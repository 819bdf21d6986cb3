"""Reads the numbers of a pool for a scrape with a few commands.

Every read reads the queues with tasks and their suspects, because scaling depends on them. The first read of a process
reads all agents and all tasks that a stop holds, too. Each later one reads the next `TURN` of both and keeps the
earlier numbers of the others, so that these cost Redis the same for any number of them.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from orchestrator.core.errors import StoreError
from orchestrator.core.reading import read_text, read_whole
from orchestrator.monitoring.scripts import (
    AT_ONCE,
    AgentNumbers,
    PoolNumbers,
    QueueNumbers,
    ReadyPlace,
    measure_agents,
    measure_pool,
    measure_queues,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.store.server_info import CommandStats, ServerInfo
    from orchestrator.store.store import Store

TURN: Final = 125
"""Agents, and scopes of held tasks, that one read reads."""

Name = TypeVar("Name", str, ReadyPlace)
Numbers = TypeVar("Numbers", AgentNumbers, QueueNumbers)


@dataclass(frozen=True, slots=True)
class PoolReading:
    """The numbers of a pool at one time.

    Attributes:
        numbers: counters and sizes.
        attempts: packed cells by agent and skill, separated by a blank.
        agents: numbers by agent, in the order of names.
        queues: numbers of the sets of ready tasks.
        server: facts of INFO.
        commands: what the server counts, by command.
        skew_s: clock of the server minus that of this machine.
        took_s: duration of the read.
    """

    numbers: PoolNumbers
    attempts: Mapping[bytes, bytes]
    agents: Mapping[str, AgentNumbers]
    queues: Mapping[ReadyPlace, QueueNumbers]
    server: ServerInfo
    commands: Mapping[str, CommandStats]
    skew_s: float
    took_s: float


class PoolReader:
    """Reads a pool again and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._agents: dict[str, AgentNumbers] = {}
        self._queues: dict[ReadyPlace, QueueNumbers] = {}
        self._next_agent: str | None = None
        self._next_scope: ReadyPlace | None = None
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
        replies = await store.pipeline(
            [
                ("HGETALL", keys.attempt_totals),
                ("SMEMBERS", keys.queues),
                ("SMEMBERS", keys.suspected_queues),
                ("SMEMBERS", keys.suspended_scopes),
                ("ZRANGE", keys.share_queues, 0, -1, "WITHSCORES"),
            ]
        )
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        server, commands = await store.info_with_commands()
        flat, queues, suspected, scopes, behind = replies
        waiting = {read_text(name): read_whole(count) for name, count in zip(behind[::2], behind[1::2], strict=True)}
        attempts = dict(zip(flat[::2], flat[1::2], strict=True))
        places = [
            *[ReadyPlace.of_queue(name) for name in {*map(read_text, queues), *waiting}],
            *[ReadyPlace("suspect", read_text(name)) for name in suspected],
        ]
        held = sorted(ReadyPlace("held", read_text(name)) for name in scopes)
        agents = sorted(numbers.agents)
        due_agents = _next(agents, self._next_agent, self._at_once)
        due_held = _next(held, self._next_scope, self._at_once)
        agent_calls = [measure_agents(keys, agents=chunk) for chunk in _split(due_agents)]
        queue_calls = [measure_queues(keys, places=chunk) for chunk in _split([*places, *due_held])]
        fresh_agents = {name: one for part in await store.call_all(agent_calls) for name, one in part.items()}
        fresh_queues = {name: one for part in await store.call_all(queue_calls) for name, one in part.items()}
        for name, count in waiting.items():
            place = ReadyPlace.of_queue(name)
            if place in fresh_queues:
                fresh_queues[place] = fresh_queues[place]._replace(tasks=fresh_queues[place].tasks + count)
        self._agents = _merged(agents, self._agents, fresh_agents)
        self._queues = _merged([*places, *held], self._queues, fresh_queues)
        self._next_agent = due_agents[-1] if len(due_agents) < len(agents) else None
        self._next_scope = due_held[-1] if len(due_held) < len(held) else None
        self._at_once = TURN
        return PoolReading(
            numbers, attempts, self._agents, self._queues, server, commands, skew_s, time.monotonic() - started_s
        )


def _split(names: Sequence[Name]) -> list[Sequence[Name]]:
    return [names[at : at + AT_ONCE] for at in range(0, len(names), AT_ONCE)]


def _next(names: Sequence[Name], after: Name | None, limit: int) -> Sequence[Name]:
    """Return up to `limit` names behind `after`, and from the beginning again."""
    if len(names) <= limit:
        return names
    at = 0 if after is None else bisect_right(names, after)
    return (list(names[at:]) + list(names[:at]))[:limit]


def _merged(names: Iterable[Name], kept: Mapping[Name, Numbers], fresh: Mapping[Name, Numbers]) -> dict[Name, Numbers]:
    return {name: one for name in names if (one := fresh.get(name) or kept.get(name)) is not None}
