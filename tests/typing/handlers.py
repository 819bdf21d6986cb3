"""What users write in handlers, and around them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from pydantic import BaseModel

from orchestrator import Agent, CallNext, Middleware, Reject, Retry, Skill, Snooze, TaskContext, TaskHandle, run


class Shelf(BaseModel):
    """What the handlers of a worker share."""

    books: int


# ----------------------------------------------------------------------------------------------- around the handlers


@asynccontextmanager
async def open_shelf(agent: Agent) -> AsyncGenerator[Shelf]:
    """What it yields is `ctx.state`."""
    yield Shelf(books=len(agent.name))


@contextmanager
def open_blocking(agent: Agent) -> Generator[Shelf]:
    """No async context manager."""
    yield Shelf(books=len(agent.name))


async def note(ctx: TaskContext, call_next: CallNext) -> Any:
    """A middleware."""
    ctx.log.info("begun")
    assert_type(await call_next(ctx), Any)
    return await call_next()


class Counting:
    """A middleware with a memory."""

    async def __call__(self, ctx: TaskContext, call_next: CallNext) -> object:
        """Count."""
        return await call_next(ctx)


async def short(ctx: TaskContext) -> None:
    """Too few parameters for a middleware."""


def blocking(ctx: TaskContext, call_next: CallNext) -> None:
    """A middleware must be `async def`."""


async def wrong_call(ctx: TaskContext, call_next: CallNext) -> Any:
    """The rest of an attempt takes a context."""
    return await call_next("ctx")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


middlewares: list[Middleware] = [note, Counting()]
agent = Agent("editor", concurrency=8, rate="10/min", limits=["model:gpt"], lease=15.0, lifespan=open_shelf)
layered = Agent("layered", rate=(10, timedelta(minutes=1)), lease=timedelta(seconds=5), middleware=[note, Counting()])
assert_type(agent.name, str)
assert_type(agent.skills["x"], Skill[Any, Any])
Agent(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent("editor", 8)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Agent("editor", concurency=8)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Agent("editor", concurrency="8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent("editor", rate=10)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent("editor", lease="15 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent("editor", lifespan=open_blocking)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent("editor", lifespan=Shelf(books=1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent("editor", middleware=[short])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
Agent("editor", middleware=[blocking])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
Agent("editor", middleware=note)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def main() -> None:
    """Run a worker."""
    run(agent, layered)
    run("editor")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------------------------------ in a handler


@agent.skill
async def know(ctx: TaskContext) -> None:
    """What a context knows."""
    assert_type(ctx.task_id, str)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.attempt, int)
    assert_type(ctx.agent, str)
    assert_type(ctx.worker, str)
    assert_type(ctx.session, str | None)
    assert_type(ctx.deadline, datetime | None)
    assert_type(ctx.tags, tuple[str, ...])
    assert_type(ctx.cancelled, bool)
    assert_type(ctx.state, Any)
    shelf: Shelf = ctx.state
    assert_type(shelf.books, int)
    print(ctx.taskid)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    print(ctx.attempt + "1")  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnknownArgumentType]
    ctx.session.upper()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


@agent.skill
async def tell(ctx: TaskContext, text: str) -> int:
    """What a handler tells."""
    await ctx.progress(1)
    await ctx.progress(1, 2.5, "half")
    await ctx.emit({"text": text})
    await ctx.emit(Shelf(books=1))
    await ctx.extend(5)
    await ctx.extend(timedelta(minutes=1))
    await ctx.heartbeat()
    await ctx.progress("half")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.progress()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.emit()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.extend("5 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.heartbeat(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    return 1


@agent.skill
async def delegate(ctx: TaskContext, parts: list[str]) -> int:
    """Children are submitted as tasks are."""
    typed = await ctx.submit(tell, {"text": "a"}, priority="high", tags=["x"], key="mine")
    assert_type(typed, TaskHandle[int])
    named = await ctx.submit("tell", {"text": "a"})
    assert_type(named, TaskHandle[Any])
    assert_type(await named.result(as_=Shelf), Shelf)
    children = [await ctx.submit(tell, {"text": part}) for part in parts]
    assert_type(children, list[TaskHandle[int]])
    await ctx.submit(tell, {"text": "a"}, prio="high")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await ctx.submit("tell", delay="5 s")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await ctx.submit(delegate, 7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    return sum([await child.result() for child in children])


@agent.skill
async def decide(ctx: TaskContext, how: str) -> str:
    """How an attempt ends."""
    if how == "retry":
        raise Retry(delay=5, reason="the line was busy")
    if how == "again":
        raise Retry
    if how == "snooze":
        raise Snooze(timedelta(minutes=5), reason="closed")
    if how == "until":
        raise Snooze(until=datetime.now(UTC))
    if how == "reject":
        raise Reject("nobody to book for")
    Retry(delay="5 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Retry(after=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Snooze(until=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Reject()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    return f"{ctx.attempt}"
