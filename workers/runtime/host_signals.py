"""Receives the signals of a worker host, whichever of its threads the kernel interrupts.

The modules of agents may have started threads, which do not have the signal mask of the main thread. So the host
installs handlers: the interpreter's part of a handler writes the number of the signal to a socket in any thread, and
the host waits for that socket.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_READ_BYTES: Final = 4096


class HostSignals:
    """The signals that a host waits for."""

    def __init__(self, numbers: Collection[signal.Signals]) -> None:
        self._numbers = frozenset(numbers)
        self._poll = select.poll()
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def open(self) -> None:
        """Handle the signals until `close`; call it in the main thread."""
        reader, writer = self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)  # noqa: FBT003 - it takes no keywords
        self._poll.register(reader, select.POLLIN)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, _do_nothing)
        # The program that started the host may have blocked some, so that they wait for this moment.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)

    def wait(self, timeout_s: float) -> list[signal.Signals]:
        """Wait for signals; return them in order, several of a kind as one, or none after the timeout."""
        assert self._ends is not None
        self._poll.poll(math.ceil(timeout_s * 1000))
        received = b""
        with suppress(BlockingIOError):
            while data := self._ends[0].recv(_READ_BYTES):
                received += data
        return [signal.Signals(number) for number in dict.fromkeys(received) if number in self._numbers]

    def close(self) -> None:
        """Ignore the signals, because the process is about to end; the interpreter removes handlers first."""
        for number in self._numbers - {signal.SIGCHLD}:
            signal.signal(number, signal.SIG_IGN)
        self._end()

    def fork(self) -> int:
        """Fork. In the child all these signals are blocked, with the handlers that they had before `open`."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        else:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self._end()
        return pid

    def _end(self) -> None:
        if self._ends is not None:
            signal.set_wakeup_fd(-1)
            for end in self._ends:
                end.close()


def _do_nothing(*_: object) -> None:
    """Keep the default action of a signal from ending the process."""
