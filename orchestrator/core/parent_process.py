"""Sends a process a signal when its parent dies (Linux)."""

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
    """Return a function for the child to call first, before it does anything else.

    The child then gets `number` when the parent thread that started it ends, and exits at once if it has ended already.
    Symbols are looked up in the parent, because little may be done between fork and exec.

    Args:
        number: SIGTERM for an orderly end, SIGKILL for a hard one.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    parent = os.getpid()

    def ask() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (number, 0, 0, 0)))
            if os.getppid() != parent:  # it died in between
                os._exit(1)

    return ask
