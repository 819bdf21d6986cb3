"""Waiting at a terminal: what keeps the task from running is said."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent
from orchestrator.cli.terminal import output, waiting
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


@pytest.mark.parametrize("looked_at", [True, False])
async def test_what_keeps_a_task_from_running_is_said_once(
    team: LocalTeam, monkeypatch: pytest.MonkeyPatch, *, looked_at: bool
) -> None:
    """A misspelt skill is not waited for in silence; a script is told nothing."""
    said: list[str] = []
    monkeypatch.setattr(waiting, "POLL_EVERY_S", 0.01)
    monkeypatch.setattr(output, "is_terminal", lambda _: looked_at)
    monkeypatch.setattr(output, "say", said.append)
    agent = Agent("late")

    @agent.skill
    async def gret() -> int:
        return 1

    handle = await team.orc.submit("gret")
    async with waiting.wait_through_outages(team.orc, of=handle):
        if looked_at:
            await wait_for(lambda: said, "a word", TIMEOUT_S)
        await team.work(agent)
        assert await handle.result(TIMEOUT_S) == 1
    assert sum("no live agent has the skill" in text for text in said) == looked_at
    assert bool(said) == looked_at


async def test_the_log_repeats_no_outage(team: LocalTeam) -> None:
    """A wait tells of an outage in its own line, so that the client writes none beside it; afterwards it does."""
    loggers = [logging.getLogger(name) for name in ("orchestrator.client.client", "orchestrator.store.outage")]
    async with waiting.wait_through_outages(team.orc):
        assert not any(logger.isEnabledFor(logging.WARNING) for logger in loggers)
    assert all(logger.isEnabledFor(logging.WARNING) for logger in loggers)
