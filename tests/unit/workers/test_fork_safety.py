"""What a module may do when it is imported, so that its process may fork."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from orchestrator.workers.runtime.process_groups import kill_group
from orchestrator.workers.runtime.process_starter import CAN_FORK

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="forks need pidfds")

PTHREAD = """
import ctypes
c, thread = ctypes.CDLL(None), ctypes.c_ulong()
c.pthread_create(ctypes.byref(thread), None, ctypes.cast(c.pause, ctypes.c_void_p), None)
"""
CHECK = """
from orchestrator.workers.runtime.fork_safety import open_files, reason_against_fork
files = open_files().items()
{code}
print(reason_against_fork(files), flush=True)
"""
SAFE = {
    "nothing": "",
    "threads that a library ends before a fork": "import numpy; a = numpy.ones((500, 500)); a @ a",
    "a thread that has ended": "import threading; t = threading.Thread(target=int); t.start(); t.join()",
    "a log": "log = open({file!r}, 'a')",
    "a file that was read": "file = open('/etc/passwd'); file.read(); file.close()",
    "devices without state": "d = [open('/dev/' + n) for n in ('null', 'zero', 'full', 'random', 'urandom')]",
    "a program that has ended": "import subprocess; subprocess.run(['true'])",
    "a connection that was closed": "import socket; a, b = socket.socketpair(); a.close(); b.close()",
}
UNSAFE = {
    "a thread": ("import threading; threading.Thread(target=threading.Event().wait, daemon=True, name='t').start()",
                 "it starts threads: t"),
    "a connection": ("import socket; s = socket.socketpair()", "it opens a connection"),
    "an event loop": ("import select; e = select.epoll()", "it makes an event loop"),
    "a database": ("import sqlite3; d = sqlite3.connect({file!r}); d.execute('create table t (x)')",
                   "it keeps {file} open"),
    "a file that is read": ("file = open('/etc/passwd')", "it keeps /etc/passwd open"),
    "a file that is written": ("file = open({file!r}, 'w')", "it keeps {file} open"),
    "a log that is read too": ("file = open({file!r}, 'a+')", "it keeps {file} open"),
    "a pipe": ("import os; p = os.pipe()", "it keeps pipe:[1] open"),
    "a named pipe": ("import os; os.mkfifo({file!r}); pipe = open({file!r}, 'r+b', 0)", "it keeps {file} open"),
    "a terminal": ("import os; os.openpty()", "it keeps /dev/ptmx open"),
    "an event file": ("import os; os.eventfd(0)", "it keeps anon_inode:[eventfd] open"),
    "a socket of datagrams": ("import socket; s = socket.socket(type=socket.SOCK_DGRAM)", "it opens a connection"),
    "connected datagrams": ("import socket; s = socket.socketpair(type=socket.SOCK_DGRAM)", "it opens a connection"),
    "a program": ("import subprocess; p = subprocess.Popen(['sleep', '60'])", "it starts a program that goes on"),
    "a program with pipes": ("import subprocess; p = subprocess.Popen('cat', stdin=-1, stdout=-1)",
                             "it starts a program that goes on"),
    "signals of children": ("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "it handles SIGCHLD"),
    "native threads": (PTHREAD, "it starts 1 native threads"),
}  # fmt: skip


def reason(code: str, tmp_path: object) -> str:
    """What the check says after some code in a process of its own."""
    code = CHECK.format(code=code.replace("{file!r}", repr(f"{tmp_path}/file")))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        told = process.stdout.readline().strip()
        kill_group(process.pid)
    # Pipes have only numbers.
    return re.sub(r"pipe:\[\d+\]", "pipe:[1]", told)


@pytest.mark.parametrize("name", SAFE)
def test_what_is_safe(name: str, tmp_path: object) -> None:
    """The check allows forks."""
    assert reason(SAFE[name], tmp_path) == "None"


@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_not_safe(name: str, tmp_path: object) -> None:
    """The check names it."""
    code, told = UNSAFE[name]
    assert reason(code, tmp_path) == told.replace("{file}", f"{tmp_path}/file")
