"""The agent of `orc bench`: it does nothing, so that what is measured is everything around it."""

from __future__ import annotations

from orchestrator.workers.agent import Agent

agent = Agent("bench", concurrency=100)


@agent.skill
async def nothing(number: int) -> int:
    """Answer at once."""
    return number
