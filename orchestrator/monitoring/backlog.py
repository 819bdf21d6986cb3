"""Computes the work that waits per slot, the number for autoscaling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self

from orchestrator.agents.timings import RECENT_RUNS, RECENT_US, unpack_cells
from orchestrator.core.reading import read_text
from orchestrator.core.slots import STOP_ALL, hold_slot, pause_slot, stop_slot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.monitoring.pool_reader import PoolReading
    from orchestrator.monitoring.scripts import ReadyPlace

UNKNOWN_RUN_S: Final = 1.0
"""Running time of a task in a pool that has not run any."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work that waits in queues.

    Attributes:
        waiting: ready tasks that no stop or pause holds, suspects included.
        slots: slots of the live agents that serve the queues and that no stop or pause holds.
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
            agent, _, skill = read_text(name).partition(" ")
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


class ActiveStops:
    """Judges which agents and queues the active stops and pauses hold.

    They hold the queue of a skill too if they hold every registered agent that has the skill.
    """

    def __init__(self, reading: PoolReading) -> None:
        self._stops = reading.numbers.stops
        self._all = STOP_ALL in self._stops
        self._held_skills = self._find_held_skills(reading) if self._stops and not self._all else frozenset[str]()

    def _find_held_skills(self, reading: PoolReading) -> frozenset[str]:
        held, free = set[str](), set[str]()
        for name, agent in reading.agents.items():
            (held if self.hold_agent(name) else free).update(_split(agent.skills))
        return frozenset(held - free)

    def hold_agent(self, agent: str) -> bool:
        """Return whether the agent gets no task."""
        if not self._stops:
            return False
        slots = {stop_slot("agent", agent), pause_slot("agent", agent), hold_slot("agent", agent)}
        return self._all or not self._stops.isdisjoint(slots)

    def hold(self, place: ReadyPlace) -> bool:
        """Return whether no agent gets a task from this place."""
        if not self._stops:
            return False
        kind, name = place.served_by()
        slots = {stop_slot(kind, name), pause_slot("queue", f"{kind}:{name}")}
        if self._all or not self._stops.isdisjoint(slots):
            return True
        return name in self._held_skills if kind == "skill" else self.hold_agent(name)


def compute_backlogs(reading: PoolReading, times: RunningTimes) -> Backlogs:
    """Weigh the ready tasks of a pool by their running times. Parked and held tasks do not count."""
    stops = ActiveStops(reading)
    slots, slots_of = 0, dict[str, int]()
    for name, agent in reading.agents.items():
        if agent.slots:
            free = 0 if stops.hold_agent(name) else agent.slots
            slots += free
            for skill in _split(agent.skills):
                slots_of[skill] = slots_of.get(skill, 0) + free
    waiting, work_s, waiting_of = 0, 0.0, dict.fromkeys(slots_of, 0)
    for place, queue in reading.queues.items():
        if place.kind == "held":
            continue
        kind, name = place.served_by()
        count = 0 if stops.hold(place) else queue.tasks
        if kind == "skill" and queue.tasks:
            waiting_of[name] = waiting_of.get(name, 0) + count
        waiting += count
        work_s += count and count * (times.of_skill(name) if kind == "skill" else times.of_agent(name))
    skills = {
        skill: _backlog(count, slots_of.get(skill, 0), times.of_skill(skill))
        for skill, count in sorted(waiting_of.items())
    }
    pool = Backlog(waiting, slots, work_s / waiting if waiting else times.of_skill(""), work_s / max(slots, 1))
    return Backlogs(pool, skills)


@lru_cache(10_000)
def _split(skills: bytes) -> tuple[str, ...]:
    return tuple(read_text(skills).split())


def _backlog(waiting: int, slots: int, run_s: float) -> Backlog:
    return Backlog(waiting, slots, run_s, waiting * run_s / max(slots, 1))
