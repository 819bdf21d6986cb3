"""Tells the host when the event loop of a worker last turned: one number in memory that both share.

The pulse notes it, so a loop that is blocked, an interpreter that somebody holds and a process that is stopped all look
alike from outside: the number stands still.
"""

from __future__ import annotations

import mmap
import struct
import time

_NUMBER = struct.Struct("d")


class Turns:
    """Made by the host before it forks; written by the child, read by the host."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _NUMBER.size)

    def note(self) -> None:
        """The loop has turned."""
        _NUMBER.pack_into(self._shared, 0, time.monotonic())

    def forget(self) -> None:
        """From now on nothing is promised: the worker is about to end."""
        _NUMBER.pack_into(self._shared, 0, 0.0)

    def silent_s(self) -> float:
        """Seconds since the last turn; 0 as long as none was promised."""
        (at_s,) = _NUMBER.unpack_from(self._shared, 0)
        return time.monotonic() - at_s if at_s else 0.0

    def close(self) -> None:
        """Give the memory back."""
        self._shared.close()
