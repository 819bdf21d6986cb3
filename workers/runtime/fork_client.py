"""The worker's side of its fork server."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from orchestrator.workers.runtime.fork_server import (
    PACKET_BYTES,
    Fork,
    Forked,
    ForkEnded,
    ImportHandler,
    Ready,
    Reap,
    Report,
    Unsafe,
)
from orchestrator.workers.runtime.handler_children import ForkedChild

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.workers.runtime.handler_children import NewProgram
    from orchestrator.workers.runtime.handler_process import Hello
    from orchestrator.workers.runtime.process_groups import ProcessGroups

ANSWER_S: Final = 10.0
"""Time for a fork before the worker gives the server up."""
LATE_S: Final = 1.0
"""Time to read answers that arrived while something blocked the event loop."""
END_S: Final = 1.0
"""Time for the server to end before the worker kills it."""


class ForkServerEnded(Exception):
    """The fork server ended before it replied."""


class ForkClient:
    """The link to one fork server.

    Attributes:
        program: the server.
        is_ready: whether it forks.
        unsafe: why it does not, if it said so.
    """

    def __init__(self, program: NewProgram, control: socket.socket, groups: ProcessGroups) -> None:
        self.program, self.is_ready = program, False
        self.unsafe: Unsafe | None = None
        self._control, self._groups = control, groups
        self._numbers = itertools.count(1)
        self._forks: dict[int, _Fork] = {}
        self._children: dict[int, ForkedChild] = {}
        self._lost, self._answered, self._sending = anyio.Event(), anyio.Event(), anyio.Lock()
        control.setblocking(False)  # noqa: FBT003 - it takes no keywords
        asyncio.get_running_loop().add_reader(control, self._receive)

    @property
    def is_lost(self) -> bool:
        """True if the server has ended."""
        return self._lost.is_set()

    async def prepare(self, hello: Hello, skills: Iterable[ImportHandler]) -> None:
        """Let the server import handlers; return when it forks or has ended."""
        with suppress(ForkServerEnded):
            await self._send(hello)
            for skill in skills:
                await self._send(skill)
            await self._send(Ready())
            await self._answered.wait()

    async def wait_lost(self) -> None:
        """Wait until the server has ended, or is of no use."""
        await self._lost.wait()

    async def fork(self, connection: socket.socket) -> ForkedChild:
        """Fork a process that serves calls at a socket.

        Raises:
            ForkServerEnded: the server ended first, or did not answer.
            OSError: the system refused another process.
        """
        number, fork = next(self._numbers), _Fork()
        # An interrupted fork would leak a process; it takes milliseconds.
        with anyio.CancelScope(shield=True):
            self._forks[number] = fork
            try:
                with anyio.move_on_after(ANSWER_S):
                    await self._send(Fork(number), connection.fileno())
                    await fork.answered.wait()
                with anyio.move_on_after(LATE_S):
                    await fork.answered.wait()
                if not fork.answered.is_set():
                    self._lose()
            finally:
                del self._forks[number]
            if fork.unwatched:
                await self.reap(fork.unwatched)
        if fork.errno:
            raise OSError(fork.errno, os.strerror(fork.errno))
        if fork.child is None:
            raise ForkServerEnded
        return fork.child

    async def reap(self, pid: int) -> None:
        """Let the server free the id of a process, and kill it if it has not ended."""
        self._children.pop(pid, None)
        with suppress(ForkServerEnded):
            await self._send(Reap(pid))

    async def close(self) -> str:
        """End the server, after its children; return its exit status or signal in words."""
        self._lose()
        with anyio.CancelScope(shield=True):
            if self.is_ready:
                # It ends like a program, so that what its modules have registered for the exit runs.
                with anyio.move_on_after(END_S):
                    await self.program.wait()
            await self.program.end()
            self._control.close()
        return await self.program.wait()

    async def _send(self, order: msgspec.Struct, *files: int) -> None:
        packet = msgspec.msgpack.encode(order)
        async with self._sending:
            while not self.is_lost:
                try:
                    socket.send_fds(self._control, [packet], files)
                except BlockingIOError:
                    await anyio.wait_writable(self._control)
                except OSError:
                    break  # as the next read tells
                else:
                    return
        raise ForkServerEnded

    def _receive(self) -> None:
        try:
            packet = self._control.recv(PACKET_BYTES)
        except (BlockingIOError, ConnectionResetError):
            # The second if the server has left a packet unread. The kernel says so once, before our own packets.
            return
        if not packet:
            self._lose()
            return
        report: Report = msgspec.msgpack.decode(packet, type=Report)
        match report:
            case Ready():
                self.is_ready = True
                self._answered.set()
            case Unsafe():
                self.unsafe = report
                self._lose()
            case Forked():
                self._take(report)
            case ForkEnded():
                if (child := self._children.get(report.pid)) is not None:
                    child.note_end(report.code)

    def _take(self, report: Forked) -> None:
        """Hand a new process to the call that asked for it."""
        fork = self._forks[report.number]
        fork.errno = report.errno
        if not report.errno:
            try:
                fork.child = self._children[report.pid] = ForkedChild(report.pid, self._groups, self)
            except OSError as refused:
                fork.errno, fork.unwatched = refused.errno or errno.EIO, report.pid
        fork.answered.set()

    def _lose(self) -> None:
        """Note that the server has ended, and end what it has forked."""
        if self.is_lost:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._lost.set()
        self._answered.set()
        for child in self._children.values():
            child.lose_server()
        for fork in self._forks.values():
            fork.answered.set()


@dataclass(slots=True)
class _Fork:
    """A fork that the server has not reported, or its result."""

    answered: anyio.Event = field(default_factory=anyio.Event)
    child: ForkedChild | None = None
    errno: int = 0
    unwatched: int = 0
    """The process, if the worker cannot watch it."""
