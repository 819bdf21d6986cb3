"""Writes the stacks of all threads to standard error when a signal of a crash ends the process."""

from __future__ import annotations

import faulthandler
from contextlib import suppress


def trace_crashes() -> None:
    """Write a traceback on SIGABRT, by which the watchdog of systemd ends a process, and on SIGSEGV and the like.

    Processes that this one forks do so too.
    """
    with suppress(RuntimeError, OSError, ValueError):  # without standard error
        faulthandler.enable()
