"""A thousand tasks while connections are cut, Redis is killed, scripts are flushed."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator.core.errors import TaskExpired
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer, find_binary_of_line
from tests.helpers.end_state import counters, find_violations, records
from tests.helpers.team import Team

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from tests.helpers.attempt_log import AttemptLog

TASKS = 1000


@asynccontextmanager
async def again_and_again(
    harm: Callable[[], object], *, every_s: float, progress: Callable[[], object] = object
) -> AsyncIterator[list[object]]:
    """Do harm every now and then, in a thread, beside what the block does; gives what `harm` returned each time.

    Before harm is done again, `progress` must have changed, so that a slow machine gets on, too.
    """
    done: list[object] = []

    async def run() -> None:
        while True:
            before = progress()
            await anyio.sleep(every_s)
            while progress() == before:  # noqa: ASYNC110 - what changes has no event
                await anyio.sleep(every_s)
            done.append(await anyio.to_thread.run_sync(harm))

    async with anyio.create_task_group() as background:
        background.start_soon(run)
        yield done
        background.cancel_scope.cancel()


async def submit_all(orc: Orchestrator) -> dict[str, TaskHandle[Any]]:
    """Submit half of the tasks one by one beside each other, half together; task number n is to return n."""
    handles: list[TaskHandle[Any]] = []

    async def one_by_one(numbers: range) -> None:
        for n in numbers:
            handles.append(await orc.submit("echo", {"n": n}))

    half, chunk = TASKS // 2, 50
    async with anyio.create_task_group() as together:
        for start in range(0, half, chunk):
            together.start_soon(one_by_one, range(start, start + chunk))
    for start in range(half, TASKS, chunk):
        handles += await orc.submit_many([Submission("echo", {"n": n}) for n in range(start, start + chunk)])
    return {handle.id: handle for handle in handles}


async def wait_for_all(handles: dict[str, TaskHandle[Any]]) -> None:
    """Wait for all results, and see that each task gave its own."""
    results: list[int] = []

    async def wait(handle: TaskHandle[Any]) -> None:
        results.append(await handle.result(timeout=30))

    async with anyio.create_task_group() as together:
        for handle in handles.values():
            together.start_soon(wait, handle)
    assert sorted(results) == list(range(TASKS))


def check_all(team: Team, handles: dict[str, TaskHandle[Any]], reruns: int = 0) -> None:
    """Each task exists once, ended once, and ran as one attempt, but for at most `reruns` that were fenced."""
    assert len(handles) == TASKS
    assert set(records(team.direct, team.keys)) == set(handles)
    assert team.attempt_log.attempts_run_twice() == []
    runs = team.attempt_log.runs()
    assert set(runs) == set(handles)
    assert runs.total() - TASKS <= reruns, [count for count in runs.values() if count > 1]
    assert find_violations(team.direct, team.keys) == []
    counted = counters(team.direct, team.keys)
    assert (counted["submitted"], counted["succeeded"]) == (TASKS, TASKS)


@pytest.mark.parametrize(
    "actor", ["worker", *[pytest.param(name, marks=pytest.mark.slow) for name in ("client", "supervisor")]]
)
async def test_connections_of_one_actor_are_cut_under_load(actor: str, make_team: Callable[..., Team]) -> None:
    """All connections of one actor end again and again; each task still ends once."""
    async with make_team(lease_s=15.0) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        proxy = {"client": team.client, "supervisor": team.supervisor, "worker": worker.proxy}[actor]
        ways = itertools.cycle([False, True])
        async with (
            team.open_client() as orc,
            again_and_again(
                lambda: proxy.cut(reset=next(ways)), every_s=0.03, progress=lambda: team.attempt_log.size_bytes
            ),
        ):
            handles = await submit_all(orc)
            await wait_for_all(handles)
        await worker.drain()
        await anyio.to_thread.run_sync(check_all, team, handles)
        assert proxy.applied["cut"] >= 5, "too few connections were cut for a test"


async def test_scripts_are_flushed_under_load(make_team: Callable[..., Team]) -> None:
    """SCRIPT FLUSH again and again: whoever meets a missing script loads it and repeats."""
    async with make_team(lease_s=15.0) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with (
            team.open_client() as orc,
            again_and_again(
                team.direct.script_flush, every_s=0.02, progress=lambda: team.attempt_log.size_bytes
            ) as flushed,
        ):
            handles = await submit_all(orc)
            await wait_for_all(handles)
        await worker.drain()
        await anyio.to_thread.run_sync(check_all, team, handles)
        assert len(flushed) >= 5
        assert any(record.arguments[0] == b"LOAD" for record in worker.proxy.commands("SCRIPT")), "nobody missed one"


@pytest.mark.parametrize(
    ("fsync", "clean"), [("always", False), pytest.param("everysec", True, marks=pytest.mark.slow)]
)
async def test_redis_is_killed_and_restarted_under_load(
    fsync: str,
    clean: bool,  # noqa: FBT001 - parametrized
    prefix: str,
    attempt_log: AttemptLog,
) -> None:
    """What the append-only file kept goes on where it was: each task ends once, a second run was fenced."""
    binary = find_binary_of_line("7.") if clean else None  # the old server where there is one, too
    with RedisServer(binary, options={"appendonly": "yes", "appendfsync": fsync}) as server:
        async with Team(server, prefix, attempt_log, lease_s=15.0) as team:
            await team.start_supervisor()
            worker = await team.start_worker()
            restart = partial(server.restart, clean=clean)

            async with (
                team.open_client() as orc,
                again_and_again(restart, every_s=0.1, progress=lambda: attempt_log.size_bytes) as restarts,
            ):
                handles = await submit_all(orc)
                await wait_for_all(handles)
            await worker.drain()
            await anyio.to_thread.run_sync(check_all, team, handles, TASKS)
            assert restarts, "the work was done before the server was killed once"


@pytest.mark.slow
async def test_a_server_without_a_file_loses_everything_and_the_team_goes_on(
    prefix: str, attempt_log: AttemptLog, gate: Path
) -> None:
    """Nothing is persisted: tasks are gone and say so, handlers are stopped, the registry and inboxes come back."""

    async def is_gone(lost: TaskHandle[Any]) -> None:
        with pytest.raises(TaskExpired, match="does not exist"):
            await lost.result(timeout=20)

    with RedisServer() as server:
        async with Team(server, prefix, attempt_log, lease_s=1.0) as team:
            await team.start_supervisor()
            worker = await team.start_worker()
            async with team.open_client() as orc:
                held = await orc.submit("hold", {"gate": str(gate)})
                late = await orc.submit("echo", {"n": 1}, delay=60)
                await wait_for(lambda: attempt_log.notes("begun"), "the task to run")
                await anyio.to_thread.run_sync(server.restart)
                async with anyio.create_task_group() as waiting:
                    waiting.start_soon(is_gone, held)
                    waiting.start_soon(is_gone, late)
                await wait_for(lambda: attempt_log.notes("cancelled"), "the handler to be stopped")
                assert await (await orc.submit("echo", {"n": 2})).result(timeout=10) == 2
            await worker.drain()
            assert find_violations(team.direct, team.keys) == []
