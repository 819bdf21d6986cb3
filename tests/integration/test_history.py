"""Attempts that real workers made: what `info`, the blocking client and `orc tasks show` tell of them."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Snooze, TaskContext, TaskFailed
from orchestrator.tasks.history import AttemptOutcome
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam


def make_agent() -> Agent:
    """An agent whose skill fails, runs too long, snoozes and fails for good, one after the other."""
    agent, calls = Agent("clumsy"), list[int]()

    @agent.skill(max_attempts=3, timeout=0.1, backoff=0)
    async def work(ctx: TaskContext) -> None:
        calls.append(ctx.attempt)
        match len(calls):
            case 1:
                raise ValueError("no such page")
            case 2:
                await anyio.sleep(60)
            case 3:
                raise Snooze(0.01, reason="not yet")
            case _:
                raise KeyError("title")

    return agent


async def test_every_attempt_is_told(team: LocalTeam, tmp_path: Path) -> None:
    """Each attempt has its outcome, agent, worker, times in order, and the beginning of its error."""
    worker = await team.work(make_agent())
    handle = await team.orc.submit("work")
    with pytest.raises(TaskFailed):
        await handle.result(timeout=5)
    found = (await handle.info()).history
    assert [(one.number, one.attempt, one.outcome) for one in found] == [
        (1, 1, AttemptOutcome.FAILED),
        (2, 2, AttemptOutcome.TIMED_OUT),
        (3, 3, AttemptOutcome.SNOOZED),
        (4, 3, AttemptOutcome.FAILED),
    ]
    assert {one.agent for one in found} == {"clumsy"}
    assert {one.worker for one in found} == {worker.id}
    for one in found:
        assert one.began_at is not None
        assert one.ended_at is not None
        assert one.assigned_at <= one.began_at <= one.ended_at
    timed_out = found[1]
    assert timed_out.began_at is not None
    assert timed_out.ended_at is not None
    assert (timed_out.ended_at - timed_out.began_at).total_seconds() >= 0.09
    assert found[0].reason == "ValueError: no such page"
    assert "timeout of 0.1 s" in timed_out.reason
    assert (found[2].reason, found[3].reason) == ("not yet", "KeyError: 'title'")

    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)
    shown = await anyio.to_thread.run_sync(partial(terminal.orc, "tasks", "show", handle.id, "-o", "json"))
    told = json.loads(shown.out)["history"]
    assert [one["outcome"] for one in told] == ["failed", "timed_out", "snoozed", "failed"]
    assert told[0]["worker"] == worker.id
    table = (await anyio.to_thread.run_sync(partial(terminal.orc, "tasks", "show", handle.id))).out
    assert "  1. failed, " in table
    assert f"agent clumsy, worker {worker.id}" in table
    assert "     ValueError: no such page\n" in table
    assert "requeues" not in table, "a task without them has no line for them"
    assert "dropped" not in table


async def test_an_attempt_that_runs(team: LocalTeam) -> None:
    """The attempt that runs has a worker and no end; a first attempt that succeeds keeps agent and times."""
    agent, begun, go_on = Agent("slow"), anyio.Event(), anyio.Event()

    @agent.skill
    async def wait() -> int:
        begun.set()
        await go_on.wait()
        return 1

    worker = await team.work(agent)
    handle = await team.orc.submit("wait")
    await begun.wait()
    (running,) = (await handle.info()).history
    assert (running.outcome, running.worker, running.ended_at) == (None, worker.id, None)
    go_on.set()
    await handle.result(timeout=5)
    (ended,) = (await handle.info()).history
    assert (ended.outcome, ended.agent, ended.worker) == (AttemptOutcome.SUCCEEDED, "slow", None)
    assert ended.assigned_at == running.assigned_at
