"""Agents of the measured tasks: free, with a rate limit that never binds, and two with long attempts."""

from __future__ import annotations

from typing import Any

import anyio

from benchmarks.payload import RESULT, note_attempt, note_start
from orchestrator import Agent, TaskContext

CONCURRENCY = 100

free = Agent("bench", concurrency=CONCURRENCY)
held = Agent("bench-held", concurrency=1)
crowd = Agent("bench-crowd", concurrency=CONCURRENCY)
limited = Agent("bench-limited", concurrency=CONCURRENCY, rate="1000000/s")


@free.skill
async def answer(number: int, url: str, style: str, sent_ns: int) -> dict[str, Any]:  # noqa: ARG001
    """Return at once."""
    note_start(sent_ns)
    return {**RESULT, "number": number}


@limited.skill
async def answer_limited(number: int, url: str, style: str, sent_ns: int) -> dict[str, Any]:  # noqa: ARG001
    """Return at once; every start counts against the limit."""
    note_start(sent_ns)
    return {**RESULT, "number": number}


@held.skill
async def hold(ctx: TaskContext, number: int, url: str, style: str, sent_ns: int) -> int:  # noqa: ARG001
    """Keep the first attempt long enough for a kill; end the next one at once."""
    note_attempt()
    if ctx.attempt == 1:
        await anyio.sleep(60)
    return ctx.attempt


@crowd.skill
async def hold_beside_others(ctx: TaskContext, number: int, url: str, style: str, sent_ns: int) -> int:
    """Do the same, a hundred at a time in one process."""
    return await hold(ctx, number, url, style, sent_ns)
