"""Locks whose holders freeze, die or are cut off: nobody is held up for long, and the old holder changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from orchestrator import LockError, Orchestrator, ServerUnavailable, TaskCancelled
from orchestrator.locks import scripts
from orchestrator.locks.model import TakeStatus, new_nonce
from orchestrator.store.keys import PoolKeys, ScopeKeys
from orchestrator.store.store import Endpoint, SyncStore
from tests.fault import lock_holder
from tests.faultkit.proxy import FaultProxy
from tests.helpers import subprocesses
from tests.helpers.local_team import local_settings
from tests.helpers.team import make_settings
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.faults import Loss
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog


@contextmanager
def holder(server: RedisServer, prefix: str, what: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lock."""
    command = [sys.executable, "-m", "tests.fault.lock_holder", server.url, prefix, what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def has_it(process: subprocess.Popen[str]) -> None:
    """Wait until it has the lock."""
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"


@pytest.mark.every_server
@pytest.mark.parametrize(("what", "written"), [("write", 0), ("blind", lock_holder.WRITES)])
def test_frozen_holder_writes_nothing(redis_server: RedisServer, prefix: str, what: str, written: int) -> None:
    """A holder stands still until another has its lock: none of its 10,000 writes passes; unguarded all do."""
    keys = ScopeKeys(prefix, "session", "s")
    store = SyncStore(Endpoint.at(redis_server.url), PoolKeys(prefix, "p"), name="test")
    with holder(redis_server, prefix, what) as process:
        has_it(process)
        os.kill(process.pid, signal.SIGSTOP)
        lock, task = f"exec:{lock_holder.TASK}", lock_holder.TASK
        second = store.call(
            scripts.claim(keys, lock=lock, task=task, generation="11", nonce=new_nonce(), ttl_ms=60_000)
        )
        assert second.status is TakeStatus.TAKEN
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) == written
    assert store.execute("LLEN", keys.key("test:doc")) == written
    assert store.execute("GET", keys.key(lock)).decode() == second.value
    store.execute("DEL", keys.key("test:doc"))
    store.close()


async def test_killed_holder(redis_server: RedisServer, prefix: str) -> None:
    """A process that renews its lock is killed: whoever waits has it when it lapses, a second later, and not before."""
    async with Orchestrator(redis_server.url, prefix=prefix) as orc:
        locks = orc.locks("session:s")
        with holder(redis_server, prefix, "keep") as process:
            await anyio.to_thread.run_sync(has_it, process)
            await anyio.sleep(1.3)
            seen = await locks.peek("n")
            assert seen is not None
            assert seen.holder == "child"
            process.send_signal(signal.SIGKILL)
            killed_s = time.monotonic()
            async with locks.hold("n", wait=5) as lease:
                assert 0.4 < time.monotonic() - killed_s < 1.6
                assert seen.fence is not None
                assert lease.fence > seen.fence


async def test_killed_worker_frees_its_session(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """A worker is killed in a task that has its session to itself: the host frees the lock for the next task."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        stack.enter_context(
            subprocesses.host(settings, attempt_log, processes=1, agents="tests.fault.session_agents:agent")
        )
        async with Orchestrator(settings=settings) as orc:
            hanging = await orc.submit("hang", session="s")

            async def told() -> bool:
                return (await hanging.status()).progress is not None

            await wait_for(told, "it hangs", 15)
            progress = (await hanging.status()).progress
            assert progress is not None
            first = int(progress.done)
            (lock,) = await orc.locks("session:s").list()
            assert lock.left_ms > 5000
            killed_s = time.monotonic()
            os.kill(first, signal.SIGKILL)
            other = await (await orc.submit("pid", session="s")).result(15)
            assert other != first
            assert await hanging.result(15) != first
            assert time.monotonic() - killed_s < 8


def parent_of(pid: int) -> int:
    """The process that started another one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
async def test_thawed_attempt_writes_nothing(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """A host with an attempt that writes freezes, its task is ended elsewhere, it thaws: nothing more of it lands."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        for _ in range(2):
            stack.enter_context(
                subprocesses.host(settings, attempt_log, processes=1, agents="tests.fault.session_agents:agent")
            )
        async with Orchestrator(settings=settings) as orc:
            task = await orc.submit("write", session="s")
            shared = orc.workspace("s")

            async def writes() -> bool:
                return len(await shared.log("written", last=3)) == 3

            await wait_for(writes, "it writes", 15)
            progress = (await task.status()).progress
            assert progress is not None
            # The host too: it would notice, and replace it.
            worker = int(progress.done)
            pids = [parent_of(worker), worker]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                await task.cancel()
                with pytest.raises(TaskCancelled):
                    await task.result(40)
                before = (await shared.snapshot(), await orc.agents.state("ed"))
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
            # It has all the time that it needs for thousands of writes, if they passed.
            await (await orc.submit("pid", session="s")).result(15)
            await anyio.sleep(2)
            assert (await shared.snapshot(), await orc.agents.state("ed")) == before


@pytest.mark.parametrize("how", ["cut", pytest.param("swallow", marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["reply", "command"])
async def test_lost_replies_and_commands(redis_server: RedisServer, prefix: str, what: str, how: Loss) -> None:
    """Every third script of three contenders is lost on its way: two never have the lock at once, its numbers rise."""
    inside = most = rounds = 0
    fences: list[int] = []
    async with AsyncExitStack() as opened:
        proxies = [await opened.enter_async_context(FaultProxy(redis_server.url)) for _ in range(3)]
        settings = [local_settings(proxy.url, prefix, redis__command_timeout_s=0.15) for proxy in proxies]
        clients = [await opened.enter_async_context(Orchestrator(settings=each)) for each in settings]
        faults = [
            (proxy.fail_reply if what == "reply" else proxy.fail_command)("EVALSHA", nth=nth, how=how)
            for proxy in proxies
            for nth in range(3, 30, 3)
        ]

        async def contend(client: Orchestrator) -> None:
            nonlocal inside, most, rounds
            for _ in range(6):
                try:
                    async with client.locks("session:s").hold("n", ttl=1, wait=10) as lease:
                        inside += 1
                        most = max(most, inside)
                        fences.append(lease.fence)
                        rounds += 1
                        try:
                            await anyio.sleep(0.005)
                        finally:
                            inside -= 1
                except (LockError, ServerUnavailable):
                    continue

        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(contend, client)
        assert sum(fault.fired for fault in faults) >= 6
        for proxy in proxies:
            proxy.heal()
    assert most == 1
    assert rounds >= 12
    assert fences == sorted(set(fences))
