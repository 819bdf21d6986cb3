"""Submits child tasks and joins their results. The parent fails once on purpose, to show what a retry costs.

Run `orc up parent_children:team` in one terminal and `python parent_children.py` in another.

A parent that awaits a child lends its slot, so parents and children may also belong to one agent.
"""

from __future__ import annotations

import anyio
from pydantic import BaseModel

from orchestrator import Agent, Orchestrator, TaskContext

counter = Agent("counter")
planner = Agent("planner")
team = [planner, counter]


class Report(BaseModel):
    """Result of the parent."""

    words: int
    attempt: int
    children: list[str]


@counter.skill
async def count_words(text: str) -> int:
    """Count the words of one text."""
    return len(text.split())


@planner.skill(backoff=0.1)
async def count_all(ctx: TaskContext, texts: list[str]) -> Report:
    """Count the words of all texts, one child each."""
    children = [await ctx.submit(count_words, {"text": text}) for text in texts]
    words = sum([await child.result() for child in children])
    if ctx.attempt == 1:
        raise RuntimeError("planned failure after all words were counted")
    # The keys of children derive from their parent, so this second attempt gets the tasks of the first.
    return Report(words=words, attempt=ctx.attempt, children=[child.id for child in children])


async def main() -> None:
    """Submit one parent and print its report."""
    async with Orchestrator() as orc:
        handle = await orc.submit(count_all, {"texts": ["one two", "three", "four five six"]})
        report: Report = await handle.result(timeout=30)
        children = [await orc.task(child).info() for child in report.children]
    print(f"{report.words} words, counted in attempt {report.attempt}")
    print(f"{len(children)} children, executed {sum(child.attempts for child in children)} times")


if __name__ == "__main__":
    anyio.run(main)
