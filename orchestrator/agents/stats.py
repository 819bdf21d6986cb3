"""Sums the counters of attempts over a span of time, per agent or skill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from orchestrator.agents import queries
from orchestrator.agents.timings import KEPT_MINUTES, Timings, sum_cells
from orchestrator.core.durations import Duration, to_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_whole

if TYPE_CHECKING:
    from orchestrator.store.store import Store

By: TypeAlias = Literal["agent", "skill", "both"]


@dataclass(frozen=True, slots=True)
class AttemptStats:
    """Attempts of an agent, a skill, or a skill of one agent.

    Attributes:
        agent: None for all agents; `*` for those beyond the 200 pairs of agent and skill that are counted by name.
        skill: None for all skills; `*` likewise.
        seconds: the time that the numbers cover: whole minutes, and the one that has not ended.
        timings: outcomes, waiting times and running times.
    """

    agent: str | None
    skill: str | None
    seconds: int
    timings: Timings

    @property
    def per_minute(self) -> float:
        """Attempts that ended per minute."""
        return self.timings.attempts * 60 / self.seconds


async def read_stats(store: Store, *, within: Duration, by: By) -> list[AttemptStats]:
    """Sum the counters of the last minutes, most attempts first.

    Raises:
        InvalidInput: `within` is 0 or longer than a day, or `by` is not known.
    """
    minutes = -(-to_ms("within", within) // 60_000)
    if not 1 <= minutes <= KEPT_MINUTES:
        raise InvalidInput(f"within must be above 0 and at most {KEPT_MINUTES * 60} seconds, which are kept")
    if by not in get_args(By):
        raise InvalidInput(f"by {by!r} is not known; use {', '.join(get_args(By))}")
    now_s = read_whole((await store.execute("TIME"))[0])
    last, begun_s = divmod(now_s, 60)
    parts: dict[tuple[str | None, str | None], list[list[int]]] = {}
    for (agent, skill), found in (await queries.timings(store, range(last - minutes, last + 1))).items():
        key = (None if by == "skill" else agent, None if by == "agent" else skill)
        parts.setdefault(key, []).extend(found)
    stats = [AttemptStats(*key, minutes * 60 + begun_s, sum_cells(found)) for key, found in parts.items()]
    return sorted(stats, key=lambda one: (-one.timings.attempts, one.agent or "", one.skill or ""))
