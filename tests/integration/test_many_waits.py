"""Ten thousand waits at once on one client: for real work, over two connections, at a small price each."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from orchestrator import Agent
from orchestrator.client import replies
from orchestrator.tasks.submission import Submission
from tests.helpers.connections import connection_names
from tests.helpers.counting import CommandCounter
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from orchestrator.client.handle import TaskHandle
    from tests.helpers.local_team import LocalTeam

WAITS = 10_000
CHUNK = 1_000
"""Handed to the loop at once: a test that does more at a stretch blocks it."""


def resident_bytes() -> int:
    """What this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
async def test_ten_thousand_waits(
    team: LocalTeam, redis_client: redis.Redis, record_property: Callable[[str, object], None]
) -> None:
    """Ten thousand `result()`s and a loop over the same tasks each get every end, from replies."""
    agent = Agent("counter", concurrency=500)

    @agent.skill
    async def square(x: int) -> int:
        return x * x

    handles: list[TaskHandle[Any]] = []
    for start in range(0, WAITS, CHUNK):
        handles += await team.orc.submit_many([Submission("square", {"x": x}) for x in range(start, start + CHUNK)])
    results: dict[str, int] = {}
    given: list[str] = []

    async def wait(handle: TaskHandle[Any]) -> None:
        results[handle.id] = await handle.result()

    async def loop() -> None:
        given.extend([handle.id async for handle in team.orc.as_completed(handles)])

    before_bytes = resident_bytes()
    async with anyio.create_task_group() as group:
        group.start_soon(loop)
        await wait_for(lambda: len(team.orc._replies._waiting) == WAITS, "the loop to wait")
        looping_bytes = resident_bytes()
        for start in range(0, WAITS, CHUNK):
            for handle in handles[start : start + CHUNK]:
                group.start_soon(wait, handle)
            await anyio.lowlevel.checkpoint()
        waiting_bytes = resident_bytes()
        connections = [name for name in connection_names(redis_client) if name.startswith("client")]
        assert connections == ["client", "client:replies"], "one for short commands, one for all results"
        counter = CommandCounter(redis_client)
        began_s = time.monotonic()
        await team.work(agent)
    took_s = time.monotonic() - began_s
    record_property("seconds", round(took_s, 2))
    assert results == {handle.id: x * x for x, handle in enumerate(handles)}
    assert sorted(given) == sorted(results)
    assert team.orc._replies._waiting == {}
    # The scripts that assign and finish a task read it once each; a look at all that wait reads it again.
    looks = counter.calls()["hmget"] / WAITS - 2
    assert looks <= 1 + took_s / replies.POLL_EVERY_S, "results came by looking, not by replies"
    per_end, per_result = (looping_bytes - before_bytes) // WAITS, (waiting_bytes - looping_bytes) // WAITS
    record_property("bytes per task of the loop", per_end)
    record_property("bytes per result()", per_result)
    assert per_end < 1_000
    assert per_result < 10_000
