"""Computes the work that waits per slot, the number for autoscaling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self

from orchestrator.agents.timings import RECENT_RUNS, RECENT_US, unpack_cells

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.monitoring.pool_reader import PoolReading

UNKNOWN_RUN_S: Final = 1.0
"""Running time of a task in a pool that has not run any."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work that waits in queues.

    Attributes:
        waiting: ready tasks.
        slots: slots of the live agents that serve the queues.
        run_s: recent mean running time of such a task.
        seconds: work that waits per slot: waiting x run_s / slots; without a slot, that for one slot.
    """

    waiting: int
    slots: int
    run_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Backlogs:
    """Backlog of a pool, and of each skill that has slots or waiting tasks, by name."""

    pool: Backlog
    skills: Mapping[str, Backlog]


class RunningTimes:
    """Recent mean running times: of a skill or an agent, else of the pool."""

    def __init__(self, attempts: Mapping[bytes, Sequence[int]]) -> None:
        self._sums: dict[str, list[int]] = {}
        for name, cells in attempts.items():
            agent, _, skill = name.decode().partition(" ")
            for key in (f"agent {agent}", f"skill {skill}", ""):
                sums = self._sums.setdefault(key, [0, 0])
                sums[0] += cells[RECENT_RUNS]
                sums[1] += cells[RECENT_US]

    @classmethod
    def read(cls, attempts: Mapping[bytes, bytes]) -> Self:
        """Take the counters as Redis stores them."""
        return cls({key: unpack_cells(packed) for key, packed in attempts.items()})

    def of_skill(self, skill: str) -> float:
        """Return the mean of a skill in seconds."""
        return self._mean_s(f"skill {skill}")

    def of_agent(self, agent: str) -> float:
        """Return the mean of an agent in seconds."""
        return self._mean_s(f"agent {agent}")

    def _mean_s(self, key: str) -> float:
        for sums in (self._sums.get(key), self._sums.get("")):
            if sums and sums[0]:
                return sums[1] / sums[0] / 1000
        return UNKNOWN_RUN_S


def compute_backlogs(reading: PoolReading, times: RunningTimes) -> Backlogs:
    """Weigh the ready tasks of a pool by their running times. Parked and held tasks and suspects do not count."""
    slots_of: dict[str, int] = {}
    for agent in reading.agents.values():
        if agent.slots:
            for skill in _split(agent.skills):
                slots_of[skill] = slots_of.get(skill, 0) + agent.slots
    skills: dict[str, Backlog] = {skill: _backlog(0, count, times.of_skill(skill)) for skill, count in slots_of.items()}
    waiting, work_s = 0, 0.0
    for (kind, name), queue in reading.queues.items():
        if kind in {"skill", "agent"} and queue.tasks:
            run_s = times.of_skill(name) if kind == "skill" else times.of_agent(name)
            if kind == "skill":
                skills[name] = _backlog(queue.tasks, slots_of.get(name, 0), run_s)
            waiting += queue.tasks
            work_s += queue.tasks * run_s
    slots = sum(agent.slots for agent in reading.agents.values())
    pool = Backlog(waiting, slots, work_s / waiting if waiting else times.of_skill(""), work_s / max(slots, 1))
    return Backlogs(pool, dict(sorted(skills.items())))


@lru_cache(10_000)
def _split(skills: bytes) -> tuple[str, ...]:
    return tuple(skills.decode().split())


def _backlog(waiting: int, slots: int, run_s: float) -> Backlog:
    return Backlog(waiting, slots, run_s, waiting * run_s / max(slots, 1))
