"""An agent whose tasks kill the process that runs them, for hosts in processes of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio

from orchestrator import Agent, TaskContext
from tests.helpers.logging_agents import LEASE_VARIABLE, SLOTS_VARIABLE

crasher = Agent(
    "crasher",
    concurrency=int(os.environ.get(SLOTS_VARIABLE, "1")),
    lease=float(os.environ.get(LEASE_VARIABLE, "3")),
)


@crasher.skill(max_deaths=6)
async def deadly(ctx: TaskContext, deaths: int) -> int:
    """Die so often, then answer in which attempt that was over."""
    if ctx.attempt <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.attempt


@crasher.skill
async def hold(gate: str) -> str:
    """Run until a file is there."""
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - the gate is opened by another process
        await anyio.sleep(0.01)
    return "held"
