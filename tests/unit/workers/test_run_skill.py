"""One attempt of a skill without a server: judged, and done, as a worker does it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import BaseModel

from orchestrator import (
    Agent,
    InvalidInput,
    KeyConflict,
    OrchestratorError,
    Reject,
    Retry,
    Snooze,
    Submission,
    TaskCancelled,
    TaskContext,
    TaskExpired,
    TaskFailed,
)
from orchestrator.tasks.model import Progress
from orchestrator.workers.testing import make_context, run_skill
from tests.helpers.process_handlers import Point, swap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.workers.agent import CallNext


class Summary(BaseModel):
    """What the skill under test returns."""

    text: str
    words: int


agent = Agent("editor")


@agent.skill
async def summarize(ctx: TaskContext, text: str, style: str = "short") -> Summary:
    """Tell of its progress, and shorten."""
    await ctx.progress(1, 2, "reading")
    await ctx.emit({"style": style})
    return Summary(text=text[:3], words=len(text.split()))


@agent.skill(backoff=60, max_attempts=3)
async def raises(what: str) -> None:
    """End in every way but well."""
    match what:
        case "retry":
            raise Retry(delay=5, reason="busy")
        case "snooze":
            raise Snooze(timedelta(hours=1))
        case "reject":
            raise Reject("no")
    raise ValueError(what)


@agent.skill
async def join(ctx: TaskContext, count: int) -> list[str]:
    """Submit children and join their results."""
    children = [await ctx.submit(summarize, {"text": str(number)}) for number in range(count)]
    return [(await child.result()).text for child in children]


@agent.skill
async def ask(ctx: TaskContext) -> str:
    """Ask one child, and tell how it ended."""
    child = await ctx.submit("other", tags=["a"], session="mine")
    try:
        return str(await child.result(timeout=0.01))
    except Exception as ended:  # noqa: BLE001 - that is what it tells
        return f"{type(ended).__name__}: {ended}".replace(child.id, "CHILD")


# ------------------------------------------------------------------------------------------------ how an attempt ends


async def test_a_result_comes_back_through_json() -> None:
    """The value is what a client would get; progress and output are kept as readers see them."""
    outcome = await run_skill(summarize, {"text": "one two"})
    assert outcome.value == Summary(text="one", words=2)
    assert (outcome.verdict, outcome.delay, outcome.error) == ("succeeded", None, None)
    assert outcome.json == b'{"text":"one","words":2}'
    assert outcome.progress == (Progress(1, 2, "reading"),)
    assert outcome.output == ({"style": "short"},)
    assert outcome.submitted == ()


async def test_arguments_are_checked() -> None:
    """What the signature refuses is a dead letter; what could not even be submitted is refused to the test."""
    outcome = await run_skill(summarize, {"texts": "a"})
    assert (outcome.verdict, outcome.reason) == (
        "dead",
        "arguments do not fit 'summarize': text: Field required; texts: Extra inputs are not permitted",
    )
    with pytest.raises(InvalidInput, match="contain a object, which JSON cannot hold"):
        await run_skill(summarize, {"text": object()})


@pytest.mark.parametrize(
    ("what", "attempt", "verdict", "delay_s", "reason"),
    [
        ("retry", 1, "retry", 5, "Retry: busy"),
        ("boom", 1, "retry", 60, "ValueError: boom"),
        ("boom", 2, "retry", 60, "ValueError: boom"),
        ("boom", 3, "dead", None, "ValueError: boom"),
        ("retry", 3, "dead", None, "Retry: busy"),
        ("snooze", 3, "snooze", 3600, ""),
        ("reject", 1, "dead", None, "no"),
    ],
)
async def test_exceptions_are_judged_as_by_a_worker(
    what: str, attempt: int, verdict: str, delay_s: float | None, reason: str
) -> None:
    """Signals, failures with their back-off, the last attempt."""
    outcome = await run_skill(raises, {"what": what}, attempt=attempt)
    delay = None if delay_s is None else timedelta(seconds=delay_s)
    assert (outcome.verdict, outcome.delay, outcome.reason) == (verdict, delay, reason)
    assert isinstance(outcome.error, Retry | Snooze | Reject | ValueError)


@pytest.mark.parametrize(
    ("raised", "verdict", "reason"),
    [
        ([Reject("no")], "dead", "no"),
        ([ExceptionGroup("inner", [Snooze(60, reason="busy")])], "snooze", "busy"),
        ([ValueError("boom")], "retry", "ValueError: boom"),
        (
            [Reject("no"), ValueError("boom")],
            "retry",
            "ExceptionGroup: x (2 sub-exceptions); Reject: no; ValueError: boom",
        ),
    ],
)
async def test_what_a_task_group_wraps_alone_means_what_it_means(
    raised: list[Exception], verdict: str, reason: str
) -> None:
    """One exception in a group is judged without it; a group of several is a failure that names each."""
    grouper = Agent("grouper")

    @grouper.skill(backoff=0)
    async def group() -> None:
        raise ExceptionGroup("x", raised)

    outcome = await run_skill(group)
    assert (outcome.verdict, outcome.reason) == (verdict, reason)
    assert isinstance(outcome.error, ExceptionGroup)


async def test_deaths_are_no_failures() -> None:
    """An attempt that follows a death is not the last one yet; a task's own limit counts."""
    assert (await run_skill(raises, {"what": "boom"}, attempt=3, deaths=1)).verdict == "retry"
    assert (await run_skill(raises, {"what": "boom"}, max_attempts=1)).verdict == "dead"


async def test_a_snooze_until_keeps_its_time() -> None:
    """The named time is given as it is, and how far it is off."""
    until = datetime(2126, 1, 1, tzinfo=UTC)
    sleeper = Agent("sleeper")

    @sleeper.skill
    async def sleep() -> None:
        raise Snooze(until=until)

    outcome = await run_skill(sleep)
    assert outcome.until == until
    assert outcome.delay is not None
    assert abs(outcome.delay - (until - datetime.now(UTC))) < timedelta(seconds=5)


async def test_the_value_of_a_failed_attempt_is_a_readable_failure() -> None:
    """Asking for it says how the attempt would end, and shows what the handler raised."""
    outcome = await run_skill(raises, {"what": "boom"})
    with pytest.raises(AssertionError, match=r"its verdict is retry \(again in 60 s\): ValueError: boom") as failed:
        _ = outcome.value
    assert failed.value.__cause__ is outcome.error


async def test_time_limits_hold() -> None:
    """A handler that takes too long fails, as does one that gives no sign of life; a test may shorten the time."""
    patient = Agent("patient")

    @patient.skill(silence=0.3, backoff=1)
    async def wait(ctx: TaskContext, beats: int) -> str:
        for _ in range(beats):
            await ctx.heartbeat()
            await anyio.sleep(0.01)
        await anyio.sleep(10)
        return "late"

    late = await run_skill(wait, {"beats": 1000}, timeout=0.05)
    silent = await run_skill(wait, {"beats": 0})
    assert late.reason == "TimeoutError: the attempt took longer than its timeout of 0.05 s"
    assert silent.reason == "TimeoutError: the attempt gave no sign of life for 0.3 s"
    assert late.verdict == silent.verdict == "retry"


async def test_a_result_that_does_not_fit_is_a_dead_letter() -> None:
    """The handler's own return type is held."""
    sloppy = Agent("sloppy")

    @sloppy.skill
    async def count() -> int:
        return "many"  # type: ignore[return-value]

    assert (await run_skill(count)).reason.startswith("result of 'count' does not fit its type or JSON")


async def test_every_kind_of_handler_runs() -> None:
    """A plain `def` runs in a thread, a process handler in a process."""
    mixed = Agent("mixed")

    @mixed.skill
    def double(number: int) -> int:
        return number * 2

    assert (await run_skill(double, {"number": 4})).value == 8
    assert (await run_skill(swap, {"point": {"x": 1, "y": 2}})).value == Point(x=2, y=1)


# ------------------------------------------------------------------------------------------- what surrounds a handler


async def test_middleware_and_lifespan_surround_the_handler() -> None:
    """The agent's own middleware wraps it, its lifespan gives the state, unless the test gives another."""
    log: list[Any] = []

    async def note(ctx: TaskContext, call_next: CallNext) -> Any:
        log.append(ctx.session)
        return f"<{await call_next(ctx)}>"

    @asynccontextmanager
    async def lifespan(agent: Agent) -> AsyncIterator[str]:
        log.append("open")
        yield agent.name
        log.append("close")

    wrapped = Agent("wrapped", middleware=[note], lifespan=lifespan)

    @wrapped.skill
    async def tell(ctx: TaskContext) -> str:
        return str(ctx.state)

    assert (await run_skill(tell, session="101")).value == "<wrapped>"
    assert log == ["open", "101", "close"]
    assert (await run_skill(tell, state="given")).value == "<given>"
    assert log == ["open", "101", "close", None]


async def test_the_context_is_that_of_the_attempt() -> None:
    """What the test says of the task is what the handler sees."""
    curious = Agent("curious")

    @curious.skill(timeout=9)
    async def look(ctx: TaskContext) -> list[Any]:
        assert ctx.deadline is not None
        return [ctx.agent, ctx.attempt, ctx.session, ctx.idempotency_key, ctx.tags, ctx.cancelled]

    outcome = await run_skill(look, attempt=2, session="s", key="k", tags=["a", "b"])
    assert outcome.value == ["curious", 2, "s", "k", ["a", "b"], False]


async def test_only_skills_are_run() -> None:
    """A handler that no agent has is refused with a sentence."""
    with pytest.raises(InvalidInput, match=r"takes a skill, a handler decorated with @agent\.skill"):
        await run_skill(print)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ child tasks


async def test_children_are_scripted_in_order() -> None:
    """A list has one result for each child: values of the skill's type or plain ones, read as the client reads them."""
    outcome = await run_skill(
        join, {"count": 2}, children={summarize: [Summary(text="a", words=1), {"text": "b", "words": 2}]}
    )
    assert outcome.value == ["a", "b"]
    assert outcome.submitted == (Submission("summarize", {"text": "0"}), Submission("summarize", {"text": "1"}))


async def test_children_are_scripted_by_a_function() -> None:
    """One result for all children of a skill, a function of the submission, or one function for everything."""
    same = {"text": "x", "words": 1}
    assert (await run_skill(join, {"count": 2}, children={"summarize": same})).value == ["x", "x"]

    def answer(task: Submission) -> dict[str, Any]:
        assert isinstance(task.args, dict)
        return {"text": f"<{task.args['text']}>", "words": 1}

    assert (await run_skill(join, {"count": 2}, children={"summarize": answer})).value == ["<0>", "<1>"]
    assert (await run_skill(join, {"count": 2}, children=answer)).value == ["<0>", "<1>"]


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (7, "7"),
        (None, "None"),
        (TaskFailed("x", "boom"), "ChildFailed: task CHILD failed: boom"),
        (TaskCancelled("x", "enough"), "TaskCancelled: task CHILD was cancelled: enough"),
        (TaskExpired("x", "late"), "TaskExpired: task CHILD expired"),
        (ValueError("boom"), "ChildFailed: task CHILD failed: ValueError: boom"),
        (TimeoutError("not yet"), "TimeoutError: not yet"),
    ],
)
async def test_children_end_in_every_way(ending: object, told: str) -> None:
    """An exception in place of a result is how the child ends; a function may raise it as well."""

    def function(_: Submission) -> object:
        if isinstance(ending, BaseException):
            raise ending
        return ending

    assert (await run_skill(ask, children={"other": ending})).value.startswith(told)
    if not isinstance(ending, ValueError):
        assert (await run_skill(ask, children=function)).value.startswith(told)


async def test_what_a_child_is_asked_for_is_kept() -> None:
    """Options of the child are in the submission; the session is the parent's unless another is given."""
    outcome = await run_skill(ask, session="parent's", children={"other": 1})
    assert outcome.submitted == (Submission("other", {}, session="mine", tags=("a",)),)
    joined = await run_skill(join, {"count": 1}, session="parent's", children={"summarize": {"text": "", "words": 0}})
    assert joined.submitted[0].options["session"] == "parent's"


async def test_a_result_that_nobody_scripted_fails_the_test() -> None:
    """Also when the handler swallows it, and when the list was too short."""
    with pytest.raises(AssertionError, match=r"no result is scripted for a child of 'other' .* submitted 1 of them"):
        await run_skill(ask)
    with pytest.raises(
        AssertionError, match=r"no result is scripted for a child of 'summarize' .* submitted 2 of them"
    ):
        await run_skill(join, {"count": 2}, children={"summarize": [{"text": "", "words": 0}]})


async def test_a_script_that_is_wrong_fails_the_test() -> None:
    """A result that the skill never returns, and a mistake in the test's own function, come out of the call."""
    with pytest.raises(AssertionError, match=r"scripted result \{'text': 1\} is none that 'summarize' returns"):
        await run_skill(join, {"count": 1}, children={"summarize": {"text": 1}})
    with pytest.raises(KeyError):
        await run_skill(ask, children=lambda task: {"": 0}[str(task.skill)])


async def test_children_are_checked_as_by_the_client() -> None:
    """Caps, names and keys: a child that would be refused is refused here."""
    strict = Agent("strict")

    @strict.skill(max_attempts=1)
    async def submit(ctx: TaskContext, how: str) -> str:
        if how == "twice":
            one, same = [await ctx.submit("child", {"a": 1}, key="k") for _ in range(2)]
            assert one is same
            await ctx.submit("child", {"a": 2}, key="k")
        await ctx.submit(how)
        return "submitted"

    twice = await run_skill(submit, {"how": "twice"})
    assert isinstance(twice.error, KeyConflict)
    assert twice.submitted == (Submission("child", {"a": 1}, key="k"),)
    assert isinstance((await run_skill(submit, {"how": "no name!"})).error, InvalidInput)


async def test_what_needs_a_server_says_so() -> None:
    """Asking Redis about a scripted child is refused with the way out."""
    nosy = Agent("nosy")

    @nosy.skill(max_attempts=1)
    async def ask_status(ctx: TaskContext) -> str:
        child = await ctx.submit("child")
        assert str(await child.cancel()) == "ended"
        with pytest.raises(TaskCancelled):
            await child.result()
        with pytest.raises(OrchestratorError, match="run a whole team"):
            [chunk async for chunk in child.output()]
        return str(await child.info())

    outcome = await run_skill(ask_status)
    assert "there is no server here to ask" in outcome.reason
    assert outcome.reason.endswith("orchestrator.workers.testing.Team")


# ------------------------------------------------------------------------------------------------- a context alone


async def test_a_context_alone_keeps_what_is_done_with_it() -> None:
    """A function that takes a context, or a handler, can be called with one."""
    ctx = make_context(session="101", attempt=2, state={"db": 1}, tags=["t"], children={"other": 5})
    assert await summarize(ctx, "one two") == Summary(text="one", words=2)
    child = await ctx.submit("other", {"a": 1})
    assert await child.result() == 5
    assert (ctx.session, ctx.attempt, ctx.state, ctx.tags) == ("101", 2, {"db": 1}, ("t",))
    assert ctx.reported == (Progress(1, 2, "reading"),)
    assert ctx.emitted == ({"style": "short"},)
    assert ctx.submitted == (Submission("other", {"a": 1}, session="101"),)
    await ctx.extend(5)
    assert ctx.deadline is None
