"""Prints the warnings of a submit as lines, or leaves them out."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.cli.terminal.output import say
from orchestrator.core.caller_warning import NoAgentWarning

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print each warning of the block that no agent takes a task, as `warning: ...` on standard error."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", NoAgentWarning)
        warnings.showwarning = show
        yield


def expect_agents_later() -> None:
    """Print no such warning in this process, which submits tasks before it starts their agents."""
    warnings.simplefilter("ignore", NoAgentWarning)
