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
    from collections.abc import Callable, Iterator
    from types import FrameType

_TERMINAL: Final = "/dev/tty"


class Terminal:
    """The controlling terminal that the process has at its start, if any."""

    def __init__(self) -> None:
        self._was_there = _is_there()

    @property
    def is_gone(self) -> bool:
        """True if the terminal was closed, so that a SIGHUP asks the process to end."""
        return self._was_there and not _is_there()

    def asks_reload(self, number: int) -> bool:
        """Return whether a signal is a SIGHUP that asks for a reload, as one does unless the terminal was closed."""
        return number == signal.SIGHUP and not self.is_gone


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


class EarlyHangup:
    """Notes SIGHUP while a program starts and ends, before and after it receives the signal itself.

    It installs a handler, not a mask, which programs that start meanwhile would inherit.
    """

    def __init__(self) -> None:
        self._came = False
        self._before = signal.signal(signal.SIGHUP, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True

    def __bool__(self) -> bool:
        """True if the signal came. Ask once the receiver has the signal, so that none falls between the two."""
        return self._came

    def resume(self, remove: Callable[[], object]) -> None:
        """Note the signal again at the end of a program; `remove` takes it from the receiver."""
        block_hangup()
        try:
            remove()
            signal.signal(signal.SIGHUP, self._note)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def restore(self) -> None:
        """Install the handler that was there before."""
        if self._before is not None:  # as for a handler that is not of Python
            signal.signal(signal.SIGHUP, self._before)


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
