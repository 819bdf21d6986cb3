"""Agents of the measured tasks: free, with a rate limit that never binds, and those whose workers are killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import anyio

from benchmarks.payload import note_start, noted_attempt, result_of
from orchestrator import Agent, TaskContext

CONCURRENCY = 100
SPANS_VARIABLE = "BENCH_SPANS"
"""Set in the environment of workers that make spans. Others do not load the SDK."""

if os.environ.get(SPANS_VARIABLE):
    from benchmarks.ours.spans import start_spans

    start_spans()

SHORT_S = 0.005

free = Agent("bench", concurrency=CONCURRENCY)
short = Agent("bench-short", concurrency=200)
held = Agent("bench-held", concurrency=1)
crowd = Agent("bench-crowd", concurrency=CONCURRENCY)
fifty = Agent("bench-fifty", concurrency=50)
ten = Agent("bench-ten", concurrency=10)
limited = Agent("bench-limited", concurrency=CONCURRENCY, rate="1000000/s")


@free.skill
async def answer(number: int, url: str, style: str, sent_ns: int, body: str = "") -> dict[str, Any]:  # noqa: ARG001
    """Return at once; a body goes back as it came."""
    note_start(sent_ns)
    return result_of(number, body)


@limited.skill
async def answer_limited(number: int, url: str, style: str, sent_ns: int) -> dict[str, Any]:  # noqa: ARG001
    """Return at once; every start counts against the limit."""
    note_start(sent_ns)
    return result_of(number, "")


@short.skill
async def wait_shortly(number: int, url: str, style: str, sent_ns: int) -> dict[str, Any]:  # noqa: ARG001
    """Wait as for a short call of another service."""
    await anyio.sleep(SHORT_S)
    return result_of(number, "")


@held.skill
async def hold(ctx: TaskContext, number: int, url: str, style: str, sent_ns: int) -> int:  # noqa: ARG001
    """Keep the first attempt long enough for a kill; end the next one at once."""
    with noted_attempt(number):
        if ctx.attempt == 1:
            await anyio.sleep(60)
        return ctx.attempt


async def work(number: int, seconds: float, kill_after_s: float | None = None) -> int:
    """Take the same time in every attempt; kill the own process before that if asked to."""
    with noted_attempt(number):
        if kill_after_s is not None:
            await anyio.sleep(kill_after_s)
            os.kill(os.getpid(), signal.SIGKILL)
        await anyio.sleep(seconds)
        return number


for _agent in (crowd, fifty, ten):
    _agent.skill(work)
