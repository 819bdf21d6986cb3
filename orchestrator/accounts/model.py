"""Roles, users and tokens, and to what they are narrowed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import IntEnum
from typing import Final

from orchestrator.core.queue_name import QueueName


class Role(IntEnum):
    """A role; a higher one may do all that a lower one may."""

    VIEWER = 1
    """Reads."""
    OPERATOR = 2
    """Gives commands that pause, stop, cancel, retry or answer."""
    ADMIN = 3
    """Gives also commands that lose data."""

    @property
    def word(self) -> str:
        """The name of the role, as the command line takes it."""
        return self.name.lower()

    @classmethod
    def of_word(cls, word: str) -> Role:
        """Return the role of a name; raises `KeyError` for another word."""
        return cls[word.upper()]


@dataclass(frozen=True, slots=True)
class AccountScope:
    """The part of a pool that a user or token may see and act on: all of it, or what belongs to one of the names.

    Attributes:
        agents: names of agents; their own queues belong to them.
        queues: as `skill:NAME` or `agent:NAME`.
        sessions: ids of sessions.
    """

    agents: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    sessions: frozenset[str] = frozenset()

    @property
    def narrowed(self) -> bool:
        """True unless it is everything."""
        return bool(self.agents or self.queues or self.sessions)

    def includes(
        self,
        *,
        agent: str | None = None,
        queue: str | None = None,
        session: str | None = None,
        skill: str | None = None,
    ) -> bool:
        """Return whether a thing that belongs to these is in the scope; one of them is enough."""
        if not self.narrowed:
            return True
        queues = {queue, None if skill is None else str(QueueName.of_skill(skill))}
        agents = {agent, None if queue is None else QueueName.parse(queue).agent}
        return bool(self.agents & agents or self.queues & queues or session in self.sessions)

    @property
    def words(self) -> str:
        """The names on one line, or `everything`."""
        named = (("agent", self.agents), ("queue", self.queues), ("session", self.sessions))
        return " ".join(f"{kind}={name}" for kind, names in named for name in sorted(names)) or "everything"


EVERYTHING: Final = AccountScope()


@dataclass(frozen=True, slots=True)
class User:
    """A user with a password.

    Attributes:
        number: of the password; it changes with each new one, so that sessions of the old one end.
    """

    name: str
    role: Role
    password: str
    number: int
    made_at: datetime
    scope: AccountScope = EVERYTHING


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. Redis has its SHA-256 only."""

    name: str
    role: Role
    made_at: datetime
    ends_at: datetime
    scope: AccountScope = EVERYTHING
