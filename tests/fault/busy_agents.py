"""An agent whose handlers keep a worker busy in every way: awaiting, in a thread, and holding the event loop."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio

from orchestrator import Agent, TaskContext
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE

attempt_log = AttemptLog(os.environ.get(ATTEMPT_LOG_VARIABLE, os.devnull))
busy = Agent("busy", concurrency=1, lease=10)


def _note(ctx: TaskContext, what: str) -> None:
    attempt_log.write(Note(ctx.task_id, "0", ctx.attempt, os.getpid(), what))


@busy.skill
async def waits(ctx: TaskContext, gate: str) -> int:
    """Let the loop turn."""
    _note(ctx, "begun")
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - the gate is opened by another process
        await anyio.sleep(0.02)
    return ctx.attempt


@busy.skill
def sleeps(ctx: TaskContext, gate: str) -> int:
    """Sleep in a thread, and look at nothing else."""
    _note(ctx, "begun")
    while not Path(gate).exists():
        time.sleep(0.5)
    return ctx.attempt


@busy.skill
async def blocks(ctx: TaskContext, gate: str) -> int:
    """Hold the event loop, with calls that release the interpreter."""
    _note(ctx, "begun")
    while not Path(gate).exists():  # noqa: ASYNC240 - holding the loop is what it is for
        time.sleep(0.5)  # noqa: ASYNC251
    return ctx.attempt
