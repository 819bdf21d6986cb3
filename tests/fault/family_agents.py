"""An agent with one slot per worker whose tasks form a tree: each awaits its children."""

from __future__ import annotations

import asyncio

from orchestrator import Agent, TaskContext

family = Agent("family", concurrency=1)


@family.skill(backoff=0.05)
async def grow(ctx: TaskContext, levels: int, width: int, sleep_s: float = 0.0) -> int:
    """Return the number of tasks of a tree."""
    await asyncio.sleep(sleep_s)
    if levels == 1:
        return 1
    below = {"levels": levels - 1, "width": width, "sleep_s": sleep_s}
    children = [await ctx.submit("grow", below) for _ in range(width)]
    return 1 + sum(await asyncio.gather(*[child.result(as_=int) for child in children]))
