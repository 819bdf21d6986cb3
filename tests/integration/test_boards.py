"""`orc.board`: what agents have done today, and boards of one's own."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent, InvalidInput, Reject, Standing, Submission
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

HOSTILE = "a {b} } : * [x] / é 𝄞 ../.."


def agent_of(name: str) -> Agent:
    """An agent that does what it is asked, or refuses."""
    agent = Agent(name)

    @agent.skill(name=f"work-{name}")
    async def work(well: bool = True) -> None:  # noqa: FBT001, FBT002 - a task's argument
        if not well:
            raise Reject("no")

    return agent


async def test_what_agents_have_done(team: LocalTeam) -> None:
    """Each agent's tasks that ended with a result, of today; nothing of a day on which nothing was done."""
    await team.work(agent_of("ed"), agent_of("bo"))
    tasks = [Submission("work-ed")] * 3 + [Submission("work-bo")] * 5 + [Submission("work-ed", {"well": False})]
    handles = await team.orc.submit_many(tasks)
    async for _ in team.orc.as_completed(handles, timeout=TIMEOUT_S):
        pass
    # The test may run over midnight; what was done stands on one of the two days, or on both.
    today = datetime.now(UTC).date()
    if await team.orc.board(date=today - timedelta(days=1)).top():
        pytest.skip("a day ended during the test")
    assert await team.orc.board(date=today).top() == [Standing(1, "bo", 5), Standing(2, "ed", 3)]
    board = team.orc.board()
    assert await board.top(1) == [Standing(1, "bo", 5)]
    assert await board.rank("ed") == Standing(2, "ed", 3)
    assert await board.rank("nobody") is None
    assert await team.orc.board(date=date(2001, 1, 1)).top() == []


async def test_a_board_of_ones_own(team: LocalTeam) -> None:
    """Fifty callers at once count exactly; what has a name counts once; boards do not meet."""
    board = team.orc.board(HOSTILE)
    counts = await asyncio.gather(*[board.add(HOSTILE, 2) for _ in range(50)])
    assert sorted(counts) == list(range(2, 101, 2))
    assert [await board.add("ann", 7, op_id="mine") for _ in range(2)] == [7, 7]
    assert await board.top() == [Standing(1, HOSTILE, 100), Standing(2, "ann", 7)]
    assert await team.orc.board("other").top() == await team.orc.board().top() == []


async def test_ten_by_default(team: LocalTeam) -> None:
    """Without a number the ten highest counts are returned; a larger number returns more."""
    board = team.orc.board("many")
    for count in range(1, 13):
        await board.add(f"m{count}", count)
    assert [row.count for row in await board.top()] == list(range(12, 2, -1))
    assert [row.place for row in await board.top(1000)] == list(range(1, 13))


@pytest.mark.parametrize("wrong", [{"by": 0}, {"by": True}, {"by": 10**10}, {"member": ""}, {"op_id": "\n"}])
async def test_refused_by_validation(team: LocalTeam, wrong: dict[str, Any]) -> None:
    """What cannot be counted is refused before anything is sent."""
    with pytest.raises(InvalidInput):
        await team.orc.board("b").add(**{"member": "x"} | wrong)


async def test_questions_that_cannot_be_meant(team: LocalTeam) -> None:
    """So are a number and a day that are none."""
    with pytest.raises(InvalidInput, match="n must be"):
        await team.orc.board().top(0)
    with pytest.raises(InvalidInput, match="date must be"):
        team.orc.board(date=datetime(2027, 1, 1, tzinfo=UTC))
