"""The process groups of `process=True` handlers, in memory that a worker shares with its host.

The process of a handler leads a group, so that the programs that the handler starts end with it. The host reads the
groups of a worker that died, because a dead worker kills nothing.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
from contextlib import suppress
from typing import Final

CAPACITY: Final = 65_536
"""Groups of one worker: more than an agent has slots, and than a machine has processes."""

_WHOLE_GROUP: Final = 4
"""PIDFD_SIGNAL_PROCESS_GROUP of `linux/pidfd.h`."""


def kill_group(group: int) -> None:
    """Kill all processes of a group, if there are any."""
    # macOS answers PermissionError for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def can_kill_group_of() -> bool:
    """Return whether the system can kill the group of a pidfd, which Linux can since 6.9."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        pidfd = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(pidfd, 0, None, _WHOLE_GROUP)
    except ProcessLookupError:  # this process leads no group
        return True
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def kill_group_of(pidfd: int) -> None:
    """Kill all processes of the group of a process that may have ended, and whose id another process may have got."""
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL, None, _WHOLE_GROUP)


def exit_code_of(pidfd: int) -> int:
    """Return the exit status of a child that has ended, or minus its signal. Its id is not free before a wait."""
    try:
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:  # the program ignores SIGCHLD
        return 0
    assert ended is not None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


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
        self.forget(group)

    def forget(self, group: int) -> None:
        """In the worker: forget a group that has been killed."""
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
