"""Faults of single commands.

A fault is due at the k-th matching command since it was set. `Fault.seen` counts matching commands and `Fault.fired`
counts effects; a test should assert on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tests.faultkit.commands import Command, Matcher

Loss = Literal["cut", "reset", "truncate", "swallow"]
Turn: TypeAlias = int | Literal["every", "first-of-each"]
"""The k-th matching command, all, or the first of each different one (a repeat with the same bytes passes)."""

Hook: TypeAlias = Callable[[Command], Awaitable[None] | None]


@dataclass(slots=True, eq=False)
class Fault:
    """One fault that waits for its command.

    Attributes:
        seen: matching commands since the fault was set.
        fired: number of its effects.
        active: False after `stop()` or `heal()`.
    """

    match: Matcher
    turn: Turn
    seen: int = 0
    fired: int = 0
    active: bool = True
    _met: set[int] = field(default_factory=set, repr=False)

    def matches(self, command: Command) -> bool:
        """Count a command and return True if it is this fault's turn."""
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
        """Match no further command."""
        self.active = False


@dataclass(slots=True, eq=False)
class ReplyLoss(Fault):
    """Runs the command, reads its whole reply, and drops it."""

    how: Loss = "cut"


@dataclass(slots=True, eq=False)
class CommandLoss(Fault):
    """Drops the command before the server receives it."""

    how: Loss = "cut"


@dataclass(slots=True, eq=False)
class Doubling(Fault):
    """Sends the command to the server twice, and one of the two replies to the client."""

    answer: Literal["first", "second"] = "first"


@dataclass(slots=True, eq=False)
class Watch(Fault):
    """Awaits a hook before the server receives the command, or before the client gets the reply."""

    hook: Hook = field(kw_only=True)
    where: Literal["request", "reply"] = "request"
