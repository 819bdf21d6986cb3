"""An agent that extracts, for hosts in processes of their own, and a twin that stores without ids."""

from __future__ import annotations

from orchestrator import Agent, Record, Rule, RuleExtractor, TaskContext

scribe = Agent("scribe", concurrency=1, lease=2.0)
scribe.extracts(
    RuleExtractor([Rule(name="drink", kind="preference", pattern=r"\bI prefer (?P<value>\w+)", key="drink")]), batch=3
)


@scribe.skill
async def naive(ctx: TaskContext) -> int:
    """Store a record per message, as a handler would that takes no care."""
    messages = await ctx.chat.page(before=100)
    for message in messages:
        await ctx.memory.store(Record(step=message.number, kind="naive", content=message.data["content"]))
    return len(messages)
