"""Tests of my_agents.py. Run `pytest` in a folder that holds both files; a Redis for the tests comes along."""

import pytest
from my_agents import agent, greet

from orchestrator.workers.testing import Teams, run_skill

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


async def test_greeting() -> None:
    """One attempt, without a server."""
    outcome = await run_skill(greet, {"name": "Ada"})
    assert outcome.value == "Hello, Ada! This was attempt 1."


async def test_greeting_nobody() -> None:
    """Arguments are checked as by a worker."""
    outcome = await run_skill(greet, {})
    assert outcome.verdict == "dead"
    assert "name: Field required" in outcome.reason


async def test_greeting_tomorrow(orc_team: Teams) -> None:
    """A whole team on a real Redis; the test does not wait for tomorrow."""
    async with orc_team(agent) as team:
        handle = await team.orc.submit(greet, {"name": "Ada"}, delay=24 * 3600)
        await team.drain()
        team.assert_submitted(greet, args={"name": "Ada"}, times=1)
        await team.advance(days=1)
        assert await handle.result(timeout=5) == "Hello, Ada! This was attempt 1."


async def test_greeting_survives_a_crash(orc_team: Teams) -> None:
    """The worker dies after the handler has run; another one runs it again."""
    async with orc_team(agent) as team:
        team.crash(greet, at="result")
        assert await team.run(greet, {"name": "Ada"}) == "Hello, Ada! This was attempt 2."
