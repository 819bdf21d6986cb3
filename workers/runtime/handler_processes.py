"""Runs `process=True` handlers in processes; see `handler_process` for the code in the process.

A call that finds no idle process starts one, which then serves later calls. A process that dies costs only the attempt
that it ran. The worker kills the process of a cancelled attempt, because nothing else stops code that holds the
interpreter lock. Each process leads a process group, which ends with it: the programs that a handler started too.
Arguments and results travel as JSON, failures as text; nothing is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.core.errors import ConfigError
from orchestrator.core.hangup import block_hangup
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.log import get_logger, level_in_use
from orchestrator.core.parent_process import end_with_parent
from orchestrator.core.secret_environment import agents_environ, secrets_in, settings_environ
from orchestrator.payloads.payloads import result_caps
from orchestrator.workers.runtime.handler_process import (
    Begin,
    HandlerReply,
    Hello,
    Request,
    handler_in,
    raise_failure,
    read_frame,
    write_frame,
)
from orchestrator.workers.runtime.process_groups import ProcessGroups
from orchestrator.workers.runtime.verdicts import WorkerFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings import Settings
    from orchestrator.workers.skill import Skill

END_S: Final = 2.0
"""Time for idle processes to end before the worker kills them."""

_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from orchestrator.workers.runtime.handler_process import serve; serve(int(sys.argv[1]))"
)
_log = get_logger(__name__)


class HandlerProcessDied(WorkerFailure, RuntimeError):
    """The process of a handler ended during a call: it crashed, called `os._exit`, or was killed."""


@dataclass(frozen=True, slots=True)
class _Process:
    child: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    secrets: set[str] = field(repr=False, compare=False)
    """Values that its log masks."""

    def learn(self, secrets: tuple[str, ...]) -> tuple[str, ...]:
        """Return the values that it does not mask yet; the next request carries them."""
        new = tuple(secret for secret in secrets if secret not in self.secrets)
        self.secrets.update(new)
        return new


class HandlerProcesses:
    """The processes of one agent in one worker, at most one per slot because each call is an attempt."""

    def __init__(self, settings: Settings | LiveSettings, groups: ProcessGroups | None = None) -> None:
        self._live, self._groups = LiveSettings.of(settings), groups or ProcessGroups()
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
        process = await self._take()
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
                if reply.kind == "ready":
                    if may_begin is not None and not may_begin():
                        await anyio.sleep_forever()  # until the cancellation arrives
                    write_frame(process.writer, Begin())
                    await process.writer.drain()
                    reply = await read_frame(process.reader, HandlerReply)
                answer = reply
                waiting.cancel_scope.cancel()
        if answer is None:
            how = _ending(await process.child.wait())
            raise HandlerProcessDied(f"the process of the handler died before it returned a result: {how}")
        return answer

    async def _take(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.child.returncode is None:
                self._busy.add(process)
                return process
            await self._end(process)
        with anyio.CancelScope(shield=True):  # an interrupted start would leak a process; it takes milliseconds
            process = await self._start()
        self._busy.add(process)
        return process

    async def _start(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                child = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-c", _START, str(theirs.fileno()), json.dumps(sys.path),
                    stdin=subprocess.DEVNULL, env=agents_environ(), pass_fds=[theirs.fileno()],
                    preexec_fn=_lead_group(),  # it only makes system calls, which need no lock
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        self._groups.add(child.pid)
        reader, writer = await asyncio.open_connection(sock=ours, limit=2**20)
        main = getattr(sys.modules["__main__"], "__file__", None)
        settings = self._live.current
        hello = Hello(
            main=main,
            level=level_in_use(),
            format=settings.logging.format,
            variables=secrets_in(settings_environ()),
            secrets=settings.secrets,
        )
        write_frame(writer, hello)
        _log.debug("handler_process_started", pid=child.pid)
        return _Process(child, reader, writer, set(settings.secrets))

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
            process.writer.close()
            self._groups.kill(process.child.pid)
            await process.child.wait()


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


def _lead_group() -> Callable[[], None]:
    """Return the function that the process runs before exec: it leads a group and ends with the worker."""
    end = end_with_parent()

    def prepare() -> None:
        os.setpgid(0, 0)
        # It keeps a SIGHUP to all processes until the program ignores it.
        block_hangup()
        end()

    return prepare


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
