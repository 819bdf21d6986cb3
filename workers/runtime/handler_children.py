"""Processes of handlers as their worker sees them: programs that it starts, and children of its fork server."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from orchestrator.workers.runtime.process_groups import ProcessGroups, exit_code_of, kill_group_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

POLL_S: Final = 0.02
"""Interval of the look at a program where the system has no pidfd."""


class HandlerChild(Protocol):
    """A process that leads a group, which the worker has recorded for its host."""

    pid: int

    @property
    def has_ended(self) -> bool:
        """True if it has ended, or its end is near."""

    async def wait(self) -> str:
        """Wait for its end; return the exit status or signal in words."""

    async def end(self) -> None:
        """Kill its group, wait for its end, and free its process id."""


class NewProgram:
    """A process that the worker has started itself.

    asyncio does not start it, because uvloop takes away the signal mask that it begins with.
    """

    def __init__(self, process: subprocess.Popen[bytes], groups: ProcessGroups) -> None:
        self.pid = process.pid
        self._process, self._groups = process, groups
        self._ended, self._how, self._freed = anyio.Event(), "", False
        self._pidfd: int | None = None
        groups.add(self.pid)
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except OSError:
                groups.kill(self.pid)
                process.wait()
                raise
            _when_readable(self._pidfd, self._note_end)

    def _note_end(self) -> None:
        assert self._pidfd is not None
        self._how = in_words(exit_code_of(self._pidfd))
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        """True if it has ended."""
        return self._ended.is_set()

    async def wait(self) -> str:
        """Wait for its end; return the exit status or signal in words."""
        while self._pidfd is None and not self._ended.is_set():
            if (code := self._process.poll()) is None:
                await anyio.sleep(POLL_S)
            else:
                self._how = in_words(code)
                self._ended.set()
        await self._ended.wait()
        return self._how

    async def end(self) -> None:
        """Kill its group, wait for its end, and free its process id."""
        if not self._freed:
            self._freed = True
            self._groups.kill(self.pid)
            await self.wait()
            self._process.wait()
            if self._pidfd is not None:
                os.close(self._pidfd)
        await self.wait()


class ForkServerLink(Protocol):
    """The part of the link to a fork server that its children use."""

    @property
    def is_lost(self) -> bool:
        """True if the server has ended."""

    async def reap(self, pid: int) -> None:
        """Let the server free the id of a process that has ended."""


class ForkedChild:
    """A process that the fork server has forked, and whose end it reports.

    Raises:
        OSError: the worker has no file number left to watch it.
    """

    def __init__(self, pid: int, groups: ProcessGroups, server: ForkServerLink) -> None:
        self.pid = pid
        self._groups, self._server = groups, server
        self._ended, self._how, self._freed = anyio.Event(), "its fork server ended", False
        # The server keeps the id taken, so this is the process.
        self._pidfd = os.pidfd_open(pid)
        self._killed = False
        groups.add(pid)

    @property
    def has_ended(self) -> bool:
        """True if it has ended, or its server has."""
        return self._ended.is_set() or self._server.is_lost

    def note_end(self, code: int) -> None:
        """Note the end that the server has reported."""
        self._how = in_words(code)
        self._ended.set()

    def lose_server(self) -> None:
        """Kill the process, because its server has ended; from its end on its id may become that of another one."""
        self._kill()
        if not self._ended.is_set():
            _when_readable(self._pidfd, self._ended.set)

    async def wait(self) -> str:
        """Wait for its end; return the exit status or signal in words."""
        await self._ended.wait()
        return self._how

    async def end(self) -> None:
        """Kill its group, wait for its end, and free its process id."""
        if not self._freed:
            self._freed = True
            self._kill()
            await self._ended.wait()
            await self._server.reap(self.pid)
            os.close(self._pidfd)
        await self._ended.wait()

    def _kill(self) -> None:
        """Kill its group and forget it, once."""
        if not self._killed:
            self._killed = True
            kill_group_of(self._pidfd)
            self._groups.forget(self.pid)


def in_words(code: int) -> str:
    """Describe an exit status, or a signal by its negative number."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _when_readable(pidfd: int, call: Callable[[], None]) -> None:
    """Call a function when a process has ended."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(pidfd)
        call()

    loop.add_reader(pidfd, ended)
