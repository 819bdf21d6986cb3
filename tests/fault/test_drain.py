"""A worker that is told to end begins nothing more: what waits for its start, wherever it waits, goes back at once."""

from __future__ import annotations

import os
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.core.errors import TaskCancelled
from orchestrator.core.ids import new_worker_id
from orchestrator.services import open_services
from orchestrator.store.script_files import all_scripts
from orchestrator.tasks.model import TaskState
from orchestrator.workers.runtime.worker import Worker
from tests.faultkit.commands import script
from tests.faultkit.proxy import ThreadedProxy
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.slow_import import GATE_VARIABLE, slow
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from orchestrator.client.handle import TaskHandle
    from tests.faultkit.proxy import FaultProxy
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

BEGIN = script(all_scripts()["tasks/begin"].sha)
AT_ONCE_S = 2.0
"""Longer than a loaded machine needs, and shorter than every wait that the drain has to end."""


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    """The line of the worker."""
    with ThreadedProxy(redis_server.url) as proxy:
        yield proxy


@pytest.fixture
async def team(redis_server: RedisServer, prefix: str) -> AsyncIterator[LocalTeam]:
    """A supervisor and a client with good lines."""
    async with run_local_team(local_settings(redis_server.url, prefix)) as running:
        yield running


@asynccontextmanager
async def working(team: LocalTeam, agent: Agent, *, url: str | None = None, **changed: Any) -> AsyncIterator[Worker]:
    """Run a worker that handles signals, as in a process of its own; at the end it stops at once."""
    assert team.settings.redis.url is not None
    url = url or team.settings.redis.url.get_secret_value()
    theirs = local_settings(url, team.settings.prefix, worker__drain_s=60.0, **changed)
    async with open_services(theirs, name="worker") as services, anyio.create_task_group() as group:
        worker = Worker(services, [agent], worker=new_worker_id())
        group.start_soon(worker.run)
        try:
            yield worker
        finally:
            worker.stop()
            worker.stop()


class Begun:
    """An agent whose tasks note that they began, and hold until they are let go."""

    def __init__(self) -> None:
        self.agent, self.began, self.let_go = Agent("holder", concurrency=4), list[str](), anyio.Event()

        @self.agent.skill
        async def hold(ctx: TaskContext) -> None:
            self.began.append(ctx.task_id)
            await self.let_go.wait()


async def given_back(handle: TaskHandle[Any]) -> bool:
    """Whether a task is back in its queue, with no attempt counted beside those that died."""
    info = await handle.info()
    return info.state is TaskState.READY and info.attempts == len(info.deaths)


async def submit_dead(team: LocalTeam) -> TaskHandle[Any]:
    """Submit a task that has died once, so that its worker records its start before it begins."""
    handle = await team.orc.submit("hold")
    await team.services.store.execute("HSET", team.services.keys.task(handle.id), "deaths", 1, "death:1", "1 w how")
    return handle


@pytest.mark.parametrize("end", ["stop", "cancel"])
async def test_what_asks_whether_it_may_begin_goes_back(team: LocalTeam, proxy: FaultProxy, end: str) -> None:
    """The start of a task with a death is recorded first; while that is not answered, a stop or a cancel ends it."""
    held, handle = Begun(), await submit_dead(team)
    refused = proxy.fail_command(BEGIN, nth="every")
    async with working(team, held.agent, url=proxy.url, redis__command_timeout_s=60.0) as worker:
        await wait_for(lambda: refused.fired >= 2, "repeated calls", TIMEOUT_S)
        if end == "stop":
            worker.stop()
            await wait_for(lambda: given_back(handle), "the task to be given back", AT_ONCE_S)
        else:
            await handle.cancel("enough")
            with pytest.raises(TaskCancelled, match="enough"):
                await handle.result(AT_ONCE_S)
    assert not held.began


async def test_a_process_that_is_not_ready_begins_nothing(
    team: LocalTeam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a handler still imports its module: the process ends, and the task goes back at once."""
    gate, importing, began = (tmp_path / name for name in ("gate", "gate.importing", "began"))
    monkeypatch.setenv(GATE_VARIABLE, str(gate))
    async with working(team, slow) as worker:
        handle = await team.orc.submit("note", {"file": str(began)})
        await wait_for(importing.exists, "the import in the process", 20)
        worker.stop()
        await wait_for(lambda: given_back(handle), "the task to be given back", AT_ONCE_S)
        gate.touch()
    assert not began.exists()
    async with working(team, slow):
        await handle.result(20)
    assert began.exists()


@pytest.mark.blocks_loop
async def test_a_blocked_loop_begins_nothing_after_the_signal(team: LocalTeam) -> None:
    """Handlers that never await run one after another in one turn; the signal that arrives in the first stops that."""
    agent, began = Agent("rude", concurrency=4), list[str]()

    @agent.skill
    async def block(ctx: TaskContext) -> None:
        began.append(ctx.task_id)
        if began == [ctx.task_id]:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # noqa: ASYNC251 - what must not be done

    handles = [await team.orc.submit("block") for _ in range(4)]
    async with working(team, agent) as worker:
        await wait_for(lambda: worker._stop.is_set() and not worker._in_flight, "the worker to have nothing", TIMEOUT_S)
        assert len(began) == 1
    async with working(team, agent):
        for handle in handles:
            await handle.result(TIMEOUT_S)
    assert sorted(began) == sorted(handle.id for handle in handles), "each once"


async def test_a_drained_worker_begins_nothing_until_it_is_resumed(team: LocalTeam, proxy: FaultProxy) -> None:
    """A drain by an operator gives back what waits; after the resume the worker takes it again."""
    held, handle = Begun(), await submit_dead(team)
    refused = proxy.fail_command(BEGIN, nth="every")
    async with working(team, held.agent, url=proxy.url, redis__command_timeout_s=60.0) as worker:
        await wait_for(lambda: refused.fired >= 2, "repeated calls", TIMEOUT_S)
        await team.orc.admin.drain_worker(worker.id)
        await wait_for(lambda: given_back(handle), "the task to be given back", AT_ONCE_S)
        refused.stop()
        assert not held.began
        await team.orc.admin.resume_worker(worker.id)
        held.let_go.set()
        await handle.result(TIMEOUT_S)
    assert held.began == [handle.id]
