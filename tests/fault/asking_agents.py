"""An agent that asks, for hosts in processes of their own; it notes each run and each call."""

from __future__ import annotations

import os
import signal
from typing import Any

from orchestrator import Agent, TaskContext
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE, LEASE_VARIABLE, SLOTS_VARIABLE

scribe = Agent(
    "scribe",
    concurrency=int(os.environ.get(SLOTS_VARIABLE, "1")),
    lease=float(os.environ.get(LEASE_VARIABLE, "15")),
)
_attempt_log = AttemptLog(os.environ[ATTEMPT_LOG_VARIABLE]) if ATTEMPT_LOG_VARIABLE in os.environ else None


def _note(ctx: TaskContext, what: str) -> None:
    assert _attempt_log is not None
    _attempt_log.write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), what))


@scribe.skill
async def approve(ctx: TaskContext) -> list[Any]:
    """Prepare once, then ask twice."""
    _note(ctx, "begun")
    await ctx.once("prepare", _note, ctx, "prepared")
    return [await ctx.ask("First?"), await ctx.ask("Second?")]


@scribe.skill
async def die_in_a_once_call(ctx: TaskContext) -> str:
    """Do something, and die in the first attempt before its result is stored."""

    def call() -> str:
        _note(ctx, "done")
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"attempt {ctx.attempt}"

    return str(await ctx.once("call", call))
