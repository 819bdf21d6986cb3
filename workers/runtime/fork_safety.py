"""Tells why a process must not fork after it has imported a module (Linux).

A child of a fork has one thread, shares what its parent has open, with the positions in files, and the locks of the
other threads stay locked.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

TRIAL_S: Final = 2.0
"""Time for the child of a trial to end."""
THREADS_END_S: Final = 0.2
"""Time for threads to end that a library has joined; the kernel lists them a moment longer."""

_STATELESS: Final = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
_FILES: Final = Path("/proc/self/fd")
_THREADS: Final = Path("/proc/self/task")


def open_files() -> dict[int, str]:
    """Return the open files of this process by number."""
    found = {}
    for number in [int(entry.name) for entry in _FILES.iterdir()]:
        with suppress(FileNotFoundError):  # the one that listed the others
            found[number] = str((_FILES / str(number)).readlink())
    return found


def reason_against_fork(before: Collection[tuple[int, str]]) -> str | None:
    """Return why this process must not fork; None if it may.

    Args:
        before: numbers and targets of the files that may be shared.
    """
    names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if names:
        return f"it starts threads: {', '.join(names)}"
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_DFL:
        return "it handles SIGCHLD"
    if _has_children():
        return "it starts a program that goes on"
    reasons = (_shared(number, target) for number, target in open_files().items() if (number, target) not in before)
    return next(filter(None, reasons), None) or _thread_that_stays()


def _shared(number: int, target: str) -> str | None:
    """Return why an open file must not be shared by processes, if so."""
    if target == "anon_inode:[eventpoll]":
        return "it makes an event loop"
    try:
        mode, flags = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL)
    except OSError:  # closed since
        return None
    if stat.S_ISSOCK(mode):
        return "it opens a connection"
    # What is only appended to, such as a log, may be shared: each write goes to the end.
    appended = stat.S_ISREG(mode) and flags & os.O_APPEND and flags & os.O_ACCMODE == os.O_WRONLY
    return None if appended or target in _STATELESS else f"it keeps {target} open"


def _has_children() -> bool:
    """Return whether this process has children, running or ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _thread_that_stays() -> str | None:
    """Return why threads of native code are no reason to fork; None if there are none, or a fork ends them."""
    if _threads() == 1:
        return None
    # Libraries such as OpenBLAS end their threads before each fork and start them again when they need them.
    child = os.fork()
    if child == 0:
        os._exit(0)
    pidfd = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([pidfd], [], [], TRIAL_S)
        if not ended:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitpid(child, 0)
    finally:
        os.close(pidfd)
    if not ended:
        return "a process that it forks hangs"
    until_s = time.monotonic() + THREADS_END_S
    while (count := _threads()) > 1 and time.monotonic() < until_s:
        time.sleep(0.001)
    return f"it starts {count - 1} native threads" if count > 1 else None


def _threads() -> int:
    return sum(1 for _ in _THREADS.iterdir())
