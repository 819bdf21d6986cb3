"""Duties of process 1, which every program in a container may be.

The kernel drops a signal that process 1 has no handler for, and makes process 1 the parent of processes that have lost
theirs.
"""

from __future__ import annotations

import os
import signal


def end_on_sigterm() -> None:
    """Let SIGTERM end process 1, as it ends any other process, until the program installs a handler of its own."""
    if os.getpid() == 1:
        # Without exit handlers: the signal may arrive in the middle of an import.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def reap_orphans() -> None:
    """Let the kernel reap the children of process 1; a program that starts some of its own loses their statuses."""
    if os.getpid() == 1:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
