"""Warnings to the code that calls the client."""

from __future__ import annotations

import sys
import warnings
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

_OURS: Final = ("orchestrator", "anyio", "asyncio", "concurrent", "threading")


class NoAgentWarning(UserWarning):
    """A task was submitted that no live agent takes; it waits until one does. Told once per skill and process."""


caller_thread: ContextVar[int] = ContextVar("caller_thread")
"""Thread whose call through the blocking client runs in this context; it waits for the call."""


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn with the place of the innermost frame that is not ours."""
    frame = _users(sys._getframe())  # noqa: SLF001 - `warnings` looks at frames as well
    if frame is None:
        frame = _users(sys._current_frames().get(caller_thread.get(0)))  # noqa: SLF001
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
        return
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _users(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame = frame.f_back
    return frame
