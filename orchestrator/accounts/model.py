"""Roles, users and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import IntEnum


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


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. Redis has its SHA-256 only."""

    name: str
    role: Role
    made_at: datetime
    ends_at: datetime
