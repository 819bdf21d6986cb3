"""Agents of one worker process of a fleet, and a skill that tells how long its task waited."""

from __future__ import annotations

import os
import time

from orchestrator import Agent, TaskContext

AGENTS_VARIABLE = "BENCH_FLEET_AGENTS"
FIRST_VARIABLE = "BENCH_FLEET_FIRST"
"""Number of the agents, and of the first of them, in the environment of the workers."""


async def pick_up(ctx: TaskContext, sent_ns: int) -> float:
    """Note the task in the workspace of its session; return the ms from its submit to its start."""
    waited_ms = (time.time_ns() - sent_ns) / 1e6
    await ctx.workspace.set("last", ctx.task_id)
    return waited_ms


def name_of(number: int) -> str:
    """Return the name of an agent."""
    return f"fleet-{number}"


def _made(first: int, count: int) -> list[Agent]:
    agents = [Agent(name_of(number), concurrency=4) for number in range(first, first + count)]
    for agent in agents:
        agent.skill(pick_up)
    return agents


agents = _made(int(os.environ.get(FIRST_VARIABLE, "0")), int(os.environ.get(AGENTS_VARIABLE, "1")))
