"""What the tasks of a run are allowed to do: the terms against which histories are judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SkillRule:
    """One skill.

    Attributes:
        ends: final states that its tasks may reach by themselves. Beside these, a task may be cancelled if somebody
            tried to, and dead when it has used up its deaths.
        chunks: how many chunks of output a successful attempt emits.
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
    """How long things may take after everything was healed.

    Attributes:
        drained_ms: until every task has ended.
        restarted_ms: until an attempt whose process died is followed by the next one.
    """

    drained_ms: int
    restarted_ms: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The terms of a run; a skill that is not named has those of `SkillRule()`.

    Attributes:
        ranked: skills whose tasks never wait for anything but their turn, so that their order can be judged.
        live: workers per agent that are there in the end.
        steered_lanes: how the names of lanes begin in which tasks interrupt and replace others: they have no order.
    """

    bounds: Bounds
    skills: Mapping[str, SkillRule] = field(default_factory=dict)
    limits: Mapping[str, LimitRule] = field(default_factory=dict)
    ranked: frozenset[str] = frozenset()
    live: Mapping[str, int] = field(default_factory=dict)
    steered_lanes: tuple[str, ...] = ()

    def skill(self, name: str) -> SkillRule:
        """The terms of a skill."""
        return self.skills.get(name, SkillRule())
