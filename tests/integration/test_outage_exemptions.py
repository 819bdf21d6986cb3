"""What a Redis that does not answer, or a task that was taken away, means for an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, Orchestrator, TaskContext, TaskFailed
from orchestrator.testing.waiting import wait_for

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


async def test_another_redis_that_is_away_is_a_failure(team: LocalTeam) -> None:
    """Attempts are counted, so the task ends; the pool's own Redis has done nothing wrong."""
    agent = Agent("agent")

    @agent.skill(max_attempts=2)
    async def elsewhere() -> None:
        async with Orchestrator(url="redis://127.0.0.1:1"):
            raise AssertionError("something answers on port 1")

    await team.work(agent)
    handle = await team.orc.submit("elsewhere")
    with pytest.raises(TaskFailed, match="ServerUnavailable"):
        await handle.result(timeout=5)
    assert (await handle.info()).attempts == 2


async def test_an_attempt_that_lets_fenced_out_ends_without_a_verdict(
    team: LocalTeam, caplog: pytest.LogCaptureFixture
) -> None:
    """What it lost is not touched, nothing stays held, and the log has one line for it."""
    agent = Agent("agent", concurrency=1)
    keys = team.services.keys

    @agent.skill
    async def overtaken(ctx: TaskContext) -> str:
        if ctx.attempt == 1 and not await team.services.store.execute("HEXISTS", keys.task(ctx.task_id), "marked"):
            # As an adoption by a peer would.
            await team.services.store.execute("HSET", keys.task(ctx.task_id), "gen", "9999999999999", "marked", "1")
            await ctx.emit("too late")
        return "second"

    # Its heartbeat must not be the first to notice.
    worker = await team.work(agent, worker__heartbeat_s=5.0)
    await wait_for(lambda: worker._heartbeat.listener.connected, "its first heartbeat")
    handle = await team.orc.submit("overtaken")
    await wait_for(lambda: "attempt_fenced" in caplog.text, "the log to tell of it")
    assert len(worker._in_flight) == 0
    # Its entry is still ours, so the next look at the inbox brings the task back, under a new generation.
    assert await handle.result(timeout=10) == "second"
    assert (await handle.info()).attempts == 1
