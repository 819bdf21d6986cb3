"""Agents of the run: quick, slow and failing skills, and one that asks a person."""

from __future__ import annotations

import random

import anyio

from orchestrator import Agent, TaskContext

researcher = Agent("researcher", concurrency=12)
writer = Agent("writer", concurrency=6, rate="6/s")
reviewer = Agent("reviewer", concurrency=4)


@researcher.skill
async def search(ctx: TaskContext, query: str) -> int:
    """Find pages; one search in twelve fails once."""
    await anyio.sleep(random.lognormvariate(-2.5, 0.7))
    if ctx.attempt == 1 and random.random() < 1 / 12:
        raise ConnectionError("the search engine did not answer")
    return len(query)


@writer.skill
async def write(topic: str) -> str:
    """Write about a topic, slowly."""
    await anyio.sleep(random.lognormvariate(-0.5, 0.5))
    return topic.title()


@reviewer.skill(max_attempts=1)
async def review(ctx: TaskContext, text: str) -> bool:
    """Review a text; a few cannot be read."""
    await anyio.sleep(random.lognormvariate(-1.5, 0.5) + len(text) / 1000)
    if random.random() < 1 / 25:
        raise ValueError("the text cannot be read")
    if random.random() < 1 / 60:
        return bool(await ctx.ask("May this be published?", default=True, deadline=20))
    return True


team = (researcher, writer, reviewer)
