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
    """

    max_attempts: int = 3
    max_deaths: int = 3
    ends: frozenset[str] = frozenset({"succeeded"})
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class LimitRule:
    """At most `starts` in every window."""

    starts: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Time limits after all faults ended.

    Attributes:
        drained_ms: until every task has ended.
        restarted_ms: until the next attempt after a dead process.
    """

    drained_ms: int
    restarted_ms: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a run; skills default to `SkillRule()`.

    Attributes:
        ranked: skills whose tasks wait only for their turn, so that their order can be checked.
        live: workers per agent at the end.
        steered_lanes: name prefix of lanes in which tasks interrupt and replace others, without an order.
    """

    bounds: Bounds
    skills: Mapping[str, SkillRule] = field(default_factory=dict)
    limits: Mapping[str, LimitRule] = field(default_factory=dict)
    ranked: frozenset[str] = frozenset()
    live: Mapping[str, int] = field(default_factory=dict)
    steered_lanes: tuple[str, ...] = ()

    def skill(self, name: str) -> SkillRule:
        """Return the rules of a skill."""
        return self.skills.get(name, SkillRule())
