"""The processes of handlers are forks of a server, which their worker starts; what is not safe is not forked."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.core.log import LogMessage
from orchestrator.core.settings import Settings
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime import fork_client, process_starter
from orchestrator.workers.runtime.handler_processes import HandlerProcessDied, HandlerProcesses
from orchestrator.workers.runtime.process_starter import ProcessStarter, processors
from tests.helpers.forked_handlers import forked
from tests.helpers.subprocesses import alive, children_of
from tests.helpers.unforkable_handlers import NOTES_VARIABLE, unforkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.workers.agent import Agent
    from orchestrator.workers.runtime.fork_client import ForkClient

TIMEOUT_S = 30.0
"""Programs have to be started, and the machine is shared."""

pytestmark = [
    pytest.mark.skipif(not process_starter.CAN_FORK, reason="the system cannot kill the group of a pidfd"),
    pytest.mark.timeout(180),
]


class Calls:
    """The processes of agents, without their worker."""

    def __init__(self, *agents: Agent) -> None:
        self.starter = ProcessStarter(Settings())
        self.by_skill = {}
        self.by_agent = [HandlerProcesses(Settings(), self.starter) for _ in agents]
        for agent, processes in zip(agents, self.by_agent, strict=True):
            for name, skill in agent.skills.items():
                self.starter.add(skill)
                self.by_skill[name] = processes, skill
        self.processes = self.by_agent[0]

    async def call(self, skill: str, **args: Any) -> Any:
        """Call a handler."""
        with anyio.fail_after(TIMEOUT_S):
            processes, found = self.by_skill[skill]
            return json.loads(await processes.run(found, json.dumps(args).encode()))

    async def call_together(self, count: int, skill: str, **args: Any) -> list[Any]:
        """Call a handler several times at once."""
        results = []

        async def one() -> None:
            results.append(await self.call(skill, **args))

        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(one)
        return results


@asynccontextmanager
async def running(*agents: Agent) -> AsyncIterator[Calls]:
    """Run the processes of agents; all of them have ended after the block."""
    calls = Calls(*agents)
    before = set(children_of(os.getpid()))
    async with anyio.create_task_group() as group:
        group.start_soon(calls.starter.run)
        try:
            yield calls
        finally:
            with anyio.CancelScope(shield=True):
                for processes in calls.by_agent:
                    await processes.close()
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await calls.starter.close()
    assert set(children_of(os.getpid())) <= before


def read(path: Path) -> list[str]:
    """The words of a file."""
    return path.read_text().split()


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    """The values of the log lines of an event."""
    messages = [record.msg for record in caplog.records if isinstance(record.msg, LogMessage)]
    return [dict(message.values) for message in messages if message.event == event]


async def test_processes_are_forks_of_one_server() -> None:
    """Thirty calls at once run in forks of one child of the worker; no more start at once than processors."""
    async with running(forked) as calls:
        most, over = 0, anyio.Event()

        async def watch() -> None:
            nonlocal most
            while not over.is_set():
                most = max(most, len(calls.processes._busy) - replied())
                await anyio.sleep(0.002)

        def replied() -> int:
            borrowers = calls.starter.starting.statistics().borrowers
            return sum(process.start not in borrowers for process in calls.processes._busy)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            results = await calls.call_together(30, "draw", seconds=0.3)
            over.set()
        pids = {pid for _, _, pid in results}
        _, server, worker = await calls.call("family")
        assert worker == os.getpid()
        assert pids == set(children_of(server))
        assert 1 <= most <= processors()
        assert len(pids) > processors()


async def test_processes_share_no_random_numbers() -> None:
    """Forks draw other numbers than their siblings, from the standard library and from numpy."""
    async with running(forked) as calls:
        results = await calls.call_together(5, "draw", seconds=0.3)
        pids = {pid for _, _, pid in results}
        assert len(pids) == 5
        assert len({number for number, _, _ in results}) == 5
        assert len({number for _, number, _ in results}) == 5


async def test_a_process_has_its_own_files_alone() -> None:
    """A fork has the socket of its calls, none of the server, of its siblings or of the worker."""
    async with running(forked) as calls:
        await calls.call_together(3, "draw", seconds=0.2)
        (opened,) = await calls.call_together(1, "files")
        opened = [target for target in opened if not target.startswith("/proc/")]
        assert len(opened) == 1
        assert opened[0].startswith("socket:")


async def test_the_end_of_a_fork_server_ends_its_processes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each running call fails when its process is dead, and the next one runs in a fork of another server."""
    async with running(forked) as calls:
        marker, other = tmp_path / "first", tmp_path / "other"

        async def stay(path: Path) -> None:
            with pytest.raises(HandlerProcessDied, match="its fork server ended"):
                await calls.call("stay", marker=str(path))
            process, _ = map(int, read(path))
            assert not alive(process)

        async with anyio.create_task_group() as group:
            for path in (marker, other):
                group.start_soon(stay, path)
                await wait_for(path.exists, "the handler", TIMEOUT_S)
            _, server = map(int, read(marker))
            os.kill(server, signal.SIGKILL)
        assert await calls.call("stay", marker=str(marker)) == "second"
        _, new, worker = await calls.call("family")
        assert new != server
        assert worker == os.getpid()
    assert logged(caplog, "fork_server_ended") == [{"error": "signal SIGKILL"}]


async def test_servers_that_end_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some ends in a row each process is a new program, and calls go on."""
    monkeypatch.setattr(process_starter, "MOST_ENDS", 2)
    async with running(forked) as calls:
        for _ in range(2):
            _, server, _ = await calls.call("family")
            (idle,) = calls.processes._idle
            os.kill(server, signal.SIGKILL)
            with anyio.fail_after(TIMEOUT_S):
                assert await idle.child.wait() == "its fork server ended"
        _, parent, _ = await calls.call("family")
        assert parent == os.getpid()


async def test_what_is_not_safe_is_not_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A module that starts threads gets new programs, no more at once than processors; another one gets forks."""
    notes = tmp_path / "notes"
    async with running(unforkable, forked) as calls:
        _, server, worker = await calls.call("family")
        assert worker == os.getpid() != server
        monkeypatch.setenv(NOTES_VARIABLE, str(notes))
        assert set(await calls.call_together(4, "parent")) == {os.getpid()}
    most = now = 0
    for line in notes.read_text().splitlines():
        now += 1 if line.startswith("begin") else -1
        most = max(most, now)
    assert 1 <= most <= processors()
    reason = "it starts threads: a thread of the module"
    assert logged(caplog, "handlers_not_forked") == [
        {"module": "tests.helpers.unforkable_handlers", "error": reason},
    ]


async def test_a_call_that_is_cancelled_at_its_start(tmp_path: Path) -> None:
    """It leaves no process behind and keeps no other call from its start."""
    async with running(forked) as calls:
        for delay_s in (0.0, 0.001, 0.002, 0.005, 0.01, 0.1) * 3:
            # Handlers that begin in time fail, because their folder does not exist.
            with anyio.move_on_after(delay_s), suppress(Exception):
                await calls.call_together(10, "stay", marker=str(tmp_path / "never" / "marker"))
        with pytest.raises(Exception, match="No such file"):
            await calls.call("stay", marker=str(tmp_path / "never" / "marker"))
        assert calls.starter.starting.borrowed_tokens == 0
        _, server, _ = await calls.call("family")
        await wait_for(lambda: len(children_of(server)) == len(calls.processes._idle), "no other process")


PROGRAM = """
import asyncio, os, sys
sys.path[:0] = [{root!r}]
from orchestrator.core.settings import Settings
import anyio
from tests.integration.test_fork_server import Calls
from tests.helpers.forked_handlers import forked

async def main():
    calls = Calls(forked)
    async with anyio.create_task_group() as group:
        group.start_soon(calls.starter.run)
        group.start_soon(lambda: calls.call("stay", marker={marker!r}))
anyio.run(main)
"""


async def test_no_process_outlives_a_worker_without_a_host(tmp_path: Path) -> None:
    """SIGKILL of the worker ends its fork server and the process that runs a handler."""
    marker = tmp_path / "marker"
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", PROGRAM.format(root=root, marker=str(marker))]
    worker = await anyio.open_process(command, stdin=None, stdout=None, stderr=None)
    try:
        await wait_for(marker.exists, "the handler", TIMEOUT_S)
        process, server = map(int, read(marker))
        assert alive(process)
        assert alive(server)
    finally:
        worker.kill()
        await worker.wait()
    await wait_for(lambda: not alive(process) and not alive(server), "the end of both", TIMEOUT_S)


def groups_of(calls: Calls) -> list[int]:
    """The process groups that the host would kill."""
    return [group for group in calls.starter._groups._groups.tolist() if group]


async def ready(calls: Calls) -> ForkClient:
    """The link to the fork server, when it forks."""
    starter = calls.starter
    await wait_for(lambda: starter._server is not None and starter._server.is_ready, "the fork server", TIMEOUT_S)
    assert starter._server is not None
    return starter._server


def no_file_number(_: int) -> int:
    """Refuse a pidfd as the system does."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_a_fork_that_the_worker_cannot_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without file numbers fails the start, which leaves no process and keeps no other call from its start."""
    async with running(forked) as calls:
        server = (await ready(calls)).program
        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(os, "pidfd_open", no_file_number)
                with pytest.raises(OSError, match="Too many open files"):
                    await calls.call("family")
        assert calls.starter.starting.borrowed_tokens == 0
        await wait_for(lambda: children_of(server.pid) == [], "the end of the processes")
        assert groups_of(calls) == [server.pid]
        assert (await calls.call("family"))[1] == server.pid


async def test_a_fork_server_without_file_numbers() -> None:
    """A start fails while the fork server cannot receive sockets; it goes on after that."""
    async with running(forked) as calls:
        server = (await ready(calls)).program
        limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        with pytest.raises(OSError, match="Too many open files"):
            await calls.call("family")
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        assert calls.starter.starting.borrowed_tokens == 0
        assert (await calls.call("family"))[1] == server.pid


async def test_a_fork_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker kills it, and the calls run in forks of another one."""
    monkeypatch.setattr(fork_client, "ANSWER_S", 2.0)
    async with running(forked) as calls:
        server = (await ready(calls)).program
        os.kill(server.pid, signal.SIGSTOP)
        parents = {parent for _, parent, _ in await calls.call_together(3, "family")}
        assert server.pid not in parents
        assert not alive(server.pid)
    assert logged(caplog, "fork_server_ended")[0] == {"error": "signal SIGKILL"}


async def test_processes_of_a_dead_server_are_forgotten() -> None:
    """No host kills the ids of idle processes whose server has ended, because other processes may have them."""
    async with running(forked) as calls:
        _, server, _ = await calls.call("family")
        (idle,) = calls.processes._idle
        assert idle.child.pid in groups_of(calls)
        os.kill(server, signal.SIGKILL)
        with anyio.fail_after(TIMEOUT_S):
            await idle.child.wait()
        assert idle.child.pid not in groups_of(calls)


async def test_a_server_that_ends_while_a_process_is_ended() -> None:
    """The process is forgotten once."""
    async with running(forked) as calls:
        _, server, _ = await calls.call("family")
        process = calls.processes._idle.pop()
        os.kill(server, signal.SIGSTOP)
        process.writer.close()
        with anyio.fail_after(TIMEOUT_S):
            async with anyio.create_task_group() as group:
                group.start_soon(process.child.end)
                await wait_for(lambda: process.child.pid not in groups_of(calls), "the kill")
                os.kill(server, signal.SIGKILL)
        assert not alive(process.child.pid)


async def test_a_program_that_the_worker_cannot_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed and forgotten."""
    starter, before = ProcessStarter(Settings()), children_of(os.getpid())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(os, "pidfd_open", no_file_number)
        with pytest.raises(OSError, match="Too many open files"):
            starter._launch("import time; time.sleep(60)", theirs)
    assert children_of(os.getpid()) == before
    assert not any(starter._groups._groups.tolist())


@pytest.mark.parametrize("use_uvloop", [False, True])
def test_a_program_keeps_a_hangup_while_it_starts(*, use_uvloop: bool) -> None:
    """A SIGHUP that arrives before a process handles it does not end it, on any event loop."""
    if use_uvloop:
        pytest.importorskip("uvloop")

    async def start() -> int:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            program = ProcessStarter(Settings())._launch("import time; time.sleep(60)", theirs)
            try:
                words = read(Path(f"/proc/{program.pid}/status"))
                os.kill(program.pid, signal.SIGHUP)
                # The end of a process arrives before that of a later one.
                other = ProcessStarter(Settings())._launch("import os; os._exit(3)", theirs)
                assert await other.wait() == "exit status 3"
                await other.end()
                assert not program.has_ended
            finally:
                await program.end()
        return int(words[words.index("SigBlk:") + 1], 16)

    assert anyio.run(start, backend_options={"use_uvloop": use_uvloop}) & 1
