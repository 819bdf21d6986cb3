"""Agents whose lifespans take long: the first has started, the second starts and never comes to its end."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from orchestrator import Agent, run
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

attempt_log = AttemptLog(os.environ.get(ATTEMPT_LOG_VARIABLE, os.devnull))


def note(agent: Agent, what: str) -> None:
    """Note what befalls a lifespan."""
    attempt_log.write(Note(agent.name, "0", 0, os.getpid(), what))


@asynccontextmanager
async def quick(agent: Agent) -> AsyncIterator[None]:
    """Start at once."""
    note(agent, "entered")
    try:
        yield
    finally:
        note(agent, "left")


@asynccontextmanager
async def slow(agent: Agent) -> AsyncIterator[None]:
    """Load something for ever."""
    note(agent, "entered")
    try:
        await anyio.sleep_forever()
        yield
    finally:
        note(agent, "left")


agents = [Agent("first", lifespan=quick), Agent("second", lifespan=slow)]


for each in agents:

    @each.skill(name=f"idle_{each.name}")
    async def idle() -> None:
        """Do nothing."""


if __name__ == "__main__":
    run(*agents)
