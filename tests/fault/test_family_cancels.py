"""The program that cancels a family is killed half-way, or parents submit children meanwhile: no task of it goes on."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent, Submission, SubmitRefused, TaskContext
from orchestrator.client.task_actions import retry_tasks
from orchestrator.tasks import bulk, scripts
from orchestrator.tasks.model import RequeueStatus, TaskState
from orchestrator.tasks.scripts import CANCEL_AT_ONCE
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import local_settings, run_local_team

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

MANY = 3000
KILLED_AT = 4
"""Call that the client does not make any more."""

CLIENT = """
import os, signal, sys
import anyio
import orchestrator.tasks.bulk as bulk
from orchestrator import Orchestrator

made, calls = bulk.scripts.cancel_children, 0

def counted(keys, **options):
    global calls
    calls += 1
    if calls == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    return made(keys, **options)

bulk.scripts.cancel_children = counted

async def main():
    async with Orchestrator(sys.argv[1], prefix=sys.argv[2]) as orc:
        await orc.cancel(sys.argv[3], "enough")

anyio.run(main)
"""


async def waiting(team: LocalTeam) -> int:
    """How many children wait."""
    return int(await team.services.store.execute("ZCARD", team.services.keys.queue("skill:nobody")))


async def test_killed_half_way(redis_server: RedisServer, prefix: str) -> None:
    """A part of the family is left, and noted; the next supervisor cancels it."""
    agent, grown = Agent("family", concurrency=2), anyio.Event()

    @agent.skill
    async def parent(ctx: TaskContext) -> None:
        await ctx.submit_many(Submission("nobody") for _ in range(MANY))
        grown.set()
        await anyio.sleep_forever()

    async with run_local_team(local_settings(redis_server.url, prefix), supervised=False) as team:
        supervisor = await team.start_supervisor()
        await team.work(agent)
        handle = await team.orc.submit("parent")
        await grown.wait()
        supervisor.cancel()
        command = [sys.executable, "-c", CLIENT, redis_server.url, prefix, handle.id, str(KILLED_AT)]
        done = await anyio.run_process(command, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        keys = team.services.keys
        assert await waiting(team) == MANY - CANCEL_AT_ONCE * (KILLED_AT - 1)
        assert await team.services.store.execute("EXISTS", keys.cancelling) == 1
        await team.start_supervisor()

        async def is_done() -> bool:
            noted = await team.services.store.execute("EXISTS", keys.cancelling)
            return await waiting(team) == 0 and not noted

        await wait_for(is_done, "the supervisor to cancel the others")
        children = await team.orc.tasks.find(parent=handle.id, limit=MANY, states=["cancelled"])
        assert len(children) == MANY
        assert {child.reason for child in children} == {f"with task {handle.id}: enough"}


@pytest.mark.parametrize("how", ["one", "many"])
async def test_retried_behind_a_cancel(redis_server: RedisServer, prefix: str, how: str) -> None:
    """A retry comes after a cancel whose client has died, also if the cancel has not reached the task yet."""
    agent, grown = Agent("family", concurrency=2), list[str]()

    @agent.skill
    async def parent(ctx: TaskContext) -> None:
        grown.extend([(await ctx.submit("nobody")).id, (await ctx.submit("nobody")).id])
        await anyio.sleep_forever()

    async with run_local_team(local_settings(redis_server.url, prefix), supervised=False) as team:
        supervisor = await team.start_supervisor()
        await team.work(agent)
        top = await team.orc.submit("parent")
        await wait_for(lambda: len(grown) == 2, "children")
        supervisor.cancel()
        first, second = grown
        await team.orc.cancel(first)
        await team.services.store.call(scripts.cancel(team.services.keys, ids=[top.id], reason="enough"))
        if how == "one":
            assert await team.orc.retry(first) is RequeueStatus.REQUEUED
        else:
            await retry_tasks(team.services, [first])
        await bulk.cancel_children(team.services.store)
        states = {id_: (await team.orc.task(id_).status()).state for id_ in grown}
        assert states == {first: TaskState.READY, second: TaskState.CANCELLED}


async def test_parents_that_submit_meanwhile(redis_server: RedisServer, prefix: str) -> None:
    """Running parents submit without end, and no cancel stops them: a refusal ends that, and no child is left."""
    agent, refused = Agent("family", concurrency=20), list[str]()

    @agent.skill
    async def parent(ctx: TaskContext, levels: int) -> None:
        if levels:
            await ctx.submit_many(Submission("parent", {"levels": levels - 1}) for _ in range(3))
        with anyio.CancelScope(shield=True):
            try:
                while True:
                    await ctx.submit("nobody")
            except SubmitRefused:
                refused.append(ctx.task_id)

    async with run_local_team(local_settings(redis_server.url, prefix)) as team:
        await team.work(agent)
        handle = await team.orc.submit("parent", {"levels": 2})

        async def many_wait() -> bool:
            return await waiting(team) > 200

        await wait_for(many_wait, "children")
        await handle.cancel()

        async def all_refused() -> bool:
            rows = await team.orc.tasks.tree(handle.id, limit=10_000)
            waiting_ends = {row.state for row in rows if row.skill == "nobody"}
            return len(rows) > 200 and all(row.state.final for row in rows) and waiting_ends == {TaskState.CANCELLED}

        await wait_for(all_refused, "the end of the family")
        assert await waiting(team) == 0
        assert len(refused) > 0
