"""An agent whose handlers submit children once a test opens a gate; for worker processes."""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from orchestrator import Agent, Orchestrator, TaskContext
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE

late = Agent("late", concurrency=5)
attempt_log = AttemptLog(os.environ.get(ATTEMPT_LOG_VARIABLE, "unused"))


async def wait_for_gate(ctx: TaskContext, gate: str) -> None:
    """Note the start, and wait until the file exists."""
    attempt_log.write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), "begun"))
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - the test opens the gate from another process
        await anyio.sleep(0.01)


@late.skill
async def submit_child(ctx: TaskContext, gate: str) -> str:
    """Submit two children."""
    await wait_for_gate(ctx, gate)
    handle = await ctx.submit("nobody")
    await ctx.submit("nobody")
    return handle.id


@late.skill
async def open_client(ctx: TaskContext, gate: str) -> None:
    """Open a client of its own in the pool of the worker."""
    await wait_for_gate(ctx, gate)
    async with Orchestrator():
        pass


agents = [late]
