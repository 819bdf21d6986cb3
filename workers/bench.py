"""The agent of `orc bench`; its handler does nothing, so that the benchmark measures the orchestrator."""

from __future__ import annotations

from orchestrator.workers.agent import Agent

agent = Agent("bench", concurrency=100)


@agent.skill
async def nothing(number: int, body: str = "") -> int | str:
    """Return at once; a body goes back as it came."""
    return body or number
