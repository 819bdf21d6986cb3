"""An agent whose process dies in the middle of a call that spends."""

from __future__ import annotations

import os
import signal

from orchestrator import Agent, BudgetExhausted, TaskContext
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE, LEASE_VARIABLE, SLOTS_VARIABLE

lab = Agent(
    "lab",
    concurrency=int(os.environ.get(SLOTS_VARIABLE, "1")),
    lease=float(os.environ.get(LEASE_VARIABLE, "15")),
)


def note_call(ctx: TaskContext) -> None:
    """Note that a call was made."""
    made = Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), "called")
    AttemptLog(os.environ[ATTEMPT_LOG_VARIABLE]).write(made)


@lab.skill(max_attempts=10, max_deaths=10, backoff=0.01, reserve={"usd": 0.01})
async def study(ctx: TaskContext, *, die: bool = False) -> str:
    """Spend a cent, or die in the middle of it at the first attempt."""
    async with ctx.spend(usd=0.01):
        note_call(ctx)
        if die and ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return "done"


@lab.skill(max_attempts=1)
async def explore(ctx: TaskContext) -> str:
    """Spend until nothing is left, then hand back what there is with one last call."""
    calls = 0
    try:
        while True:
            async with ctx.spend(usd=0.01):
                note_call(ctx)
            calls += 1
    except BudgetExhausted:
        return f"partial, {calls}"
