"""Represents a command in the proxy: matching, and its record in the log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tests.faultkit import resp

CommandOutcome = Literal["pending", "replied", "reply lost", "command lost"]

_SCRIPT_CALLS: Final = frozenset({"EVALSHA", "EVALSHA_RO", "EVAL", "EVAL_RO", "FCALL", "FCALL_RO"})
_CONNECTION_COMMANDS: Final = frozenset(
    {"HELLO", "AUTH", "SELECT", "CLIENT", "COMMAND", "INFO", "PING", "RESET", "QUIT"}
)
_TRANSACTION_COMMANDS: Final = frozenset({"MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH"})
_BLOCKING_COMMANDS: Final = frozenset(
    {"BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BLMPOP", "BZPOPMIN", "BZPOPMAX", "BZMPOP", "WAIT", "WAITAOF"}
)
SUBSCRIPTION_COMMANDS: Final = frozenset(
    {"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"}
)


class Command:
    """One command of a client; its arguments are parsed on first access."""

    __slots__ = ("_arguments", "connection", "frame", "name")

    def __init__(self, frame: bytes, *, connection: int) -> None:
        self.frame = frame
        self.connection = connection
        self.name = next(resp.arguments(frame, limit=1), b"").decode("ascii", "replace").upper()
        self._arguments: tuple[bytes, ...] | None = None

    def __repr__(self) -> str:
        return f"<{self.name} on connection {self.connection}, {len(self.frame)} bytes>"

    @property
    def arguments(self) -> tuple[bytes, ...]:
        """The arguments after the name."""
        if self._arguments is None:
            self._arguments = tuple(resp.arguments(self.frame))[1:]
        return self._arguments

    @property
    def script(self) -> str | None:
        """SHA-1 of the called script, name of the called function, or None."""
        if self.name not in _SCRIPT_CALLS or not self.arguments:
            return None
        first = self.arguments[0]
        if self.name.startswith("EVALSHA"):
            return first.decode("ascii", "replace").lower()
        if self.name.startswith("EVAL"):
            return hashlib.sha1(first, usedforsecurity=False).hexdigest()
        return first.decode("utf-8", "replace")

    @property
    def blocks(self) -> bool:
        """True if the server may block the client."""
        if self.name in {"XREAD", "XREADGROUP"}:
            options = [argument.upper() for argument in self.arguments[:8]]
            return b"BLOCK" in options[: options.index(b"STREAMS")] if b"STREAMS" in options else b"BLOCK" in options
        return self.name in _BLOCKING_COMMANDS


Matcher: TypeAlias = Callable[[Command], bool]
Match: TypeAlias = str | Matcher
"""Name of a command, or a predicate on it."""


def any_command(_command: Command) -> bool:
    """Match every command."""
    return True


def any_work(command: Command) -> bool:
    """Match every command but connection set-up and health checks (HELLO, AUTH, CLIENT, INFO, PING and the like)."""
    return command.name not in _CONNECTION_COMMANDS


def any_script(command: Command) -> bool:
    """Match every call of a script or function."""
    return command.name in _SCRIPT_CALLS


def named(*names: str) -> Matcher:
    """Match commands by name."""
    wanted = frozenset(name.upper() for name in names)
    return lambda command: command.name in wanted


def script(*scripts: str) -> Matcher:
    """Match calls of these scripts (SHA-1, whether called by EVALSHA or EVAL) or functions (name)."""
    wanted = frozenset(scripts)
    return lambda command: command.script in wanted


def matcher(match: Match) -> Matcher:
    """Return the predicate of `match`."""
    return named(match) if isinstance(match, str) else match


def repeatable(command: Command) -> bool:
    """Return True if a second copy of the command leaves the state of its connection unchanged."""
    return command.name not in _TRANSACTION_COMMANDS | SUBSCRIPTION_COMMANDS | {"RESET", "QUIT", "SHUTDOWN"}


@dataclass(slots=True)
class CommandRecord:
    """Log entry of a command.

    Attributes:
        number: position among all commands of the proxy, from 1.
        connection: number of the client's connection, from 1.
        arguments: the first arguments after the name, each cut to a few bytes.
        forwarded_at_s: monotonic time of the write to the server; None if it was not written.
        replied_at_s: monotonic time of the reply to the client; None if there was none.
        outcome: stays `pending` if the connection ended first.
        copies: number of copies that the server received.
    """

    number: int
    connection: int
    name: str
    arguments: tuple[bytes, ...]
    size_bytes: int
    forwarded_at_s: float | None = None
    replied_at_s: float | None = None
    outcome: CommandOutcome = "pending"
    copies: int = 1
