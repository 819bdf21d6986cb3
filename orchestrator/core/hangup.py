"""Receives SIGHUP: it asks a daemon to reload its settings, and tells a program that its terminal is gone.

A program must not die of a SIGHUP that arrives while it starts or stops. So it blocks the signal, except while it
receives it, and the kernel keeps the signal until then.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_TERMINAL: Final = "/dev/tty"


class Terminal:
    """The controlling terminal that the process has at its start, if any."""

    def __init__(self) -> None:
        self._was_there = _is_there()

    @property
    def is_gone(self) -> bool:
        """True if the terminal was closed, so that a SIGHUP asks the process to end."""
        return self._was_there and not _is_there()


def block_hangup() -> None:
    """Keep SIGHUP until `hangup_received`; threads and child processes that start now block it too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


@contextmanager
def hangup_received() -> Iterator[None]:
    """Let SIGHUP arrive inside the block, which is inside that of the receiver."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        block_hangup()


def ignore_hangup() -> None:
    """Let SIGHUP do nothing in this process. The programs that it starts get the default action."""
    # SIG_IGN would stay ignored in them.
    signal.signal(signal.SIGHUP, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _is_there() -> bool:
    try:
        os.close(os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
