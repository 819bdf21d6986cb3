"""The process groups of `process=True` handlers, in memory that a worker shares with its host.

The process of a handler leads a group, so that the programs that the handler starts end with it. The host reads the
groups of a worker that died, because a dead worker kills nothing.
"""

from __future__ import annotations

import mmap
import os
import signal
from contextlib import suppress
from typing import Final

CAPACITY: Final = 65_536
"""Groups of one worker: more than an agent has slots, and than a machine has processes."""


def kill_group(group: int) -> None:
    """Kill all processes of a group, if there are any."""
    # macOS answers PermissionError for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


class ProcessGroups:
    """The process groups that one worker has started and not ended."""

    def __init__(self) -> None:
        # The system provides a page of memory at its first use, so the capacity costs nothing.
        self._memory = mmap.mmap(-1, CAPACITY * 4)
        self._groups = memoryview(self._memory).cast("i")

    def add(self, group: int) -> None:
        """In the worker: record a group."""
        self._replace(0, group)

    def kill(self, group: int) -> None:
        """In the worker: kill a group and forget it."""
        kill_group(group)
        self._replace(group, 0)

    def kill_all(self) -> None:
        """In the host: kill the groups of a worker that has ended."""
        for group in filter(None, self._groups.tolist()):
            kill_group(group)

    def _replace(self, old: int, new: int) -> None:
        self._groups[self._groups.tolist().index(old)] = new

    def close(self) -> None:
        """Free the shared memory."""
        self._groups.release()
        self._memory.close()
