"""Times single calls, and calls of many writers."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from orchestrator.bench.measures import Latencies, percentiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Call = Callable[[int], Awaitable[Any]]
    """Makes one call, which gets its number."""


async def latencies(call: Call, count: int) -> Latencies:
    """Time single calls after some that are not counted."""
    for number in range(count // 10):
        await call(number)
    taken_ms = []
    for number in range(count):
        began_s = time.perf_counter()
        await call(number)
        taken_ms.append((time.perf_counter() - began_s) * 1000)
    return percentiles(taken_ms)


async def crowd_rate(call: Call, count: int, writers: int) -> float:
    """Return the calls per second of many writers at once."""

    async def work(writer: int) -> None:
        for number in range(writer, count, writers):
            await call(number)

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for writer in range(writers):
            group.create_task(work(writer))
    return count / (time.perf_counter() - began_s)
