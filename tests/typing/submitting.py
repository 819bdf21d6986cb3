"""What users write to submit tasks and to wait for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from pydantic import BaseModel

from orchestrator import (
    Agent,
    CancelStatus,
    Orchestrator,
    OutputChunk,
    Progress,
    Submission,
    SubmitRefused,
    TaskContext,
    TaskEvent,
    TaskFailed,
    TaskHandle,
    TaskInfo,
    TaskState,
    TaskStatus,
    Why,
)


class Summary(BaseModel):
    """A result."""

    text: str


class Request(BaseModel):
    """Arguments."""

    text: str


agent = Agent("editor")


@agent.skill
async def summarize(ctx: TaskContext, text: str) -> Summary:
    """Its tasks have a `Summary` for a result."""
    return Summary(text=text[: ctx.attempt])


@agent.skill
def count(text: str) -> int:
    """Its tasks have an `int` for a result."""
    return len(text)


async def submit_a_skill(orc: Orchestrator) -> None:
    """The handle has the type of the result."""
    handle = await orc.submit(summarize, {"text": "a"})
    assert_type(handle, TaskHandle[Summary])
    assert_type(await handle.result(), Summary)
    assert_type(await handle.result(timeout=5), Summary)
    assert_type(await handle.result(timedelta(seconds=5)), Summary)
    assert_type(await (await orc.submit(count, Request(text="a"))).result(), int)
    assert_type(await orc.submit(count), TaskHandle[int])
    await as_number(await orc.submit(count))
    await as_model(handle)


async def submit_by_name(orc: Orchestrator) -> None:
    """Nothing is known of the result until it is asked for as something."""
    handle = await orc.submit("summarize", {"text": "a"})
    assert_type(handle, TaskHandle[Any])
    assert_type(await handle.result(), Any)
    assert_type(await handle.result(as_=Summary), Summary)
    assert_type(await handle.result(5, as_=dict[str, int]), dict[str, int])
    assert_type(orc.task("id"), TaskHandle[Any])


async def options(orc: Orchestrator) -> None:
    """Every option of a submit, with every type that it takes."""
    later = datetime.now(UTC)
    await orc.submit(count, {"text": "a"}, agent="editor", session="101", priority="high", delay=5, at=later)
    await orc.submit(count, start_by=later, key="msg-7", timeout=timedelta(minutes=1), max_attempts=2, tags=["a"])
    await orc.submit("count", None, priority=0, delay=timedelta(1), tags=("a", "b"), result_ttl=3600, session=None)
    await orc.submit("count", lane="chat 7", on_busy="interrupt")


async def wrong_options(orc: Orchestrator) -> None:
    """Unknown keywords and wrong types are errors, with a skill and by name."""
    await orc.submit(count, {"text": "a"}, prio="high")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await orc.submit(count, {"text": "a"}, delay="5 s")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", {"text": "a"}, prio="high")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await orc.submit("count", agent=agent)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", session=101)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", priority=None)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", delay="5 s")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", at="2030-01-01")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", start_by=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", key=7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", timeout="1 min")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", max_attempts="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", tags=[1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", lane=7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", on_busy="drop")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit("count", result_ttl="1 h")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit(count, {"text": "a"}, "high")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def wrong_arguments(orc: Orchestrator) -> None:
    """A task has the name of a skill, or the skill itself, and a mapping with text keys or a model."""
    await orc.submit(count, "text")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit(count, ["text"])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit(count, {1: "a"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit(7, {"text": "a"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await orc.submit(len, {"text": "a"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


async def as_number(handle: TaskHandle[int]) -> int:
    """Take a handle of one type."""
    return await handle.result()


async def as_model(handle: TaskHandle[BaseModel]) -> BaseModel:
    """Take a handle of a wider type."""
    return await handle.result()


async def wrong_results(orc: Orchestrator) -> None:
    """A result is not taken for something else."""
    handle = await orc.submit(summarize, {"text": "a"})
    handle.result()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await handle.result("5 s")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    print((await handle.result()).words)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    print(handle.result().text)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    assert_type(await handle.result(), Any)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    await as_number(handle)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await handle.result(as_="Summary")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def many(orc: Orchestrator) -> None:
    """Submissions are values; many of them may go at once, and be waited for as they end."""
    first = Submission(summarize, {"text": "a"}, priority="high", tags=["x"])
    second = Submission("count", Request(text="a"), key="msg-8", delay=timedelta(seconds=1))
    handles = await orc.submit_many([first, second])
    assert_type(handles, list[TaskHandle[Any]])
    await orc.submit_many(Submission(count, {"text": text}) for text in "abc")
    async for handle in orc.as_completed(handles):
        assert_type(handle, TaskHandle[Any])
    typed = [await orc.submit(count, {"text": text}) for text in "abc"]
    async for each in orc.as_completed(typed, timeout=5):
        assert_type(await each.result(), int)
    mixed: list[TaskHandle[object]] = [*typed, await orc.submit(summarize)]
    async for any_of in orc.as_completed(mixed):
        assert_type(await any_of.result(), object)


async def wrong_many(orc: Orchestrator) -> None:
    """What is no submission, or malformed, is an error."""
    Submission("count", {"text": "a"}, prio="high")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Submission("count", {"text": "a"}, delay="5 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Submission({"text": "a"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await orc.submit_many(["count"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await orc.submit_many(Submission("count"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Submission("count").priority = "high"  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    orc.as_completed(["id"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for _ in orc.as_completed([orc.task("id")]):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        pass


async def all_of_a_handle(handle: TaskHandle[Summary]) -> None:
    """The rest of a handle."""
    assert_type(handle.id, str)
    status = await handle.status()
    assert_type(status, TaskStatus)
    assert_type(status.state, TaskState)
    assert_type(status.why, str)
    assert_type(status.detail, Why)
    info = await handle.info()
    assert_type(info, TaskInfo)
    assert_type(info.progress, Progress | None)
    assert_type(await handle.cancel(reason="enough"), CancelStatus)
    async for chunk in handle.output(after=None):
        assert_type(chunk, OutputChunk)
        assert_type(chunk.data, Any)
    async for event in handle.events(after="5-1"):
        assert_type(event, TaskEvent)
    await handle.cancel(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    handle.output(after=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    handle.id = 7  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    await handle.stat()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def errors(orc: Orchestrator, handle: TaskHandle[int]) -> None:
    """What the errors know."""
    try:
        await handle.result()
    except TaskFailed as failed:
        assert_type(failed.errors, tuple[str, ...])
        assert_type(failed.reason, str)
        assert_type(failed.task_id, str)
    try:
        await orc.submit_many([])
    except SubmitRefused as refused:
        assert_type(refused.outcomes, tuple[object, ...])


async def life_cycle() -> None:
    """Opened by a block, or by hand."""
    async with Orchestrator("redis://localhost", pool="default", prefix="app:env:tenant") as orc:
        assert_type(orc, Orchestrator)
    opened = await Orchestrator().open()
    assert_type(opened, Orchestrator)
    await opened.aclose()
    Orchestrator(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Orchestrator("redis://localhost", "default")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with Orchestrator():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
