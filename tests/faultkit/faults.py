"""What may befall a single command, and how often it did.

A fault is due at the k-th command that matches, counted from the moment it was set. `Fault.seen` counts matching
commands, `Fault.fired` how often the fault was really felt: a test asserts on it, or it may have tested nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tests.faultkit.commands import Command, Matcher

Loss = Literal["cut", "reset", "truncate", "swallow"]
Turn: TypeAlias = int | Literal["every", "first-of-each"]
"""Which matching command: the k-th, all, or the first of each different one (a repeat with the same bytes passes)."""

Hook: TypeAlias = Callable[[Command], Awaitable[None] | None]


@dataclass(slots=True, eq=False)
class Fault:
    """One fault that waits for its command.

    Attributes:
        seen: matching commands since the fault was set.
        fired: how often it was felt.
        active: False after `stop()` or `heal()`.
    """

    match: Matcher
    turn: Turn
    seen: int = 0
    fired: int = 0
    active: bool = True
    _met: set[int] = field(default_factory=set, repr=False)

    def matches(self, command: Command) -> bool:
        """Count a command and tell whether it is this fault's turn."""
        if not self.active or not self.match(command):
            return False
        self.seen += 1
        if self.turn == "every":
            return True
        if self.turn == "first-of-each":
            mark = hash(command.frame)
            known = mark in self._met
            self._met.add(mark)
            return not known
        return self.seen == self.turn

    def stop(self) -> None:
        """Pick no further command."""
        self.active = False


@dataclass(slots=True, eq=False)
class ReplyLoss(Fault):
    """The command runs, its reply is read in full and does not arrive."""

    how: Loss = "cut"


@dataclass(slots=True, eq=False)
class CommandLoss(Fault):
    """The command never reaches the server."""

    how: Loss = "cut"


@dataclass(slots=True, eq=False)
class Doubling(Fault):
    """The command reaches the server twice, back to back, and the client sees one of the two replies."""

    answer: Literal["first", "second"] = "first"


@dataclass(slots=True, eq=False)
class Watch(Fault):
    """A hook is awaited before the server sees the command, or after it has run and before the client knows."""

    hook: Hook = field(kw_only=True)
    where: Literal["request", "reply"] = "request"
