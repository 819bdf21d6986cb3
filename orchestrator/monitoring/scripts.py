"""Wraps the scripts in `lua/monitoring/`, one function per script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.store.calls import Call, pack_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.store.keys import PoolKeys

AT_ONCE: Final = 500
"""Agents or sets of tasks that one call reads."""


@dataclass(frozen=True, slots=True)
class PoolNumbers:
    """What a pool counts and holds.

    Attributes:
        now_ms: time of the server.
        leader: id of the leading supervisor, or empty.
        counters: of the scripts, since the beginning.
        attempts: packed cells by agent and skill, separated by a blank.
        agents: names, longest silent first.
        next_fire_ms: when the next schedule is due; None without schedules.
    """

    now_ms: int
    leader: str
    counters: Mapping[str, int]
    attempts: Mapping[bytes, bytes]
    agents: Sequence[str]
    scheduled: int
    asking: int
    dead: int
    workers: int
    supervisors: int
    schedules: int
    sessions: int
    commands: int
    refusals: int
    next_fire_ms: float | None


class AgentNumbers(NamedTuple):
    """Slots and entries of one agent; the skills are separated by blanks."""

    slots: int
    skills: bytes
    unread: int
    running: int
    parked: int


class QueueNumbers(NamedTuple):
    """Length of a set of ready tasks, and since when its oldest one is ready (0: it is empty); see the script."""

    tasks: int
    since_ms: int


def measure_pool(keys: PoolKeys, *, now_us: str = "") -> Call[PoolNumbers]:
    """Read the numbers of a pool."""

    def parse(reply: list[Any]) -> PoolNumbers:
        now, leader, counters, attempts, agents, sizes = reply
        *counts, next_fire = sizes if len(sizes) == 10 else [*sizes, None]
        return PoolNumbers(
            int(now) // 1000,
            leader.decode(),
            {name.decode(): int(count) for name, count in zip(counters[::2], counters[1::2], strict=True)},
            dict(zip(attempts[::2], attempts[1::2], strict=True)),
            [name.decode() for name in agents],
            *counts,
            next_fire_ms=None if next_fire is None else float(next_fire),
        )

    return Call("monitoring/measure_pool", {"pool": keys.root, "now_arg": now_us}, parse)


def measure_agents(keys: PoolKeys, *, agents: Sequence[str]) -> Call[dict[str, AgentNumbers]]:
    """Read the numbers of up to `AT_ONCE` agents."""

    def parse(reply: list[Any]) -> dict[str, AgentNumbers]:
        rows = zip(agents, reply[::5], reply[1::5], reply[2::5], reply[3::5], reply[4::5], strict=True)
        return {name: AgentNumbers(int(slots or 0), *rest) for name, slots, *rest in rows}

    packed = pack_rows([(agent,) for agent in agents])
    return Call("monitoring/measure_agents", {"pool": keys.root, "rows": packed}, parse)


def measure_queues(keys: PoolKeys, *, suffixes: Sequence[str]) -> Call[dict[str, QueueNumbers]]:
    """Read the numbers of up to `AT_ONCE` sets of ready tasks, by the suffixes of their keys."""

    def parse(reply: list[Any]) -> dict[str, QueueNumbers]:
        rows = zip(suffixes, reply[::2], reply[1::2], strict=True)
        return {name: QueueNumbers(count, int(since)) for name, count, since in rows}

    packed = pack_rows([(suffix,) for suffix in suffixes])
    return Call("monitoring/measure_queues", {"pool": keys.root, "rows": packed}, parse)
