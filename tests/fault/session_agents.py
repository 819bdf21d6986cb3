"""Agents whose tasks share a session: some have it to themselves, and the first attempt of `hang` never ends."""

from __future__ import annotations

import os

import anyio

from orchestrator import Agent, TaskContext

agent = Agent("ed", concurrency=4)


@agent.skill(lock="session")
async def hang(ctx: TaskContext) -> int:
    """Hang, unless a worker died with it before."""
    if ctx.attempt == 1:
        await ctx.progress(os.getpid())
        await anyio.sleep_forever()
    return os.getpid()


@agent.skill(lock="session")
async def pid() -> int:
    """Say where it ran."""
    return os.getpid()


@agent.skill
async def write(ctx: TaskContext) -> None:
    """Write all the time, wherever an attempt may write."""
    if ctx.attempt > 1:
        return
    await ctx.progress(os.getpid())
    while True:
        written = await ctx.workspace.append("written", os.getpid())
        await ctx.workspace.scratch.set("written", written.revision)
        await ctx.agent_state.bump("written")
