"""Asks a person before something is destroyed."""

from __future__ import annotations

import sys

from orchestrator.cli.terminal.failures import CommandAborted
from orchestrator.cli.terminal.output import is_terminal


def ask(action: str, *, yes: bool, final: bool = True) -> None:
    """Ask whether to do what cannot be undone, or (`final` False) what touches many. Blocks.

    Args:
        action: what would be done, with its count: "delete 3 tasks".
        yes: the answer was given on the command line.
        final: it cannot be undone.

    Raises:
        CommandAborted: the answer is no, or nobody is there to give one.
    """
    if yes:
        return
    _check_terminal(action)
    sys.stderr.write(f"{action}? {'This cannot be undone. ' if final else ''}[y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandAborted(f"did not {action}; nothing was changed")


def ask_for_name(action: str, name: str, *, yes: bool) -> None:
    """The same for what destroys much: the answer is the name of what it is done to, typed."""
    if yes:
        return
    _check_terminal(action)
    sys.stderr.write(f"{action}? This cannot be undone. Type {name} to go on: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != name:
        raise CommandAborted(f"did not {action}; nothing was changed")


def _check_terminal(action: str) -> None:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise CommandAborted(f"not asked whether to {action}, for there is no terminal; say --yes if that is meant")
