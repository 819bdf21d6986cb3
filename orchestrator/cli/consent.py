"""Asks a person before something is destroyed."""

from __future__ import annotations

import sys

from orchestrator.cli.failures import Refused
from orchestrator.cli.output import is_terminal


def ask(deed: str, *, yes: bool) -> None:
    """Ask whether to do what cannot be undone. Blocks.

    Args:
        deed: what would be done, with its count: "delete 3 tasks".
        yes: the answer was given on the command line.

    Raises:
        Refused: the answer is no, or nobody is there to give one.
    """
    if yes:
        return
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise Refused(f"not asked whether to {deed}, for there is no terminal; say --yes if that is meant")
    sys.stderr.write(f"{deed}? This cannot be undone. [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Refused(f"did not {deed}; nothing was changed")
