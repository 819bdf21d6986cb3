"""An agent that uses what older programs do not know, and returns what it got, or the sentence of the refusal."""

from __future__ import annotations

from orchestrator import Agent, TaskContext, UpgradeUnfinished

PROVIDER = "model:new"

novel = Agent("novel", concurrency=5, lease=3)


@novel.skill
async def add(left: int, right: int) -> int:
    """Add."""
    return left + right


@novel.skill
async def join(ctx: TaskContext) -> int | str:
    """Join two children, which old workers may run, too, and one that has not ended by then."""
    children = [await ctx.submit("add", {"left": n, "right": 1}, key=f"{ctx.task_id}:{n}") for n in range(2)]
    children += [await ctx.submit("echo", {"n": 3}, key=f"{ctx.task_id}:echo", delay=0.5)]
    try:
        return sum([int(one.value) for one in await ctx.join(children)])
    except UpgradeUnfinished as refusal:
        return str(refusal)


@novel.skill
async def call(ctx: TaskContext) -> int | str:
    """Call the provider."""
    try:
        async with ctx.provider(PROVIDER, tokens=1):
            return 1
    except UpgradeUnfinished as refusal:
        return str(refusal)


@novel.skill
async def charge(ctx: TaskContext) -> int | str:
    """Have an effect."""
    try:
        return int(await ctx.effect("charge", lambda: 1))
    except UpgradeUnfinished as refusal:
        return str(refusal)


@novel.skill
async def spend(ctx: TaskContext) -> int:
    """Spend a cent."""
    async with ctx.spend(usd=0.01):
        return 1
