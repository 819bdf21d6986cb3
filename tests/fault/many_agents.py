"""Sixty agents for one worker process, whose handlers note that they have begun and wait at a gate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import anyio

from orchestrator import Agent, TaskContext
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE, LEASE_VARIABLE

COUNT: Final = 60


def make_agents(attempt_log: AttemptLog, *, lease_s: float) -> list[Agent]:
    """Make the agents; the skill of each has its name."""

    async def hold(ctx: TaskContext, gate: str) -> int:
        attempt_log.write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), "begun"))
        while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - the gate is opened by another process
            await anyio.sleep(0.05)
        return ctx.attempt

    agents = [Agent(f"a{number}", concurrency=1, lease=lease_s) for number in range(COUNT)]
    for agent in agents:
        agent.skill(name=agent.name)(hold)
    return agents


agents = make_agents(
    AttemptLog(os.environ.get(ATTEMPT_LOG_VARIABLE, os.devnull)), lease_s=float(os.environ.get(LEASE_VARIABLE, "15"))
)
