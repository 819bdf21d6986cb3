"""An agent that charges, whose workers die at planned points; it notes each charge."""

from __future__ import annotations

import os
import signal
from typing import Any, Literal

from orchestrator import Agent, EffectDone, TaskContext
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE, LEASE_VARIABLE, SLOTS_VARIABLE

till = Agent(
    "till",
    concurrency=int(os.environ.get(SLOTS_VARIABLE, "1")),
    lease=float(os.environ.get(LEASE_VARIABLE, "15")),
)


def _log() -> AttemptLog:
    return AttemptLog(os.environ[ATTEMPT_LOG_VARIABLE])


def _die(ctx: TaskContext, point: str, die_at: str) -> None:
    if point == die_at and not _log().notes("died", task=ctx.task_id):
        _note(ctx, "died")
        os.kill(os.getpid(), signal.SIGKILL)


def _note(ctx: TaskContext, what: str) -> None:
    _log().write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), what))


@till.skill
async def buy(ctx: TaskContext, die_at: str, unknown: Literal["ask", "retry", "fail"], *, checks: bool = False) -> Any:
    """Charge 12, as an effect."""

    def charge(cents: int) -> dict[str, int]:
        _die(ctx, "begun", die_at)
        _note(ctx, "charged")
        _die(ctx, "done", die_at)
        return {"cents": cents}

    def was_charged(cents: int) -> EffectDone | None:
        if _log().notes("charged", task=ctx.task_id):
            return EffectDone({"cents": cents})
        return None

    _die(ctx, "before", die_at)
    found = await ctx.effect("charge", charge, 12, unknown=unknown, check=was_charged if checks else None)
    _die(ctx, "stored", die_at)
    return found


@till.skill
async def buy_once(ctx: TaskContext) -> Any:
    """Charge with `ctx.once`, and die before its result is stored."""

    def charge() -> int:
        _note(ctx, "charged")
        _die(ctx, "done", "done")
        return 12

    return await ctx.once("charge", charge)
