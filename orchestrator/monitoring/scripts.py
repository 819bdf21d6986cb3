"""Wraps the scripts in `lua/monitoring/`, one function per script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_score, read_text, read_whole
from orchestrator.store.calls import Call, pack_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.store.keys import PoolKeys

AT_ONCE: Final = 250
"""Agents or sets of tasks that one call reads."""


@dataclass(frozen=True, slots=True)
class PoolNumbers:
    """Counters and sizes of a pool.

    Attributes:
        now_ms: time of the server.
        leader: id of the leading supervisor, or empty.
        counters: of the scripts, since the beginning.
        agents: names, longest silent first.
        stops: slots of active stops and pauses, without those of sessions.
        stopped_sessions: number of stopped sessions.
        next_fire_ms: when the next schedule is due; None without schedules.
    """

    now_ms: int
    leader: str
    counters: Mapping[str, int]
    agents: Sequence[str]
    stops: frozenset[str]
    stopped_sessions: int
    scheduled: int
    asking: int
    joining: int
    awaiting_tasks: int
    dead: int
    workers: int
    supervisors: int
    schedules: int
    sessions: int
    commands: int
    refusals: int
    next_fire_ms: float | None


class ReadyPlace(NamedTuple):
    """A set of ready tasks: the queue of a skill or an agent, the suspects of a queue, or the tasks that a stop holds.

    Attributes:
        kind: a value of the label `kind` of `orc_queue_waiting`.
        name: of the skill, the agent, the queue or the scope.
    """

    kind: Literal["skill", "agent", "suspect", "held"]
    name: str

    @classmethod
    def of_queue(cls, queue: str) -> ReadyPlace:
        """Return the place of `skill:NAME` or `agent:NAME`."""
        kind, name = QueueName.parse(queue)
        return cls("skill" if kind == "skill" else "agent", name)

    def served_by(self) -> ReadyPlace:
        """Return the queue of suspects; another place itself."""
        return ReadyPlace.of_queue(self.name) if self.kind == "suspect" else self

    def key(self, keys: PoolKeys) -> str:
        """Return the key of the set."""
        if self.kind == "suspect":
            return keys.suspects(self.name)
        return keys.held(self.name) if self.kind == "held" else keys.queue(str(QueueName(self.kind, self.name)))


class AgentNumbers(NamedTuple):
    """Slots and entries of one agent; the skills are separated by blanks."""

    slots: int
    skills: bytes
    unread: int
    running: int
    parked: int


class QueueNumbers(NamedTuple):
    """Length of a place, and since when its oldest one is ready (0: it is empty); see the script."""

    tasks: int
    since_ms: int


def measure_pool(keys: PoolKeys, *, now_us: str = "") -> Call[PoolNumbers]:
    """Read the numbers of a pool."""

    def parse(reply: list[Any]) -> PoolNumbers:
        now, leader, counters, agents, sizes, stops, stopped = reply
        scheduled, asking, joining, awaiting_tasks, dead, workers, supervisors, *rest = sizes
        schedules, sessions, commands, refusals, *next_fire = rest
        return PoolNumbers(
            now_ms=read_whole(now) // 1000,
            leader=read_text(leader),
            counters={
                read_text(name): read_whole(count) for name, count in zip(counters[::2], counters[1::2], strict=True)
            },
            agents=[read_text(name) for name in agents],
            stops=frozenset(read_text(slot) for slot in stops),
            stopped_sessions=stopped,
            scheduled=scheduled,
            asking=asking,
            joining=joining,
            awaiting_tasks=awaiting_tasks,
            dead=dead,
            workers=workers,
            supervisors=supervisors,
            schedules=schedules,
            sessions=sessions,
            commands=commands,
            refusals=refusals,
            next_fire_ms=read_score(next_fire[0]) if next_fire else None,
        )

    return Call("monitoring/measure_pool", {"pool": keys.root, "now_arg": now_us}, parse)


def measure_agents(keys: PoolKeys, *, agents: Sequence[str]) -> Call[dict[str, AgentNumbers]]:
    """Read the numbers of up to `AT_ONCE` agents."""

    def parse(reply: list[Any]) -> dict[str, AgentNumbers]:
        slots = [read_whole(each) for each in reply[::5]]
        rows = map(AgentNumbers, slots, reply[1::5], reply[2::5], reply[3::5], reply[4::5])
        return dict(zip(agents, rows, strict=True))

    packed = pack_rows([(agent,) for agent in agents])
    return Call("monitoring/measure_agents", {"pool": keys.root, "rows": packed}, parse)


def measure_queues(keys: PoolKeys, *, places: Sequence[ReadyPlace]) -> Call[dict[ReadyPlace, QueueNumbers]]:
    """Read the numbers of up to `AT_ONCE` places."""

    def parse(reply: list[Any]) -> dict[ReadyPlace, QueueNumbers]:
        rows = zip(places, reply[::2], reply[1::2], strict=True)
        return {name: QueueNumbers(count, read_whole(since)) for name, count, since in rows}

    packed = pack_rows([(place.key(keys).removeprefix(keys.stem),) for place in places])
    return Call("monitoring/measure_queues", {"pool": keys.root, "rows": packed}, parse)
