"""A team that researches a topic: a planner, researchers, a writer, and a reviewer who asks a person.

Run `orc up team:team` in one terminal and `uvicorn web:app` in another. The tutorial explains each line.
"""

from datetime import timedelta
from typing import Any

import model
from pydantic import BaseModel

from orchestrator import Agent, CallNext, Snooze, Submission, TaskContext


async def wait_for_model(ctx: TaskContext, call_next: CallNext) -> Any:
    """Run the task again when the model accepts requests, without counting an attempt."""
    try:
        return await call_next(ctx)
    except model.TooManyRequests as busy:
        raise Snooze(delay=busy.retry_after, reason=str(busy)) from busy


planner = Agent("planner", middleware=[wait_for_model])
researcher = Agent("researcher", concurrency=5, middleware=[wait_for_model])
writer = Agent("writer", middleware=[wait_for_model])
reviewer = Agent("reviewer", middleware=[wait_for_model])
team = [planner, researcher, writer, reviewer]


@researcher.skill
async def investigate(question: str) -> str:
    """Answer one question."""
    finding: str = await model.complete(f"investigate: {question}")
    return finding


@writer.skill(silence=30)
async def write(ctx: TaskContext, topic: str, findings: list[str]) -> str:
    """Write the report, and emit each word when it arrives."""
    text = ""
    async for word in model.stream(f"write: {topic}: {' '.join(findings)}"):
        text += word
        await ctx.emit(word)
    return text


@reviewer.skill
async def review(ctx: TaskContext, topic: str, text: str) -> bool:
    """Review the report, and let a person decide."""
    opinion = await ctx.once("opinion", model.complete, f"review: {text}")
    question = f"Publish the report on {topic}? {opinion}"
    answer = await ctx.ask(question, options=["yes", "no"], deadline=timedelta(days=1), default="no")
    return bool(answer == "yes")


class Report(BaseModel):
    """Result of the team."""

    text: str
    published: bool


@planner.skill
async def report(ctx: TaskContext, topic: str) -> Report:
    """Plan the questions, and join the work of the others."""
    plan = await ctx.once("plan", model.complete, f"plan: {topic}")
    children = await ctx.submit_many(Submission(investigate, {"question": line}) for line in plan.splitlines())
    done = 0
    async for _ in ctx.as_completed(children):
        done += 1
        await ctx.progress(done, len(children), "questions answered")
    findings = [await child.result() for child in children]
    draft = await ctx.submit(write, {"topic": topic, "findings": findings})
    async for chunk in draft.output():
        await ctx.emit(chunk.data)
    text = await draft.result()
    approval = await ctx.submit(review, {"topic": topic, "text": text})
    return Report(text=text, published=await approval.result())
