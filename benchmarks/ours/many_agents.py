"""Many agents of one worker process, which share a number of slots and one skill."""

from __future__ import annotations

import os

from orchestrator import Agent

AGENTS_VARIABLE = "BENCH_AGENTS"
"""Number of agents, in the environment of the workers."""
SLOTS = 500
"""Slots of all agents together, if there are no more agents."""


async def answer(number: int, url: str, style: str, sent_ns: int) -> int:  # noqa: ARG001
    """Return at once."""
    return number


def name_of(number: int) -> str:
    """Return the name of an agent."""
    return f"bench-{number}"


def _made(count: int) -> list[Agent]:
    agents = [Agent(name_of(number), concurrency=max(1, SLOTS // count)) for number in range(count)]
    for agent in agents:
        agent.skill(answer)
    return agents


agents = _made(int(os.environ.get(AGENTS_VARIABLE, "1")))
