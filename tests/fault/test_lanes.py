"""Lanes while workers are killed and tasks fail and snooze: the order is kept, and nothing is stuck."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from tests.helpers import subprocesses
from tests.helpers.end_state import find_violations
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    from orchestrator.client.handle import TaskHandle
    from orchestrator.store.keys import PoolKeys
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

PROCESSES = 4
KILLS = 12


def overtaken(attempt_log: AttemptLog, lanes: Sequence[Sequence[TaskHandle[Any]]]) -> list[str]:
    """Tasks that began although one before them in their lane began again later. The notes are in the order of time."""
    places = {handle.id: (lane, place) for lane, members in enumerate(lanes) for place, handle in enumerate(members)}
    reached = [0] * len(lanes)
    wrong = []
    for note in attempt_log.notes("begun"):
        lane, place = places[note.task]
        if place < reached[lane]:
            wrong.append(f"lane {lane}: {place} began when {reached[lane]} had begun")
        reached[lane] = max(place, reached[lane])
    return wrong


async def kill_workers(direct: redis.Redis, keys: PoolKeys, kills: list[int], *, every_s: float) -> None:
    """Kill worker processes, one after the other. Not for ever: who dies often waits long for the next attempt."""
    dice = random.Random(1)
    while len(kills) < KILLS:
        await anyio.sleep(every_s)
        pids = sorted(subprocesses.workers_of(direct, keys).values())
        if pids:
            kills.append(dice.choice(pids))
            with suppress(ProcessLookupError):
                os.kill(kills[-1], signal.SIGKILL)


async def run(
    redis_server: RedisServer,
    prefix: str,
    attempt_log: AttemptLog,
    *,
    lanes: int,
    tasks: int,
    named: bool,
    kill_every_s: float,
) -> tuple[list[str], list[int]]:
    """Run so many lanes of so many tasks each; what was overtaken, and whom it killed."""
    settings = make_settings(redis_server.url, prefix)
    keys = pool_keys(settings)
    kills: list[int] = []
    with redis_server.client() as direct, subprocesses.supervisor(settings):
        with subprocesses.host(settings, attempt_log, processes=PROCESSES, slots=25):
            await wait_for(lambda: len(subprocesses.workers_of(direct, keys)) == PROCESSES, "the workers", 15)
            async with Orchestrator(settings=settings) as orc, anyio.create_task_group() as trouble:
                handles = await orc.submit_many(
                    [Submission("step", lane=f"lane {n % lanes}" if named else None) for n in range(lanes * tasks)]
                )
                trouble.start_soon(lambda: kill_workers(direct, keys, kills, every_s=kill_every_s))
                async for handle in orc.as_completed(handles, timeout=150):
                    await handle.result()
                trouble.cancel_scope.cancel()
        assert find_violations(direct, keys) == []
    return overtaken(attempt_log, [handles[lane::lanes] for lane in range(lanes)]), kills


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.blocks_loop  # ten thousand notes are read in one go
async def test_a_hundred_lanes_of_a_hundred_tasks_keep_their_order(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """With kills, retries and snoozes all along, each lane runs in its order, and all of it ends."""
    wrong, kills = await run(redis_server, prefix, attempt_log, lanes=100, tasks=100, named=True, kill_every_s=0.3)
    assert wrong == []
    assert len(kills) == KILLS
    again = sum(count > 1 for count in attempt_log.runs().values())
    assert again > 500, "tasks were to be run again"


async def test_a_few_lanes_keep_their_order(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """The same for a moment."""
    wrong, _ = await run(redis_server, prefix, attempt_log, lanes=10, tasks=20, named=True, kill_every_s=0.3)
    assert wrong == []


@pytest.mark.slow
async def test_without_lanes_there_is_no_order(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """The twin: what retries and snoozes is overtaken when no lane holds the others back."""
    wrong, _ = await run(redis_server, prefix, attempt_log, lanes=10, tasks=20, named=False, kill_every_s=0.3)
    assert wrong != []
