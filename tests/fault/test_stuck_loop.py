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
from orchestrator.workers.runtime.worker import Worker
from tests.helpers.local_team import local_settings, run_local_team

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer


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
