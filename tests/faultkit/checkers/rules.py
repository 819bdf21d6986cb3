"""Rules of a run, against which histories are checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SkillRule:
    """Rules of one skill.

    Attributes:
        ends: final states that its tasks may reach; also cancelled after a cancel, and dead after its deaths.
        chunks: number of output chunks of a successful attempt.
        kills: whether its handler kills its process.
    """

    max_attempts: int = 3
    max_deaths: int = 3
    ends: frozenset[str] = frozenset({"succeeded"})
    chunks: int = 0
    kills: bool = False


@dataclass(frozen=True, slots=True)
class LimitRule:
    """At most `starts` in every window."""

    starts: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Time limits after all faults ended, and after a single kill.

    Attributes:
        drained_ms: until every task has ended.
        restarted_ms: until the next attempt after a dead process.
        machine_ms: until a machine counts as dead: a lease and the time to the next search.
        ended_handlers: after a kill, until the lost tasks have ended, in times of the longest handler.
        poison_handlers: the same for tasks that died with a poison, from the first death on.
        fresh_handlers: longest wait of a fresh task after a kill.
        margin_ms: added to each of these.
        poison_margin_ms: added for a poison, because a process starts again after each of its deaths.
    """

    drained_ms: int
    restarted_ms: int
    machine_ms: int = 0
    ended_handlers: float = 3
    poison_handlers: float = 10
    fresh_handlers: float = 1
    margin_ms: int = 2000
    poison_margin_ms: int = 8000


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a run; skills default to `SkillRule()`.

    Attributes:
        ranked: skills whose tasks wait only for their turn, so that their order can be checked.
        live: workers per agent at the end.
        counts_bytes: all programs count the bytes of waiting tasks; older ones leave sums that a scan corrects.
        steered_lanes: name prefix of lanes in which tasks interrupt and replace others, without an order.
    """

    bounds: Bounds
    skills: Mapping[str, SkillRule] = field(default_factory=dict)
    limits: Mapping[str, LimitRule] = field(default_factory=dict)
    ranked: frozenset[str] = frozenset()
    live: Mapping[str, int] = field(default_factory=dict)
    steered_lanes: tuple[str, ...] = ()
    counts_bytes: bool = True

    def skill(self, name: str) -> SkillRule:
        """Return the rules of a skill."""
        return self.skills.get(name, SkillRule())
