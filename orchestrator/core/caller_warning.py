"""Warnings to the code that calls the client."""

from __future__ import annotations

import sys
import warnings
from typing import Final

_OURS: Final = ("orchestrator", "anyio", "asyncio", "concurrent", "threading")


class NoAgentWarning(UserWarning):
    """A task was submitted that no live agent takes; it waits until one does. Told once per skill and process."""


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn with the place of the first frame that is not ours; a call through the blocking client has none."""
    level, frame = 1, sys._getframe()  # noqa: SLF001 - `warnings` counts frames as well
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS
