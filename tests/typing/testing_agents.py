"""What users write to test their agents."""

from __future__ import annotations

from typing import Any, assert_type

from orchestrator import Agent, Orchestrator, TaskContext
from orchestrator.workers.testing import Crash, Outcome, RecordedContext, Team, Teams, make_context, run_skill

agent = Agent("editor")


@agent.skill
async def count(ctx: TaskContext, text: str) -> int:
    """A skill."""
    return len(text) + ctx.attempt


async def test_one_skill() -> None:
    """Without a server."""
    outcome = await run_skill(count, {"text": "a"}, attempt=2)
    assert_type(outcome, Outcome[int])
    assert_type(outcome.value, int)
    ctx = make_context(session="101")
    assert_type(ctx, RecordedContext)
    assert_type(await count(ctx, "a"), int)
    await run_skill("count")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await run_skill(count, {"text": "a"}, attemt=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def test_a_team(orc_team: Teams) -> None:
    """With one."""
    async with orc_team(agent, workers=2) as team:
        assert_type(team, Team)
        assert_type(team.orc, Orchestrator)
        assert_type(await team.run(count, {"text": "a"}, priority="high"), int)
        assert_type(await team.run("count", {"text": "a"}), Any)
        crash = team.crash(count, at="progress")
        assert_type(crash, Crash)
        await team.drain(skip_time=True)
        team.assert_submitted(count, args={"text": "a"}, times=1)
        await team.run(count, prio="high")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
        team.crash(count, at="nowhere")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orc_team("editor")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
