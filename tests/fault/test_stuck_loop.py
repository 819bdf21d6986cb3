"""A worker whose event loop stands still for longer than it may: its heartbeat runs, and renews nothing."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from orchestrator import Agent, TaskContext
from orchestrator.core.ids import new_worker_id
from orchestrator.services import open_services
from orchestrator.tasks.model import TaskState
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.worker import Worker
from tests.helpers.local_team import local_settings, run_local_team

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer


async def test_a_task_that_the_loop_never_saw_does_not_die(redis_server: RedisServer, prefix: str) -> None:
    """A handler holds the loop longer than a lease: a peer runs what the worker read meanwhile, and no death counts."""
    settings = local_settings(redis_server.url, prefix)
    begun, may_end, over = threading.Event(), threading.Event(), threading.Event()
    first = new_worker_id()

    def make(*, blocks: bool) -> Agent:
        agent = Agent("block", lease=1, concurrency=2)

        @agent.skill
        async def work(ctx: TaskContext) -> str:
            if blocks:
                begun.set()
                may_end.wait(30)  # holds the loop: that is the fault
            return f"{ctx.attempt} {blocks}"

        return agent

    async def run_first() -> None:
        async with open_services(settings, name="worker") as services:
            worker = Worker(services, [make(blocks=True)], worker=first)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(worker.run, listen=False))
                await anyio.to_thread.run_sync(over.wait)
                worker.stop()

    blocked = threading.Thread(target=anyio.run, args=(run_first,))
    async with run_local_team(settings) as team:
        store, inbox_key = team.services.store, team.services.keys.inbox("block")

        async def has_read_both() -> bool:
            # As the worker's own read would, if it were still blocked in Redis.
            await store.execute("XREADGROUP", "GROUP", "workers", first, "COUNT", 1, "STREAMS", inbox_key, ">")
            return len(await store.execute("XPENDING", inbox_key, "workers", "-", "+", 10, first)) == 2

        running = await team.orc.submit("work")
        blocked.start()
        try:
            assert await anyio.to_thread.run_sync(begun.wait, 10)
            unseen = await team.orc.submit("work")
            await wait_for(has_read_both, "two entries of the blocked worker")
            await team.work(make(blocks=False))
            assert await unseen.result(15) == "1 False"
            assert (await unseen.info()).deaths == ()
            assert (await running.status()).state is TaskState.RUNNING
            may_end.set()
            assert await running.result(5) == "1 True"
        finally:
            may_end.set()
            over.set()
            await anyio.to_thread.run_sync(blocked.join, 15)


async def test_its_task_goes_to_a_peer(redis_server: RedisServer, prefix: str) -> None:
    """The handler holds the loop of the first worker; a peer runs the task while it still does."""
    settings = local_settings(redis_server.url, prefix, worker__stuck_after_s=1.0)
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def make(*, blocks: bool) -> Agent:
        agent = Agent("block", lease=1)

        @agent.skill
        async def work(ctx: TaskContext) -> int:
            if blocks:
                begun.set()
                may_end.wait(30)  # holds the loop: that is the fault
                ended.set()
            return ctx.attempt

        return agent

    async def first() -> None:
        async with open_services(settings, name="worker") as services:
            worker = Worker(services, [make(blocks=True)], worker=new_worker_id())
            async with anyio.create_task_group() as group:
                group.start_soon(partial(worker.run, listen=False))
                await anyio.to_thread.run_sync(ended.wait)
                worker.stop()

    stuck = threading.Thread(target=anyio.run, args=(first,))
    async with run_local_team(settings) as team:
        handle = await team.orc.submit("work")
        stuck.start()
        try:
            assert await anyio.to_thread.run_sync(begun.wait, 10)
            await team.work(make(blocks=False))
            assert await handle.result(15) == 2
            assert not ended.is_set()
        finally:
            may_end.set()
            await anyio.to_thread.run_sync(stuck.join, 15)
