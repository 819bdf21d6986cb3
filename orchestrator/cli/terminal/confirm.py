"""Asks for confirmation on the terminal."""

from __future__ import annotations

import sys

from orchestrator.cli.terminal.failures import CommandAborted
from orchestrator.cli.terminal.output import is_terminal, prompt


def ask(action: str, *, yes: bool, final: bool = True) -> None:
    """Ask for confirmation of an action. Blocks.

    Args:
        action: the action with its count: "delete 3 tasks".
        yes: the confirmation was given on the command line.
        final: the action cannot be undone.

    Raises:
        CommandAborted: the answer is no, or there is no terminal.
    """
    if yes:
        return
    _check_terminal(action)
    prompt(f"{action}? {'This cannot be undone. ' if final else ''}[y/N]")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandAborted(f"did not {action}; nothing was changed")


def ask_for_name(action: str, name: str, *, yes: bool) -> None:
    """Ask for the name of the object as confirmation of an action on many tasks."""
    if yes:
        return
    _check_terminal(action)
    prompt(f"{action}? This cannot be undone. Type {name} to go on:")
    if sys.stdin.readline().strip() != name:
        raise CommandAborted(f"did not {action}; nothing was changed")


def _check_terminal(action: str) -> None:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise CommandAborted(f"cannot ask for confirmation to {action} without a terminal; add --yes to confirm")
