"""What a worker hears while its event loop stands, while its connection is broken, while it is frozen or Redis gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Orchestrator, TaskCancelled, TaskContext
from orchestrator.core.ids import new_worker_id
from orchestrator.services import open_services, pool_keys
from orchestrator.tasks.model import TaskState
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.worker import Worker
from tests.faultkit.servers import RedisServer
from tests.helpers import subprocesses
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator.embedded.server_binary import ServerBinary
    from tests.faultkit.commands import Command
    from tests.helpers.attempt_log import AttemptLog
    from tests.helpers.team import Team

WITHIN_S = 3.0


class BlockedWorker:
    """A worker in a thread of its own, whose handler holds its event loop until the test lets go."""

    def __init__(self, settings: Any) -> None:
        self.id = new_worker_id()
        self.begun, self.let_go, self.saw = threading.Event(), threading.Event(), threading.Event()
        self._settings, self._ended = settings, threading.Event()
        self._thread = threading.Thread(target=anyio.run, args=(self._run,))

    def agent(self) -> Agent:
        """The agent whose handler blocks."""
        agent = Agent("block", lease=10)

        @agent.skill
        async def block(ctx: TaskContext) -> str:
            self.begun.set()
            while not self.let_go.wait(0.01):  # holds the loop: that is the fault
                if ctx.cancelled:
                    self.saw.set()
            return "to its end"

        return agent

    async def _run(self) -> None:
        async with open_services(self._settings, name="worker") as services:
            worker = Worker(services, [self.agent()], worker=self.id)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(worker.run, listen=False))
                await anyio.to_thread.run_sync(self._ended.wait)
                worker.stop()

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.let_go.set()
        self._ended.set()
        await anyio.to_thread.run_sync(self._thread.join, 15)


async def word(orc: Orchestrator, keys: Any, id_: str, worker: str) -> str:
    """What a worker said last of a command; empty: nothing yet."""
    found = await orc.services.store.execute("HGET", keys.receipts(id_), worker)
    return "" if found is None else found.decode().split(" ")[1]


async def test_a_blocked_loop_keeps_no_stop_away(redis_server: RedisServer, prefix: str) -> None:
    """The worker answers at once, and `ctx.cancelled` tells the handler. A drain needs the loop, so it begins later."""
    settings = local_settings(redis_server.url, prefix, worker__heartbeat_s=60.0)
    async with run_local_team(settings) as team, BlockedWorker(settings) as blocked:
        keys = team.services.keys
        handle = await team.orc.submit("block")
        assert await anyio.to_thread.run_sync(blocked.begun.wait, 10)
        asked_s = time.monotonic()
        stop = await team.orc.admin.stop(now=True, reason="drill", actor="ann")
        assert (await stop.receipts(timeout=WITHIN_S)).complete
        assert time.monotonic() - asked_s < WITHIN_S
        assert await anyio.to_thread.run_sync(blocked.saw.wait, WITHIN_S)
        # The twin: a drain needs the loop, and does not begin.
        drain = await team.orc.admin.drain_worker(blocked.id)
        await wait_for(partial(word, team.orc, keys, drain.id, blocked.id), "its answer", WITHIN_S)
        await anyio.sleep(0.3)
        slots = await team.services.store.execute("HGET", keys.agent_workers("block"), blocked.id)
        assert int(slots.split()[0]) > 0
        for command in (stop, drain):
            assert await word(team.orc, keys, command.id, blocked.id) == "received"
        blocked.let_go.set()

        async def done() -> bool:
            return [await word(team.orc, keys, one.id, blocked.id) for one in (stop, drain)] == ["done", "done"]

        await wait_for(done, "the rest once the loop turns", WITHIN_S)
        # It has seen that it should end: its result does not count.
        info = await handle.info()
        assert (info.state, info.last_retry, info.attempts) == (TaskState.READY, "stopped by ann: drill", 0)


async def test_a_handler_that_blocks_hears_of_its_cancel(redis_server: RedisServer, prefix: str) -> None:
    """It sees it while it holds the loop; one that does not look is cancelled when the loop turns."""
    settings = local_settings(redis_server.url, prefix, worker__heartbeat_s=60.0)
    async with run_local_team(settings) as team, BlockedWorker(settings) as blocked:
        handle = await team.orc.submit("block")
        assert await anyio.to_thread.run_sync(blocked.begun.wait, 10)
        await handle.cancel("enough")
        assert await anyio.to_thread.run_sync(blocked.saw.wait, 1.0)
        assert (await handle.status()).state is TaskState.CANCELLING
        blocked.let_go.set()
        with pytest.raises(TaskCancelled, match="enough"):
            await handle.result(WITHIN_S)


def listener(command: Command) -> bool:
    """Match the read by which a worker hears."""
    return command.name == "XREAD" and any(argument.endswith(b":notes") for argument in command.arguments)


@pytest.mark.parametrize("heartbeats", [True, False])
async def test_deaf_workers_are_told_by_their_heartbeat(
    make_team: Callable[..., Team], gate: Path, attempt_log: AttemptLog, *, heartbeats: bool
) -> None:
    """What the listener's connection swallows is learned at the next heartbeat, or once the connection is lost."""
    timings = {"heartbeat_s": 0.3, "lease_s": 3.0} if heartbeats else {"heartbeat_s": 60.0, "lease_s": 180.0}
    async with make_team(**timings) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        fault = worker.proxy.fail_reply(listener, nth="every", how="swallow")
        async with team.open_client() as orc:
            first, second = [await orc.submit("hold", {"gate": str(gate)}) for _ in range(2)]
            await wait_for(lambda: len(attempt_log.notes("begun")) == 2, "both to run")
            await first.cancel("enough")
            stop = await orc.admin.stop(now=True)
            if not heartbeats:
                # The twin: the fault is felt, nothing is heard.
                await anyio.sleep(1.5)
                assert (await first.status()).state is TaskState.CANCELLING
                assert (await second.status()).state is TaskState.RUNNING
                assert await word(orc, team.keys, stop.id, worker.worker.id) == ""
                fault.stop()
                worker.proxy.cut()
            with pytest.raises(TaskCancelled):
                await first.result(WITHIN_S)

            async def done() -> bool:
                return await word(orc, team.keys, stop.id, worker.worker.id) == "done"

            await wait_for(done, "its answer", WITHIN_S)
            assert (await second.status()).state is TaskState.READY
            assert fault.fired
            fault.stop()
            gate.touch()  # noqa: ASYNC240 - it takes no time
            await orc.admin.start()
            await second.result(10)


async def test_a_hearing_connection_that_is_cut_again_and_again_costs_nothing(
    make_team: Callable[..., Team], gate: Path, attempt_log: AttemptLog
) -> None:
    """Whatever the moment of the cut, each cancel is heard well within a second."""
    async with make_team(heartbeat_s=60.0, lease_s=180.0) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            for n in range(10):
                handle = await orc.submit("hold", {"gate": str(gate)})
                await wait_for(lambda n=n: len(attempt_log.notes("begun")) > n, "it to run")  # type: ignore[misc]
                async with anyio.create_task_group() as both:
                    both.start_soon(handle.cancel, "enough")
                    worker.proxy.cut(reset=n % 2 == 0)
                with pytest.raises(TaskCancelled):
                    await handle.result(WITHIN_S)
        assert len(worker.proxy.commands("XREAD")) > 10, "nothing was cut"


@pytest.mark.slow
async def test_a_frozen_worker_is_listed_and_answers_when_it_thaws(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, gate: Path
) -> None:
    """While it is frozen the receipts say who is missing; then it obeys before it starts anything."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, heartbeat_s=5.0)
    keys = pool_keys(settings)
    with ExitStack() as stack:
        direct = stack.enter_context(redis_server.client())
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(
            subprocesses.host(settings, attempt_log, processes=2, agents="tests.fault.busy_agents:busy")
        )
        async with Orchestrator(settings=settings) as orc:
            await wait_for(
                lambda: len(subprocesses.workers_of(direct, keys, "busy")) == 2,
                lambda: host.describe("two workers"),
                15,
            )
            frozen, pid = next(iter(subprocesses.workers_of(direct, keys, "busy").items()))
            os.kill(pid, signal.SIGSTOP)
            try:
                stop = await orc.admin.stop()
                receipts = await stop.receipts(timeout=1.0)
                assert receipts.missing == (frozen,)
                handles = [await orc.submit("waits", {"gate": str(gate)}) for _ in range(4)]
            finally:
                os.kill(pid, signal.SIGCONT)
            assert (await stop.receipts(timeout=WITHIN_S)).complete
            assert attempt_log.notes("begun") == []
            gate.touch()  # noqa: ASYNC240 - it takes no time
            await orc.admin.start()
            assert [await handle.result(10) for handle in handles] == [1] * 4


async def test_a_stopped_worker_process_is_not_replaced(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """Its host starts no other in its place; one that dies is replaced as ever. With its last worker the host ends."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    keys = pool_keys(settings)
    with ExitStack() as stack:
        direct = stack.enter_context(redis_server.client())
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(
            subprocesses.host(settings, attempt_log, processes=2, agents="tests.fault.busy_agents:busy")
        )

        def workers() -> dict[str, int]:
            return subprocesses.workers_of(direct, keys, "busy")

        async with Orchestrator(settings=settings) as orc:
            await wait_for(lambda: len(workers()) == 2, lambda: host.describe("two workers"), 15)
            before = workers()
            first, second = before
            await orc.admin.stop_worker(first)
            await wait_for(lambda: "worker_stopped_by_operator" in host.output, lambda: host.describe("its end"), 10)
            os.kill(before[second], signal.SIGKILL)
            # The killed worker stays in the registry until its heartbeats are missed.
            await wait_for(lambda: workers().keys() - before.keys(), lambda: host.describe("a replacement"), 15)
            (third,) = workers().keys() - before.keys()
            await orc.admin.stop_worker(third)
            await wait_for(lambda: host.returncode == 0, lambda: host.describe("the end of the host"), 10)
            await wait_for(lambda: workers() == {}, "the end of all registrations", 10)


async def test_orders_and_cancels_outlive_redis(binary: ServerBinary, prefix: str) -> None:
    """Redis is killed and comes back: the stop is active, and what was told to stop ends; `start` ends the stop."""
    with RedisServer(binary, port=0, options={"appendonly": "yes", "appendfsync": "always"}) as server:
        settings = local_settings(server.url, prefix, worker__heartbeat_s=0.5)
        async with run_local_team(settings) as team:
            agent = Agent("ed", lease=3)
            may_end, begun = anyio.Event(), list[str]()

            @agent.skill
            async def work(ctx: TaskContext) -> int:
                begun.append(ctx.task_id)
                with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                    await may_end.wait()
                await anyio.lowlevel.checkpoint()
                return ctx.attempt

            await team.work(agent)
            told = await team.orc.submit("work")
            await wait_for(lambda: begun == [told.id], "it to run")
            await told.cancel("enough")
            await team.orc.admin.stop()
            await anyio.to_thread.run_sync(server.restart)
            waits = await team.orc.submit("work")
            may_end.set()
            with pytest.raises(TaskCancelled, match="enough"):
                await told.result(15)
            assert (await waits.status()).state is TaskState.READY
            assert begun == [told.id]
            await team.orc.admin.start()
            assert await waits.result(15) == 1
