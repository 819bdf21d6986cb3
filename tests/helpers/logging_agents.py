"""Agents whose handlers note every run: `make_agents` for a worker in this process, `agents` for worker processes."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import anyio

from orchestrator import Agent, Reject, Retry, Snooze, TaskContext
from orchestrator.core.errors import ServerFull, ServerUnavailable
from tests.helpers.attempt_log import AttemptLog, Note

ATTEMPT_LOG_VARIABLE: Final = "LOGGING_AGENTS_ATTEMPT_LOG"
LEASE_VARIABLE: Final = "LOGGING_AGENTS_LEASE_S"
SLOTS_VARIABLE: Final = "LOGGING_AGENTS_SLOTS"
STAMPS_PER_MINUTE: Final = 1000


def make_agents(attempt_log: AttemptLog, *, lease_s: float, slots: int = 20) -> list[Agent]:  # noqa: C901, PLR0915 - handlers, no branches
    """Make `scribe`, which does many things, and `clerk`, which is limited in its rate."""
    scribe = Agent("scribe", concurrency=slots, lease=lease_s)
    clerk = Agent("clerk", concurrency=10, lease=lease_s, rate=f"{STAMPS_PER_MINUTE}/min")

    def note(ctx: TaskContext, what: str = "begun") -> None:
        attempt_log.write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), what))

    @scribe.skill
    async def echo(ctx: TaskContext, n: int) -> int:
        note(ctx)
        return n

    @scribe.skill(backoff=0.02)
    async def flaky(ctx: TaskContext, fails: int) -> int:
        note(ctx)
        if ctx.attempt <= fails:
            raise ValueError("planted")
        return ctx.attempt

    @scribe.skill
    async def nap(ctx: TaskContext) -> str:
        note(ctx)
        if len(attempt_log.notes("begun", task=ctx.task_id)) == 1:
            raise Snooze(0.05)
        return "rested"

    @scribe.skill
    async def refuse(ctx: TaskContext) -> None:
        note(ctx)
        raise Reject("planted")

    @scribe.skill(max_attempts=2, backoff=0.02)
    async def broken(ctx: TaskContext) -> None:
        note(ctx)
        raise ValueError("always")

    @scribe.skill
    async def family(ctx: TaskContext, children: int) -> int:
        note(ctx)
        try:
            handles = [await ctx.submit("echo", {"n": n}) for n in range(children)]
            return sum([await handle.result() for handle in handles])
        except (ServerFull, ServerUnavailable):
            note(ctx, "outage")
            raise
        except anyio.get_cancelled_exc_class():
            note(ctx, "cancelled")
            raise

    @scribe.skill
    async def pause(ctx: TaskContext, seconds: float) -> str:
        note(ctx)
        await anyio.sleep(seconds)
        note(ctx, "done")
        return ctx._delivery.generation

    @scribe.skill(max_attempts=100, max_deaths=100, backoff=0.02)
    async def step(ctx: TaskContext) -> None:
        note(ctx)
        dice = random.random()
        await anyio.sleep(dice / 20)
        if dice < 0.05:
            raise Retry(0.02)
        if dice < 0.1:
            raise Snooze(0.02)

    @scribe.skill(max_deaths=2)
    async def hold(ctx: TaskContext, gate: str) -> str:
        note(ctx)
        try:
            while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - the gate may be opened by another process
                await anyio.sleep(0.01)
        except anyio.get_cancelled_exc_class():
            note(ctx, "cancelled")
            raise
        return "held"

    @clerk.skill
    async def stamp(ctx: TaskContext) -> str:
        note(ctx)
        return "stamped"

    return [scribe, clerk]


if ATTEMPT_LOG_VARIABLE in os.environ:
    agents = make_agents(
        AttemptLog(os.environ[ATTEMPT_LOG_VARIABLE]),
        lease_s=float(os.environ.get(LEASE_VARIABLE, "3")),
        slots=int(os.environ.get(SLOTS_VARIABLE, "20")),
    )
