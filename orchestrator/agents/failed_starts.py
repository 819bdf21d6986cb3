"""Records of workers that could not start because the lifespan of an agent failed, so that others can tell why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from orchestrator.core.errors import DamagedData, StoreError
from orchestrator.core.reading import json_reader, read_text, read_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.store import Store

KEPT_S: Final = 600
RECENT_MS: Final = 120_000
"""Age up to which a record tells of now: the host tries again within 30 s."""
_read: Final = json_reader(tuple[int, int, list[str], str])


@dataclass(frozen=True, slots=True)
class FailedStart:
    """The failed starts of one agent.

    Attributes:
        count: number of failures in a row.
        last_ms: time of the last one.
        error: exception and place of the last one.
    """

    agent: str
    skills: tuple[str, ...]
    count: int
    last_ms: int
    error: str

    @property
    def text(self) -> str:
        """The failures in words."""
        often = "once" if self.count == 1 else f"{self.count} times in a row"
        return f"the lifespan of agent {self.agent!r} failed {often}, so its workers do not start: {self.error}"


async def record_failed_start(store: Store, agent: str, skills: Sequence[str], error: str) -> None:
    """Count a failed start of an agent.

    Raises:
        StoreError: Redis does not answer, or refuses.
    """
    key, (seconds, _) = store.keys.failed_starts, await store.execute("TIME")
    before = _parse(agent, await store.execute("HGET", key, agent))
    count = 1 if before is None else before.count + 1
    value = msgspec.json.encode((count, read_whole(seconds) * 1000, sorted(skills), error[:500]))
    for reply in await store.pipeline([("HSET", key, agent, value), ("EXPIRE", key, KEPT_S)]):
        if isinstance(reply, StoreError):
            raise reply


async def forget_failed_starts(store: Store, agents: Sequence[str]) -> None:
    """Forget the failed starts of agents that have started."""
    await store.execute("HDEL", store.keys.failed_starts, *agents)


async def failed_starts(store: Store) -> list[FailedStart]:
    """Read the agents whose lifespans failed lately, by name."""
    flat = await store.execute("HGETALL", store.keys.failed_starts)
    if not flat:
        return []
    seconds, _ = await store.execute("TIME")
    return recent_failures(flat, read_whole(seconds) * 1000)


def recent_failures(flat: Sequence[bytes], now_ms: int) -> list[FailedStart]:
    """Return the agents whose lifespans failed lately, by name, from the reply to HGETALL."""
    found = [_parse(read_text(name), value) for name, value in zip(flat[::2], flat[1::2], strict=True)]
    recent = [one for one in found if one is not None and now_ms - one.last_ms <= RECENT_MS]
    return sorted(recent, key=lambda one: one.agent)


def _parse(agent: str, stored: bytes | None) -> FailedStart | None:
    if stored is None:
        return None
    try:
        count, last_ms, skills, error = _read(stored)
    except DamagedData:
        return None
    return FailedStart(agent, tuple(skills), count, last_ms, error)
