"""Counters of attempts: from the workers, over the heartbeat, to `orc.stats` and `orc stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, InvalidInput, Snooze, Submission, TaskFailed
from orchestrator.testing.waiting import wait_for
from orchestrator.views.stats import list_stats
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


def agent_with_skills() -> Agent:
    """An agent that succeeds, fails once, and snoozes once."""
    agent = Agent("ed", concurrency=5)
    seen: set[str] = set()

    def first(word: str) -> bool:
        known = word in seen
        seen.add(word)
        return not known

    @agent.skill(max_attempts=2)
    async def write(word: str) -> str:
        if word == "fail" and first(word):
            raise ValueError(word)
        if word == "dead":
            raise ValueError(word)
        if word == "snooze" and first(word):
            raise Snooze(delay=0.01)
        return word

    @agent.skill
    async def read(word: str) -> str:
        return word

    return agent


async def test_from_the_worker_to_the_reader(team: LocalTeam) -> None:
    """Every attempt is counted once by its outcome; a worker that ends sends its last counts."""
    worker = await team.work(agent_with_skills())
    words = ["a", "b", "fail", "dead", "snooze"]
    handles = await team.orc.submit_many([Submission("write", {"word": word}) for word in words])
    handles.append(await team.orc.submit("read", {"word": "c"}))
    async for _ in team.orc.as_completed(handles, timeout=TIMEOUT_S):
        pass
    await team.stop(worker)
    both = {(one.agent, one.skill): one for one in await team.orc.stats()}
    write = both["ed", "write"].timings
    assert write.outcomes == {"succeeded": 4, "failed": 2, "dead": 1, "snoozed": 1}
    assert write.ran.count == 8
    assert write.waited.count == 8, "retries and snoozes wait since they were due"
    assert 0 <= (write.waited.quantile_ms(0.99) or 0) < 10_000
    assert both["ed", "read"].timings.outcomes == {"succeeded": 1}
    (whole,) = await team.orc.stats(by="agent", within=60)
    assert (whole.agent, whole.skill, whole.timings.attempts) == ("ed", None, 9)
    assert [one.skill for one in await team.orc.stats(by="skill")] == ["write", "read"]
    listed = await list_stats(team.services, limit=1)
    assert (len(listed.stats), listed.total) == (1, 2)


async def test_invalid_arguments(team: LocalTeam) -> None:
    """A task whose arguments are invalid for every version of the skill is dead; it counts as dead here too."""
    worker = await team.work(agent_with_skills())
    handle = await team.orc.submit("write", {"word": 1})
    with pytest.raises(TaskFailed):
        await handle.result(TIMEOUT_S)
    await team.stop(worker)
    (found,) = await team.orc.stats()
    assert found.timings.outcomes == {"dead": 1}


async def test_while_the_worker_runs(team: LocalTeam) -> None:
    """A heartbeat sends what has ended since the last one, and nothing twice."""
    await team.work(agent_with_skills(), worker__heartbeat_s=0.05)

    for number in range(1, 4):
        await (await team.orc.submit("read", {"word": "x"})).result(TIMEOUT_S)

        async def counted(number: int = number) -> bool:
            return [one.timings.attempts for one in await team.orc.stats()] == [number]

        await wait_for(counted, "the attempt to be counted")


@pytest.mark.parametrize("wrong", [{"within": 0}, {"within": 86_401}, {"by": "queue"}])
async def test_refused(team: LocalTeam, wrong: dict[str, object]) -> None:
    """A span that is not kept, and an unknown grouping, are refused."""
    with pytest.raises(InvalidInput):
        await team.orc.stats(**wrong)  # type: ignore[arg-type]
