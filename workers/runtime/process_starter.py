"""Starts the processes of `process=True` handlers of a worker: as forks of a server that has imported the handlers.

A module that makes forks unsafe gets a new program for each process, which imports it again. So does every module where
the system cannot kill the group of a pidfd, and all of them after a fork server that ends again and again.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.core.hangup import block_hangup
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.log import get_logger, level_in_use
from orchestrator.core.parent_process import end_with_parent
from orchestrator.core.secret_environment import agents_environ, secrets_in, settings_environ
from orchestrator.workers.runtime.fork_client import ForkClient, ForkServerEnded
from orchestrator.workers.runtime.fork_server import ImportHandler
from orchestrator.workers.runtime.handler_children import NewProgram
from orchestrator.workers.runtime.handler_process import Hello
from orchestrator.workers.runtime.process_groups import ProcessGroups, can_kill_group_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings import Settings
    from orchestrator.workers.runtime.handler_children import HandlerChild
    from orchestrator.workers.skill import Skill

CAN_FORK: Final = can_kill_group_of()
"""Elsewhere programs of a handler could outlive the fork server, or libraries do not survive a fork."""
HEALTHY_AFTER_S: Final = 30.0
"""Lifetime of a fork server after which its end is not counted."""
MOST_ENDS: Final = 3
"""Ends of fork servers in a row after which each process is a new program."""

_PATH: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from orchestrator.workers.runtime."
_SERVE: Final = f"{_PATH}handler_process import serve; serve(int(sys.argv[1]))"
_SERVE_FORKS: Final = f"{_PATH}fork_server import serve_forks; serve_forks(int(sys.argv[1]))"
_log = get_logger(__name__)


class ProcessStarter:
    """Starts the processes of all agents of one worker.

    Attributes:
        starting: the processes that start, no more at once than this worker has processors.
    """

    def __init__(
        self, settings: Settings | LiveSettings, groups: ProcessGroups | None = None, *, workers: int = 1
    ) -> None:
        self._live, self._groups = LiveSettings.of(settings), groups or ProcessGroups()
        self.starting = anyio.CapacityLimiter(max(1, processors() // workers))
        self._skills: dict[ImportHandler, None] = {}
        self._unsafe: set[str] = set()
        self._server: ForkClient | None = None
        self._forks = False
        self._changed = anyio.Event()

    def add(self, skill: Skill[Any, Any]) -> None:
        """Let the fork server import the handler of a skill, when it starts."""
        self._skills[_import_of(skill)] = None

    async def run(self) -> None:
        """Keep a fork server that is ready, until cancelled."""
        ends = 0
        self._forks = CAN_FORK
        try:
            while ends < MOST_ENDS and (skills := [one for one in self._skills if self._may_fork(one)]):
                started_s = time.monotonic()
                try:
                    server = self._server = self._launch_server()
                except OSError as refused:
                    ends += 1
                    _log.warning("fork_server_ended", error=str(refused))
                    continue
                await server.prepare(self.hello(), skills)
                self._notify()
                await server.wait_lost()
                self._server = None
                how = await server.close()
                if server.unsafe is not None:
                    self._unsafe.add(server.unsafe.module)
                    _log.warning("handlers_not_forked", module=server.unsafe.module, error=server.unsafe.reason)
                else:
                    ends = 1 if time.monotonic() - started_s > HEALTHY_AFTER_S else ends + 1
                    _log.warning("fork_server_ended", error=how)
        finally:
            self._forks = False
            self._notify()

    def _may_fork(self, skill: ImportHandler) -> bool:
        return self._forks and skill.module not in self._unsafe

    async def start(self, skill: Skill[Any, Any], connection: socket.socket) -> HandlerChild:
        """Start a process that serves calls at a socket.

        Raises:
            OSError: the system refused another process.
        """
        wanted = _import_of(skill)
        while self._may_fork(wanted):
            if self._server is None or not self._server.is_ready:
                await self._changed.wait()
                continue
            try:
                return await self._server.fork(connection)
            except ForkServerEnded:
                # The system may tell the end of the server later than its socket does.
                await anyio.lowlevel.checkpoint()
        return self._launch(_SERVE, connection)

    def hello(self) -> Hello:
        """Return the first frame for a process."""
        settings = self._live.current
        return Hello(
            main=getattr(sys.modules["__main__"], "__file__", None),
            level=level_in_use(),
            format=settings.logging.format,
            variables=secrets_in(settings_environ()),
            secrets=settings.secrets,
            worker=os.getpid(),
        )

    async def close(self) -> None:
        """End the fork server."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _launch_server(self) -> ForkClient:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            try:
                return ForkClient(self._launch(_SERVE_FORKS, theirs), ours, self._groups)
            except BaseException:
                ours.close()
                raise

    def _launch(self, code: str, connection: socket.socket) -> NewProgram:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-P", "-c", code, str(connection.fileno()), json.dumps(sys.path)],
            stdin=subprocess.DEVNULL, env=agents_environ(), pass_fds=[connection.fileno()],
            preexec_fn=_lead_group(),  # noqa: PLW1509 - it only makes system calls, which need no lock
        )  # fmt: skip
        return NewProgram(process, self._groups)


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _import_of(skill: Skill[Any, Any]) -> ImportHandler:
    handler = skill.handler
    return ImportHandler(handler.__module__, handler.__qualname__, skill.name, skill.options.redact)


def _lead_group() -> Callable[[], None]:
    """Return the function that the process runs before exec: it leads a group and ends with the worker."""
    end = end_with_parent()

    def prepare() -> None:
        os.setpgid(0, 0)
        # It keeps a SIGHUP to all processes until the program ignores it.
        block_hangup()
        end()

    return prepare
