"""A research team with a budget of one dollar: it reads five pages at 0.30 each, asks for more, and gets it.

Run `orc up one_dollar:team` in one terminal and `python one_dollar.py` in another.

The lead waits for its readers without a slot. A reader that finds no room in the budget asks a person, and frees its
slot, too. The answer of a page is kept, so that an attempt that runs again does not pay for it again.
"""

from __future__ import annotations

import anyio

from orchestrator import Agent, Orchestrator, TaskContext, TaskFilter, TaskState

lead = Agent("lead", concurrency=1)
reader = Agent("reader", concurrency=2)
team = [lead, reader]

PRICE = 0.30


async def ask_model(page: str) -> str:
    """Stand in for a model that takes a moment and costs `PRICE`."""
    await anyio.sleep(0.05)
    return f"what {page} says"


@reader.skill
async def read_page(ctx: TaskContext, page: str) -> str:
    """Read one page."""

    async def pay_and_ask() -> str:
        async with ctx.spend(usd=PRICE) as call:
            answer = await ask_model(page)
            call.settle(usd=PRICE)
        return answer

    answer: str = await ctx.once("answer", pay_and_ask)
    return answer


@lead.skill
async def research(ctx: TaskContext, pages: list[str]) -> list[str]:
    """Let the readers read all pages, and return what they found."""
    found = await ctx.join([await ctx.submit(read_page, {"page": page}) for page in pages])
    return [one.value for one in found]


async def main() -> None:
    """Set the budget, submit, and grant what is asked for."""
    async with Orchestrator() as orc:
        await orc.admin.set_budget("research", usd=1, at_hard="ask")
        pages = ["Mercury", "Venus", "Earth", "Mars", "Jupiter"]
        handle = await orc.submit(research, {"pages": pages}, budget="research")
        while not (await handle.status()).state.final:
            async for task in orc.tasks.list(TaskFilter(states=[TaskState.AWAITING_INPUT])):
                (*_, question) = (await orc.task(task.id).info()).questions
                print(question.question.partition("needs more: ")[2].partition(";")[0])
                await orc.task(task.id).answer({"usd": PRICE}, actor="ada")
            await anyio.sleep(0.1)
        answers = await handle.result(timeout=30)
    print(f"{len(answers)} answers")


if __name__ == "__main__":
    anyio.run(main)
