"""Reasons are current: of a task that goes on or succeeded, of the doctor beside `why`, and of the status."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, Retry, TaskContext
from orchestrator.agents.presence import find_absence
from orchestrator.doctor.runner import run_server_checks
from orchestrator.views.status import read_status
from orchestrator.why.model import Cause
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


async def test_a_success_has_no_reason(team: LocalTeam) -> None:
    """What the retry before it said is shown as that, while it waits as the reason."""
    agent = Agent("flaky")

    @agent.skill
    async def work(ctx: TaskContext, wait_s: float) -> str:
        if ctx.attempt == 1:
            raise Retry(wait_s, "the mail server is away")
        return "done"

    await team.work(agent)
    handle = await team.orc.submit("work", {"wait_s": 0.01})
    assert await handle.result(TIMEOUT_S) == "done"
    info, status = await handle.info(), await handle.status()
    assert (info.reason, "the mail server is away" in info.last_retry) == ("", True)
    assert (status.detail.cause, status.detail.reason, "mail" in status.why) == (Cause.ENDED, None, False)
    (row,) = await team.orc.tasks.find(states=["succeeded"])
    assert row.reason == ""
    waits = await team.orc.submit("work", {"wait_s": 60})
    await _comes_to(waits, Cause.RETRYING)
    info = await waits.info()
    assert ("the mail server is away" in info.reason, info.last_retry) == (True, "")


async def test_agents_of_one_name_with_other_skills(team: LocalTeam, settings: Settings) -> None:
    """The doctor, `why` and the warning tell the same: some workers of the agent lack the skill."""
    one, other = Agent("editor"), Agent("editor")

    @one.skill
    async def write() -> None: ...

    @other.skill
    async def read() -> None: ...

    await team.work(one)
    worker = await team.work(other)
    handle = await team.orc.submit("write")
    why = await _comes_to(handle, Cause.SKILL_PARTIAL)
    findings = {finding.code: finding for finding in (await run_server_checks(settings)).findings}
    assert why in findings["skills"].found
    assert f"the first, {handle.id}" in findings["skills"].found
    assert "'read' at 1 of 2, 'write' at 1 of 2" in findings["agent-skills"].found
    absence = await find_absence(team.services.store, "write")
    assert absence == "not all live workers of agent 'editor' have the skill 'write'"
    assert await find_absence(team.services.store, "write", "editor") == absence
    await team.stop(worker)
    await handle.result(TIMEOUT_S)
    findings = {finding.code: finding for finding in (await run_server_checks(settings)).findings}
    assert {findings[code].severity for code in ("skills", "agent-skills")} == {"ok"}


async def test_a_lifespan_that_fails_in_a_loop(team: LocalTeam, settings: Settings) -> None:
    """The doctor and `why` name the failure, how often, and where; once the agent has started they do not."""
    works = False

    @asynccontextmanager
    async def lifespan(_: Agent) -> AsyncIterator[None]:
        if not works:
            raise RuntimeError("no database")
        yield

    agent = Agent("editor", lifespan=lifespan)

    @agent.skill
    async def write() -> None: ...

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no database"):
            await team.work(agent)
    told = (
        "the lifespan of agent 'editor' failed 2 times in a row, so its workers do not start: RuntimeError: no database"
    )
    for handle in (await team.orc.submit("write"), await team.orc.submit("write", agent="editor")):
        status = await handle.status()
        assert told in status.why
        assert "orc worker run" not in status.why
        assert Path(__file__).name in status.why
    other = await team.orc.submit("read")
    assert "orc worker run" in (await other.status()).why
    findings = [finding for finding in (await run_server_checks(settings)).findings if told in finding.found]
    assert {finding.code for finding in findings} == {"lifespans", "skills"}
    assert {finding.fix.partition(",")[0] for finding in findings} == {"correct the lifespan"}
    works = True
    await team.work(agent)
    await handle.result(TIMEOUT_S)
    findings = [finding for finding in (await run_server_checks(settings)).findings if finding.code == "lifespans"]
    assert [finding.severity for finding in findings] == ["ok"]


async def test_the_status_tells_present_tasks_from_counters(team: LocalTeam) -> None:
    """A dead letter that was requeued and succeeded is counted, and no longer there."""
    agent, allowed = Agent("editor"), set[str]()

    @agent.skill(max_attempts=1)
    async def work(ctx: TaskContext) -> None:
        if ctx.task_id not in allowed:
            raise RuntimeError("not yet")

    await team.work(agent)
    handle = await team.orc.submit("work")
    await _comes_to(handle, Cause.ENDED)
    found = await read_status(team.services)
    assert (found.now["dead"], found.tasks["dead"]) == (1, 1)
    allowed.add(handle.id)
    await handle.retry()
    await handle.result(TIMEOUT_S)
    await team.orc.submit("nobody_can")
    await team.orc.submit("work", delay=60)
    found = await read_status(team.services)
    assert found.tasks["dead"] == 1
    assert found.now == {
        "ready": 1,
        "assigned": 0,
        "scheduled": 1,
        "awaiting_input": 0,
        "joining": 0,
        "awaiting_tasks": 0,
        "dead": 0,
    }


async def _comes_to(handle: TaskHandle[None], cause: Cause) -> str:
    async def reached() -> bool:
        return (await handle.status()).detail.cause is cause

    await wait_for(reached, f"the task to be {cause}", TIMEOUT_S)
    return (await handle.status()).why
