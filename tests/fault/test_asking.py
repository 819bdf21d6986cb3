"""Who dies while a task waits for a person changes nothing; who dies with a verdict or in a once call repeats it."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent, Cause, TaskContext, TaskState
from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.testing import Team
from tests.helpers import subprocesses
from tests.helpers.end_state import find_violations
from tests.helpers.subprocesses import alive
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    import redis

    from orchestrator import TaskHandle
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

AGENT = "tests.fault.asking_agents:scribe"


async def asks(handle: TaskHandle[Any], number: int) -> None:
    """Wait until a task waits with this question."""

    async def waits() -> bool:
        found = (await handle.status()).detail
        return found.cause is Cause.AWAITING_INPUT and found.number == number

    await wait_for(waits, f"question {number}", 15)


def reading(client: redis.Redis) -> set[str]:
    """The connections that read inboxes."""
    listed: Any = client.client_list()
    return {each["id"] for each in listed if "inbox" in each["name"]}


@pytest.mark.slow
async def test_all_processes_die_while_it_asks(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """Worker, host and supervisor are killed between ask and answer: the task waits on, and goes on with new ones."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    keys = pool_keys(settings)
    with ExitStack() as stack:
        direct = stack.enter_context(redis_server.client())
        start_host = partial(subprocesses.host, settings, attempt_log, processes=1, slots=1, agents=AGENT)
        supervisor, host = stack.enter_context(subprocesses.supervisor(settings)), stack.enter_context(start_host())
        async with Orchestrator(settings=settings) as orc:
            handle = await orc.submit("approve")
            await asks(handle, 1)
            pids = list(subprocesses.workers_of(direct, keys).values())
            assert len(pids) == 1
            host.kill()
            supervisor.kill()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            await wait_for(lambda: not any(alive(pid) for pid in pids), "the worker to be dead", 5)
            assert (await handle.status()).state is TaskState.AWAITING_INPUT
            await handle.answer("one")
            stack.enter_context(start_host())
            stack.enter_context(subprocesses.supervisor(settings, name="another"))
            await asks(handle, 2)
            (killed,) = [pid for pid in subprocesses.workers_of(direct, keys).values() if pid not in pids]
            readers = reading(direct)
            assert readers
            os.kill(killed, signal.SIGKILL)
            # While a thread of it has not ended, Redis may give the next entry to its read, which counts as a death.
            await wait_for(lambda: not readers & reading(direct), "its connections to end", 5)
            await handle.answer("two")
            assert await handle.result(15) == ["one", "two"]
            info = await handle.info()
        assert (info.deaths, info.attempts, info.once) == ((), 1, ("prepare",))
        runs = attempt_log.notes("begun")
        assert len(runs) == 3
        assert len({note.pid for note in runs}) == 3, "each attempt ran in a process of its own"
        assert len(attempt_log.notes("prepared")) == 1
        assert find_violations(direct, keys) == []


async def test_a_worker_dies_in_a_once_call(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """Between a call and its result only the call itself can help: the next attempt does it again."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, slots=1, agents=AGENT))
        async with Orchestrator(settings=settings) as orc:
            assert await (await orc.submit("die_in_a_once_call")).result(15) == "attempt 2"
    assert [note.attempt for note in attempt_log.notes("done")] == [1, 2]


@pytest.mark.parametrize("at", ["start", "stored"])
async def test_a_worker_vanishes_around_its_question(redis_server: RedisServer, prefix: str, at: Any) -> None:
    """Before its question is stored the task has a death and asks in the next attempt; after it nothing is lost."""
    agent = Agent("asker", concurrency=1)

    @agent.skill
    async def book(ctx: TaskContext) -> Any:
        return await ctx.ask("Row?")

    async with Team(agent, url=redis_server.url, prefix=prefix) as team:
        crash = team.crash(book, at)
        assert await team.run(book, answers=["a"]) == "a"
        assert crash.happened
        (task,) = team.submitted("book")
        assert len((await team.orc.task(task.id).info()).deaths) == (at == "start")
