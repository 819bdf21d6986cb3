"""The values of the registry. Pure."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003
from typing import NamedTuple

from orchestrator.core.errors import InvalidInput
from orchestrator.core.rates import Rate  # noqa: TC001
from orchestrator.store.keys import PoolKeys


class SkillTerms(NamedTuple):
    """How often a task of one skill may fail, and how often its worker may die, until it is a dead letter."""

    max_attempts: int
    max_deaths: int


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What a worker tells the registry about one agent.

    Attributes:
        skills: names of its handlers.
        rate: its own limit over the whole pool; None = no limit.
        limits: names of further limits that each start must fit into.
        known_limits: definitions of named limits that this process has in its settings.
        lease_ms: until a vanished worker's task is given to another.
        terms: by skill; where a worker decides, its own count.
    """

    name: str
    skills: frozenset[str]
    rate: Rate | None = None
    limits: tuple[str, ...] = ()
    known_limits: Mapping[str, Rate] = field(default_factory=dict)
    lease_ms: int = 15_000
    terms: Mapping[str, SkillTerms] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if PoolKeys.is_ambiguous(self.name):
            raise InvalidInput(f"agent {self.name!r} would share a key with another agent; end its name differently")

    @property
    def limit_names(self) -> tuple[str, ...]:
        """All limits of a start; an agent's own one begins with `@`, which no given name can."""
        return ((f"@{self.name}",) if self.rate else ()) + self.limits

    @property
    def definitions(self) -> dict[str, Rate]:
        """Definitions that registration writes."""
        own = {f"@{self.name}": self.rate} if self.rate else {}
        return own | {name: self.known_limits[name] for name in self.limits if name in self.known_limits}


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent as the pool knows it.

    Attributes:
        slots: tasks that its live workers run at once.
        workers: ids of its live workers.
        inbox: entries in its inbox (waiting there or running).
        limits: readable rates by name.
    """

    name: str
    skills: tuple[str, ...]
    slots: int
    backlog: int
    workers: tuple[str, ...]
    inbox: int
    limits: Mapping[str, str]
    last_seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A live worker: where it runs and how many slots it has per agent."""

    id: str
    host: str
    pid: int
    version: str
    agents: Mapping[str, int]
    started_at: datetime | None
    last_seen_at: datetime
