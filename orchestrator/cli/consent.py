"""Asks a person before something is destroyed."""

from __future__ import annotations

import sys

from orchestrator.cli.failures import Refused
from orchestrator.cli.output import is_terminal


def ask(deed: str, *, yes: bool, final: bool = True) -> None:
    """Ask whether to do what cannot be undone, or (`final` False) what touches many. Blocks.

    Args:
        deed: what would be done, with its count: "delete 3 tasks".
        yes: the answer was given on the command line.
        final: it cannot be undone.

    Raises:
        Refused: the answer is no, or nobody is there to give one.
    """
    if yes:
        return
    _check_terminal(deed)
    sys.stderr.write(f"{deed}? {'This cannot be undone. ' if final else ''}[y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Refused(f"did not {deed}; nothing was changed")


def ask_for_name(deed: str, name: str, *, yes: bool) -> None:
    """The same for what destroys much: the answer is the name of what it is done to, typed."""
    if yes:
        return
    _check_terminal(deed)
    sys.stderr.write(f"{deed}? This cannot be undone. Type {name} to go on: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != name:
        raise Refused(f"did not {deed}; nothing was changed")


def _check_terminal(deed: str) -> None:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise Refused(f"not asked whether to {deed}, for there is no terminal; say --yes if that is meant")
