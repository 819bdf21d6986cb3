"""The agents that run the measured tasks: one free, one under a rate limit that never binds."""

from __future__ import annotations

from typing import Any

from benchmarks.payload import RESULT, note_start
from workers import Agent

CONCURRENCY = 100

free = Agent("bench", concurrency=CONCURRENCY)
limited = Agent("bench-limited", concurrency=CONCURRENCY, rate="1000000/s")


@free.skill
async def answer(number: int, url: str, style: str, sent_ns: int) -> dict[str, Any]:  # noqa: ARG001
    """Return at once."""
    note_start(sent_ns)
    return {**RESULT, "number": number}


@limited.skill
async def answer_limited(number: int, url: str, style: str, sent_ns: int) -> dict[str, Any]:  # noqa: ARG001
    """Return at once; every start is counted against the limit."""
    note_start(sent_ns)
    return {**RESULT, "number": number}
