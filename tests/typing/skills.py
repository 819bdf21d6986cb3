"""What users write when they declare skills, and call their handlers directly."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, assert_type

import anyio
from pydantic import BaseModel

from orchestrator import Agent, Skill, TaskContext


class Summary(BaseModel):
    """A result."""

    text: str
    words: int


P = ParamSpec("P")
T = TypeVar("T")

agent = Agent("editor")


@agent.skill
async def summarize(ctx: TaskContext, text: str, style: str = "short") -> Summary:
    """Bare, `async def`."""
    ctx.log.info("asked", style=style)
    return Summary(text=text, words=len(text.split()))


@agent.skill(name="count", timeout=timedelta(minutes=1), silence=5, max_attempts=2, backoff=1.5, max_deaths=1)
async def count(text: str) -> int:
    """Called, `async def`."""
    return len(text)


@agent.skill
def measure(text: str) -> float:
    """Bare, `def`."""
    return len(text) / 2


@agent.skill()
def shorten(text: str, *, limit: int = 10) -> str:
    """Called, `def`."""
    return text[:limit]


@agent.skill(process=True, timeout=60)
def primes(below: int) -> list[int]:
    """In a process of its own."""
    return list(range(below))


@agent.skill
def quiet(ctx: TaskContext) -> None:
    """Without arguments and result."""


async def direct_calls(ctx: TaskContext) -> None:
    """A skill is called like its function."""
    assert_type(await summarize(ctx, "text"), Summary)
    assert_type(await summarize(ctx, text="text", style="long"), Summary)
    assert_type(await count("text"), int)
    assert_type(measure("text"), float)
    assert_type(shorten("text", limit=5), str)
    assert_type(primes(below=7), list[int])
    assert_type(summarize.name, str)
    both = await asyncio.gather(summarize(ctx, "a"), count("b"))
    assert_type(both, tuple[Summary, int])
    task = asyncio.create_task(count("later"))
    assert_type(await task, int)
    async with anyio.create_task_group() as group:
        group.start_soon(summarize, ctx, "text")


def from_a_script() -> None:
    """In a test without an event loop."""
    assert_type(asyncio.run(count("text")), int)
    waiting: Coroutine[Any, Any, int] = count("text")
    assert_type(asyncio.run(waiting), int)


async def wrong_calls(ctx: TaskContext) -> None:
    """And refused like its function."""
    await summarize(ctx)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await summarize(ctx, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await summarize("text")  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    await summarize(ctx, "text", tone="short")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await count()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await measure("text")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    measure(text=b"text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    shorten("text", 5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    primes("many")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    quiet(ctx, 1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    print(count("text") + 1)  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnknownArgumentType]
    count("text")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


def skills_as_values(known: Skill[[str], int]) -> Skill[..., Any]:
    """A skill can be passed on with its types."""
    assert_type(known.read_result(b"1"), int)
    assert_type(known.name, str)
    known.read_result("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return summarize


by_hand: Skill[[str], int] = count
plain: Skill[[str], float] = measure
wrong_result: Skill[[str], str] = count  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
wrong_arguments: Skill[[int], int] = count  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


def traced(handler: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """A decorator of the user's own, below that of the skill."""

    @functools.wraps(handler)
    async def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        return await handler(*args, **kwargs)

    return inner


@agent.skill(name="traced")
@traced
async def with_decorator(ctx: TaskContext, text: str) -> int:
    """Keeps its types."""
    return len(text) + ctx.attempt


async def decorated(ctx: TaskContext) -> None:
    """Types go through both decorators."""
    assert_type(await with_decorator(ctx, "text"), int)
    await with_decorator(ctx)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@agent.skill(name=5)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
async def misnamed() -> None:
    """Options are checked where a function is decorated."""


agent.skill(tiemout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
agent.skill(timeout="5 s")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
agent.skill(max_attempts="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
agent.skill(process="yes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
agent.skill("summarize")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
