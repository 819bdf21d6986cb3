"""Tests my_agents.py. Run `pytest` in a folder with both files; the fixtures start a Redis."""

import pytest
from my_agents import agent, greet

from orchestrator.workers.testing import Teams, run_skill

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio."""
    return "asyncio"


async def test_greeting() -> None:
    """Run one attempt, without a server."""
    outcome = await run_skill(greet, {"name": "Ada"})
    assert outcome.value == "Hello, Ada! This was attempt 1."


async def test_greeting_without_a_name() -> None:
    """Invalid arguments make the task a dead letter."""
    outcome = await run_skill(greet, {})
    assert outcome.verdict == "dead"
    assert "name: Field required" in outcome.reason


async def test_greeting_tomorrow(orc_team: Teams) -> None:
    """Run a team on a real Redis, and move time to tomorrow."""
    async with orc_team(agent) as team:
        handle = await team.orc.submit(greet, {"name": "Ada"}, delay=24 * 3600)
        await team.drain()
        team.assert_submitted(greet, args={"name": "Ada"}, times=1)
        await team.advance(days=1)
        assert await handle.result(timeout=5) == "Hello, Ada! This was attempt 1."


async def test_greeting_survives_a_crash(orc_team: Teams) -> None:
    """The worker dies after the handler has returned; another worker runs the task again."""
    async with orc_team(agent) as team:
        team.crash(greet, at="result")
        assert await team.run(greet, {"name": "Ada"}) == "Hello, Ada! This was attempt 2."
