"""Defines the values of the registry. Does not talk to Redis."""

from __future__ import annotations

from collections.abc import Collection, Mapping  # noqa: TC003
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003
from typing import NamedTuple

from orchestrator.core.amounts import Amounts  # noqa: TC001
from orchestrator.core.errors import InvalidInput
from orchestrator.core.rates import Rate  # noqa: TC001
from orchestrator.store.keys import PoolKeys


class SkillTerms(NamedTuple):
    """Failures and deaths that make a task of one skill a dead letter."""

    max_attempts: int
    max_deaths: int


class SkillVersion(NamedTuple):
    """The arguments that a skill takes, as one version of its handler declares them.

    Attributes:
        digest: of the skill and the names, types and constraints of its arguments.
        required: names of the arguments without a default.
        optional: names of the arguments with a default.
    """

    digest: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """A version of a skill in the registry.

    Attributes:
        born_ms: first registration.
        live: whether a live worker has it.
        required: names of the arguments without a default.
        names: names of all arguments.
    """

    agent: str
    digest: str
    born_ms: int
    live: bool
    required: frozenset[str]
    names: frozenset[str]

    def takes(self, names: Collection[str]) -> bool:
        """Return whether arguments with these names may be valid."""
        return self.names.issuperset(names) and self.required.issubset(names)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """An agent as a worker registers it.

    Attributes:
        skills: names of its skills.
        rate: its own limit over the whole pool, or None if it has no limit.
        limits: names of further limits of each start.
        known_limits: definitions of named limits in the settings of this process.
        lease_ms: time after which the task of a silent worker is adopted.
        terms: by skill; absent where a worker decides itself.
        versions: by skill; absent where the arguments are unknown.
        redacted: skills whose values are hidden from views.
        funds: by skill what a start reserves, and the budgets that the agent names; absent without both.
    """

    name: str
    skills: frozenset[str]
    rate: Rate | None = None
    limits: tuple[str, ...] = ()
    known_limits: Mapping[str, Rate] = field(default_factory=dict)
    lease_ms: int = 15_000
    terms: Mapping[str, SkillTerms] = field(default_factory=dict)
    versions: Mapping[str, SkillVersion] = field(default_factory=dict)
    redacted: frozenset[str] = frozenset()
    funds: Mapping[str, tuple[Amounts, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if PoolKeys.is_ambiguous(self.name):
            raise InvalidInput(f"agent {self.name!r} would share a key with another agent; end its name differently")

    @property
    def limit_names(self) -> tuple[str, ...]:
        """All limits of a start; the agent's own one begins with `@`, which no other name can."""
        return ((f"@{self.name}",) if self.rate else ()) + self.limits

    @property
    def definitions(self) -> dict[str, Rate]:
        """The definitions that registration writes."""
        own = {f"@{self.name}": self.rate} if self.rate else {}
        return own | {name: self.known_limits[name] for name in self.limits if name in self.known_limits}


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """A registered agent.

    Attributes:
        slots: tasks that its live workers run at once.
        workers: ids of its live workers.
        inbox: entries in its inbox, running or unread.
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
class UnevenAgent:
    """An agent whose live workers have different skills.

    Attributes:
        live: number of its live workers.
        skills: skills that not all of them have, with the number of those that have it.
    """

    name: str
    live: int
    skills: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LoopBlock:
    """The last time when code blocked the event loop of a worker for a second or longer.

    Attributes:
        at: when the worker told of it.
        seconds: how long, or how long so far.
        count: number of such blocks since the start of the worker.
        where: file and line of the code.
    """

    at: datetime
    seconds: float
    count: int
    where: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A live worker."""

    id: str
    host: str
    pid: int
    version: str
    agents: Mapping[str, int]
    started_at: datetime | None
    last_seen_at: datetime
    settings: str = ""
    """Generation and digest of its settings; empty for a program from before both."""
    blocked: LoopBlock | None = None
