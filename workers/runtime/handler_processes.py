"""Runs `process=True` handlers in processes; see `handler_process` for the code in the process.

A call that finds no idle process starts one, which then serves later calls. A process that dies costs only the attempt
that it ran. The worker kills the process of a cancelled attempt, because nothing else stops code that holds the
interpreter lock. Each process leads a process group, which ends with it: the programs that a handler started too.
Arguments and results travel as JSON, failures as text; nothing is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.core.errors import ConfigError
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.log import get_logger, level_in_use
from orchestrator.payloads.payloads import result_caps
from orchestrator.workers.runtime.handler_process import (
    Begin,
    HandlerReply,
    Request,
    handler_in,
    raise_failure,
    read_frame,
    write_frame,
)
from orchestrator.workers.runtime.verdicts import WorkerFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings import Settings
    from orchestrator.workers.runtime.handler_children import HandlerChild
    from orchestrator.workers.runtime.process_starter import ProcessStarter
    from orchestrator.workers.skill import Skill

END_S: Final = 2.0
"""Time for idle processes to end before the worker kills them."""

_log = get_logger(__name__)


class HandlerProcessDied(WorkerFailure, RuntimeError):
    """The process of a handler ended during a call: it crashed, called `os._exit`, or was killed."""


@dataclass(frozen=True, slots=True)
class _Process:
    child: HandlerChild
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    secrets: set[str] = field(repr=False, compare=False)
    """Values that its log masks."""
    start: object = field(repr=False, compare=False)
    starting: anyio.CapacityLimiter = field(repr=False, compare=False)

    def learn(self, secrets: tuple[str, ...]) -> tuple[str, ...]:
        """Return the values that it does not mask yet; the next request carries them."""
        new = tuple(secret for secret in secrets if secret not in self.secrets)
        self.secrets.update(new)
        return new

    def note_started(self) -> None:
        """Let the next process start."""
        with contextlib.suppress(RuntimeError):  # done before
            self.starting.release_on_behalf_of(self.start)


class HandlerProcesses:
    """The processes of one agent in one worker, at most one per slot because each call is an attempt."""

    def __init__(self, settings: Settings | LiveSettings, starter: ProcessStarter) -> None:
        self._live, self._starter = LiveSettings.of(settings), starter
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()

    async def run(
        self,
        skill: Skill[Any, Any],
        args: bytes,
        *,
        may_begin: Callable[[], bool] | None = None,
        trace: str = "",
    ) -> bytes:
        """Run the handler of a skill and return its result as JSON.

        Args:
            skill: of the handler.
            args: its arguments as JSON.
            may_begin: asked when the process has imported the handler and read the arguments. If it returns False, the
                caller is being cancelled, and the handler does not begin.
            trace: trace context under which the handler runs; empty without one.

        Raises:
            HandlerProcessDied: the process ended before it replied.
            ValidationFailed: the arguments or the result are invalid.
            AttemptSignal, HandlerRaised: the handler raised.
        """
        process = await self._take(skill)
        alive = False
        try:
            request = Request(
                module=skill.handler.__module__,
                qualname=skill.handler.__qualname__,
                skill=skill.name,
                args=args,
                max_bytes=result_caps(self._live.current).max_bytes,
                level=level_in_use(),
                trace=trace,
                redact=skill.options.redact,
                secrets=process.learn(self._live.current.secrets),
            )
            answer = await self._ask(process, request, may_begin)
            alive = True
        finally:
            self._busy.discard(process)
            if alive:
                self._idle.append(process)
            else:
                await self._end(process)
        if answer.kind != "returned":
            raise_failure(answer)
        return answer.data

    @staticmethod
    async def _ask(process: _Process, request: Request, may_begin: Callable[[], bool] | None) -> HandlerReply:
        answer: HandlerReply | None = None

        async def until_its_end() -> None:
            await process.child.wait()
            waiting.cancel_scope.cancel()

        # The end of the process, not of the socket, decides: a child that it forked may keep the socket open.
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(until_its_end)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                write_frame(process.writer, request)
                await process.writer.drain()
                reply = await read_frame(process.reader, HandlerReply)
                process.note_started()
                if reply.kind == "ready":
                    if may_begin is not None and not may_begin():
                        await anyio.sleep_forever()  # until the cancellation arrives
                    write_frame(process.writer, Begin())
                    await process.writer.drain()
                    reply = await read_frame(process.reader, HandlerReply)
                answer = reply
                waiting.cancel_scope.cancel()
        if answer is None:
            how = await process.child.wait()
            raise HandlerProcessDied(f"the process of the handler died before it returned a result: {how}")
        return answer

    async def _take(self, skill: Skill[Any, Any]) -> _Process:
        if (process := await self._take_idle()) is not None:
            return process
        start, starting = object(), self._starter.starting
        await starting.acquire_on_behalf_of(start)
        try:
            # A call may have ended meanwhile.
            process = await self._take_idle() or await self._start(skill, start)
        except BaseException:
            starting.release_on_behalf_of(start)
            raise
        if process.start is not start:
            starting.release_on_behalf_of(start)
        return process

    async def _take_idle(self) -> _Process | None:
        while self._idle:
            process = self._idle.pop()
            if not process.child.has_ended:
                self._busy.add(process)
                return process
            await self._end(process)
        return None

    async def _start(self, skill: Skill[Any, Any], start: object) -> _Process:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                child = await self._starter.start(skill, theirs)
        except BaseException:
            ours.close()
            raise
        with anyio.CancelScope(shield=True):  # an interrupted start would leak a process
            reader, writer = await asyncio.open_connection(sock=ours, limit=2**20)
        hello = self._starter.hello()
        write_frame(writer, hello)
        _log.debug("handler_process_started", pid=child.pid)
        process = _Process(child, reader, writer, set(hello.secrets), start, self._starter.starting)
        self._busy.add(process)
        return process

    async def close(self) -> None:
        """End the idle processes and kill the busy ones."""
        for process in self._idle:
            process.writer.close()
        with anyio.move_on_after(END_S):
            for process in self._idle:
                await process.child.wait()
        for process in (*self._idle, *self._busy):
            await self._end(process)
        self._idle.clear()
        self._busy.clear()

    async def _end(self, process: _Process) -> None:
        """Kill a process and what its handlers started; it may have ended by itself."""
        with anyio.CancelScope(shield=True):
            process.note_started()
            process.writer.close()
            await process.child.end()


def check_found_by_name(skill: Skill[Any, Any]) -> None:
    """Check that a process can import the handler by its name.

    Raises:
        ConfigError: the name is unknown, or belongs to another function.
    """
    module, qualname = skill.handler.__module__, skill.handler.__qualname__
    try:
        found = handler_in(sys.modules[module], qualname)
    except (KeyError, AttributeError):
        found = None
    if found is not skill.handler:
        raise ConfigError(
            f"the process of skill {skill.name!r} cannot import its handler: {module}.{qualname} "
            f"{'does not exist' if found is None else 'is another function'}; "
            "define the handler under a unique name at the top of the module, and decorate it there"
        )
