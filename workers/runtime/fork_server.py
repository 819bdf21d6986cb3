"""The fork server of a worker: a process with one thread that has imported the handlers, and forks their processes.

It reports the end of each child and keeps its process id taken until the worker has killed the programs that the child
started, so that the worker never kills a process that got the id of another one. It runs no handler. Messages are
MessagePack in packets; the socket of the calls comes with the message that asks for a fork.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from orchestrator.core.hangup import ignore_hangup
from orchestrator.core.log import configure_logging
from orchestrator.core.parent_process import end_with_parent
from orchestrator.core.secret_environment import remember_secrets
from orchestrator.workers.runtime.fork_safety import open_files, reason_against_fork
from orchestrator.workers.runtime.handler_process import Hello, find_skill, serve
from orchestrator.workers.runtime.process_groups import exit_code_of, kill_group_of
from orchestrator.workers.runtime.verdicts import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKET_BYTES: Final = 128 * 1024
"""Longest message; less than the system buffers."""


class ImportHandler(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The order to import the handler of a skill."""

    module: str
    qualname: str
    skill: str
    redact: bool


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of the imports, from the worker; then from the server that it forks."""


class Fork(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The order to fork a process for the socket that comes with it."""

    number: int


class Reap(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The permission to free the id of a process, and the order to kill it if it has not ended."""

    pid: int


class Unsafe(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The reply that the server does not fork because of a module; it ends."""

    module: str
    reason: str


class Forked(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The reply to `Fork`: the new process, or the error of the system."""

    number: int
    pid: int = 0
    errno: int = 0


class ForkEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of a process: its exit status, or minus the number of its signal."""

    pid: int
    code: int


Order: TypeAlias = ImportHandler | Ready | Fork | Reap
Report: TypeAlias = Ready | Unsafe | Forked | ForkEnded


def serve_forks(number: int) -> None:
    """Fork processes for the worker at the socket with this file number, until it closes it."""
    # As in the process of a handler, which inherits it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore_hangup()
    control = socket.socket(fileno=number)
    control.set_inheritable(False)
    connection = _ForkServer(control).run()
    if connection is not None:
        serve(connection)


class _ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._children: dict[int, int] = {}
        """Processes by the numbers of their pidfds."""
        self._end_with_server = end_with_parent()

    def run(self) -> int | None:
        """Return in the server None at its end; in a child the file number of its socket."""
        if not (packet := self._control.recv(PACKET_BYTES)):
            return None
        hello = msgspec.msgpack.decode(packet, type=Hello)
        remember_secrets(hello.variables)
        configure_logging(level=hello.level, format=hello.format, secrets=hello.secrets)
        if not self._import(hello.main):
            return None
        gc.collect()
        # The collector writes to what it looks at; what it leaves alone stays shared with the children.
        gc.freeze()
        self._send(Ready())
        while True:
            for ready, _ in self._poll.poll():
                if ready != self._control.fileno():
                    self._report_end(ready)
                    continue
                order, files = self._receive()
                if order is None:
                    return None
                if isinstance(order, Reap):
                    self._reap(order.pid)
                elif isinstance(order, Fork) and self._fork(order, files):
                    return files[0]

    def _import(self, main: str | None) -> bool:
        """Import the handlers; return whether the worker wants processes, and the server may fork them."""
        files, checked = open_files().items(), set[str]()
        while isinstance(order := self._receive()[0], ImportHandler):
            try:
                find_skill(order.module, order.qualname, order.skill, main, redact=order.redact)
                reason = None if order.module in checked else reason_against_fork(files)
            except BaseException as broken:  # noqa: BLE001 - an import may raise anything
                reason = f"its import failed: {describe(broken, redact=order.redact)}"
            if reason is not None:
                self._send(Unsafe(order.module, reason))
                return False
            checked.add(order.module)
        return order is not None

    def _receive(self) -> tuple[Order | None, Sequence[int]]:
        try:
            packet, files, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # the worker has ended and left a packet unread
            return None, []
        return (msgspec.msgpack.decode(packet, type=Order) if packet else None), files

    def _send(self, report: Report) -> None:
        with suppress(BrokenPipeError):  # the worker has ended, as the next read tells
            self._control.send(msgspec.msgpack.encode(report))

    def _fork(self, order: Fork, files: Sequence[int]) -> bool:
        """Fork; return True in the child."""
        if not files:  # this process had no file number left for the socket
            self._send(Forked(order.number, errno=errno.EMFILE))
            return False
        (connection,) = files
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        try:
            pid = os.fork()
        except OSError as refused:
            os.close(connection)
            self._send(Forked(order.number, errno=refused.errno or 0))
            return False
        if pid == 0:
            self._become_child()
            return True
        os.close(connection)
        with suppress(OSError):  # the child does so itself, and may have ended
            os.setpgid(pid, pid)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as refused:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._send(Forked(order.number, errno=refused.errno or 0))
            return False
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._send(Forked(order.number, pid))
        return False

    def _become_child(self) -> None:
        """In the child: lead a group, end with the server, and keep nothing of it."""
        with suppress(OSError):
            os.setpgid(0, 0)
        self._end_with_server()
        self._control.close()
        for pidfd in self._children:
            os.close(pidfd)
        self._children.clear()
        # The standard library seeds its own generator after a fork.
        if (random := sys.modules.get("numpy.random")) is not None:
            random.seed()

    def _report_end(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        self._send(ForkEnded(self._children[pidfd], exit_code_of(pidfd)))

    def _reap(self, pid: int) -> None:
        for pidfd in [pidfd for pidfd, child in self._children.items() if child == pid]:
            kill_group_of(pidfd)
            os.waitpid(pid, 0)
            del self._children[pidfd]
            with suppress(KeyError):  # its end was reported
                self._poll.unregister(pidfd)
            os.close(pidfd)
