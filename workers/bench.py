"""The agents of `orc bench`. A handler does nothing, so that the benchmark measures the orchestrator, or waits."""

from __future__ import annotations

import anyio

from orchestrator.workers.agent import Agent

agent = Agent("bench", concurrency=100)
waiting = Agent("bench-waiting", concurrency=200)


@agent.skill
async def nothing(number: int, body: str = "") -> int | str:
    """Return at once; a body goes back as it came."""
    return body or number


@waiting.skill
async def wait(number: int) -> int:
    """Wait for 5 ms, as for a short call of another service."""
    await anyio.sleep(0.005)
    return number
