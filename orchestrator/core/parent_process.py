"""Lets a process end with the one that started it, where the system can tell it (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG: Final = 1
"""From `linux/prctl.h`."""


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Call this in the parent, and what it returns in the child, before it does anything else.

    The child then gets `number` when the parent's thread that started it ends, and leaves at once if that has happened
    already. Everything is looked up beforehand, because little may be done between fork and exec.

    Args:
        number: SIGTERM lets the child finish in order, SIGKILL does not.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    parent = os.getpid()

    def ask() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (number, 0, 0, 0)))
            if os.getppid() != parent:  # it died in between
                os._exit(1)

    return ask
