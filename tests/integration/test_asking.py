"""`ctx.ask` and `ctx.once` with real workers: attempts that end with a question, and go on when it is answered."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio import from_thread, to_thread

from orchestrator import (
    Agent,
    AnswerRefused,
    AnswerStatus,
    Asked,
    AskExpired,
    CancelStatus,
    Cause,
    InvalidInput,
    NotFound,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskState,
    sync,
)
from orchestrator.control.records import records
from orchestrator.control.signing import signer_of
from orchestrator.tasks import queries
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator import TaskHandle
    from tests.helpers.local_team import LocalTeam

pytestmark = pytest.mark.every_server


async def asks(handle: TaskHandle[Any], number: int = 1) -> None:
    """Wait until a task waits with this question."""

    async def waits() -> bool:
        found = (await handle.status()).detail
        return found.cause is Cause.AWAITING_INPUT and found.number == number

    await wait_for(waits, f"question {number}", TIMEOUT_S)


def clerk(**options: Any) -> tuple[Agent, list[int]]:
    """An agent with one slot that asks once, with these options, and the attempts that it began."""
    agent, begun = Agent("clerk", concurrency=1), list[int]()

    @agent.skill
    async def book(ctx: TaskContext, seats: int = 2) -> list[Any]:
        begun.append(ctx.attempt)
        return [seats, await ctx.ask("Which row?", **options)]

    return agent, begun


async def test_an_answer_lets_the_handler_start_again(team: LocalTeam) -> None:
    """The attempt ends with the question, frees its slot, counts nothing; with the answer the handler begins anew."""
    agent, begun = clerk(options=["a", "b"])

    @agent.skill
    async def other() -> str:
        return "the slot is free"

    await team.work(agent)
    handle = await team.orc.submit("book")
    await asks(handle)
    assert await (await team.orc.submit("other")).result(TIMEOUT_S) == "the slot is free"
    assert await handle.answer("b", actor="ada") is AnswerStatus.ANSWERED
    assert await handle.result(TIMEOUT_S) == [2, "b"]
    info = await handle.info()
    assert (begun, info.attempts, info.errors, info.state) == ([1, 1], 1, (), TaskState.SUCCEEDED)
    (question,) = info.questions
    assert (question.question, question.options, question.answer) == ("Which row?", ("a", "b"), "b")
    assert (question.answered, question.answered_by, question.open) == (True, "ada", False)
    assert question.answered_at is not None
    assert question.answered_at >= question.asked_at


async def test_what_it_waits_for_is_told(team: LocalTeam) -> None:
    """State, question, options, times and the command to type are told while it waits."""
    agent, _ = clerk(options=["a", 2], deadline=3600, default=None)
    await team.work(agent)
    handle = await team.orc.submit("book")
    await asks(handle)
    status = await handle.status()
    why = status.detail
    assert (status.state, why.number, why.question, why.options) == (
        TaskState.AWAITING_INPUT,
        1,
        "Which row?",
        ("a", 2),
    )
    assert why.until is not None
    assert why.since is not None
    assert why.until - why.since == timedelta(hours=1)
    assert status.why.startswith("asks 'Which row?' (\"a\", 2) since ")
    assert status.why.endswith(f"; type `orc tasks answer {handle.id} VALUE`")
    info = await handle.info()
    assert (info.state, info.worker, info.questions[0].open) == (TaskState.AWAITING_INPUT, None, True)


async def test_refused_answers(team: LocalTeam) -> None:
    """What was not asked, is none of the options, or was answered otherwise is refused; the same again is no harm."""
    agent, _ = clerk(options=["a", {"row": 1, "seat": 2}])
    await team.work(agent)
    early = await team.orc.submit("book", delay=3600)
    with pytest.raises(AnswerRefused, match="it has asked 0 questions so far and is scheduled"):
        await early.answer("a")
    handle = await team.orc.submit("book")
    await asks(handle)
    with pytest.raises(InvalidInput, match='"c" is none of the options: "a", '):
        await handle.answer("c")
    with pytest.raises(InvalidInput, match="is none of the options"):
        await handle.answer(value=True)
    with pytest.raises(InvalidInput, match="JSON cannot hold"):
        await handle.answer(object())
    with pytest.raises(AnswerRefused, match="has not asked question 2; it waits with question 1"):
        await handle.answer("a", question=2)
    for number in (0, True):
        with pytest.raises(InvalidInput, match="are counted from 1"):
            await handle.answer("a", question=number)
    with pytest.raises(InvalidInput, match="must say who"):
        await handle.answer("a", actor=" \n")
    assert await handle.answer({"seat": 2.0, "row": 1}, actor="ada\nlovelace") is AnswerStatus.ANSWERED
    assert await handle.result(TIMEOUT_S) == [2, {"row": 1, "seat": 2}]
    assert await handle.answer({"row": 1, "seat": 2}) is AnswerStatus.ALREADY
    with pytest.raises(AnswerRefused, match=r'was answered by ada lovelace: \{"row":1,"seat":2\}'):
        await handle.answer("a")
    with pytest.raises(NotFound, match="does not exist"):
        await team.orc.task("0" * 8 + "-0000-7000-8000-" + "0" * 12).answer(1)


async def test_two_questions(team: LocalTeam) -> None:
    """Questions are numbered in the order of the calls; an answer that comes late never meets the next question."""
    agent = Agent("asker")

    @agent.skill
    async def plan(ctx: TaskContext) -> list[Any]:
        return [await ctx.ask("From?"), await ctx.ask("To?")]

    await team.work(agent)
    handle = await team.orc.submit("plan")
    await asks(handle, 1)
    await handle.answer("here", question=1)
    await asks(handle, 2)
    with pytest.raises(AnswerRefused, match="was answered by"):
        await handle.answer("there", question=1)
    await handle.answer("there")
    assert await handle.result(TIMEOUT_S) == ["here", "there"]
    assert [question.answer for question in (await handle.info()).questions] == ["here", "there"]


async def test_questions_at_once(team: LocalTeam) -> None:
    """Of questions that are asked at once in a task group, one after the other is asked."""
    agent = Agent("asker")

    @agent.skill
    async def plan(ctx: TaskContext) -> dict[str, Any]:
        answers: dict[str, Any] = {}

        async def one(question: str) -> None:
            answers[question] = await ctx.ask(question)

        async with anyio.create_task_group() as group:
            group.start_soon(one, "a?")
            group.start_soon(one, "b?")
        return answers

    await team.work(agent)
    handle = await team.orc.submit("plan")
    for _ in range(2):
        await wait_for(partial(_is_asking, handle), "a question", TIMEOUT_S)
        (question,) = [one for one in (await handle.info()).questions if one.open]
        await handle.answer(question.question.upper())
    assert await handle.result(TIMEOUT_S) == {"a?": "A?", "b?": "B?"}


async def _is_asking(handle: TaskHandle[Any]) -> bool:
    return (await handle.status()).state is TaskState.AWAITING_INPUT


async def test_a_handler_in_a_thread(team: LocalTeam) -> None:
    """A plain `def` asks from its thread."""
    agent = Agent("asker")

    @agent.skill
    def plan(ctx: TaskContext) -> Any:
        answer = from_thread.run(partial(ctx.ask, "Go?", options=[True, False]))
        return [answer, from_thread.run(ctx.once, "pid", time.thread_time_ns) > 0]

    await team.work(agent)
    handle = await team.orc.submit("plan")
    await asks(handle)
    await handle.answer(value=True)
    assert await handle.result(TIMEOUT_S) == [True, True]


@pytest.mark.parametrize("swallows", ["Exception", "BaseException", "raises"])
async def test_a_handler_that_goes_on_after_asking(team: LocalTeam, swallows: str) -> None:
    """Whatever catches the signal, the attempt ends with the question; what the handler does then does not count."""
    agent, did, signals = Agent("asker", concurrency=1), list[str](), list[type]()

    @agent.skill(max_attempts=1)
    async def stubborn(ctx: TaskContext) -> str:
        try:
            return str(await ctx.ask("Really?"))
        except Exception:  # noqa: BLE001 - as handlers do
            did.append("caught an Exception")
            return "swallowed"
        except BaseException as signal:
            signals.append(type(signal))
            if swallows == "Exception":
                raise
            if swallows == "raises":
                raise ValueError("instead of the signal") from None
            with pytest.raises(Asked):
                await ctx.ask("Something else?")
            with pytest.raises(Asked):
                await ctx.once("call", did.append, "a call")
            return "went on"

    await team.work(agent)
    handle = await team.orc.submit("stubborn")
    await asks(handle)
    await handle.answer("yes")
    assert await handle.result(TIMEOUT_S) == "yes"
    assert (did, signals) == ([], [Asked])


async def test_a_deadline_with_a_default(team: LocalTeam) -> None:
    """When nobody answers in time the default is the answer, and stays it."""
    agent, begun = clerk(deadline=0.05, default={"row": "any"})
    await team.work(agent)
    handle = await team.orc.submit("book")
    assert await handle.result(TIMEOUT_S) == [2, {"row": "any"}]
    with pytest.raises(AnswerRefused, match="was not answered in time"):
        await handle.answer("a")
    (question,) = (await handle.info()).questions
    assert (begun, question.answered, question.open, question.default) == ([1, 1], False, False, {"row": "any"})


async def test_a_deadline_without_a_default(team: LocalTeam) -> None:
    """The handler gets `AskExpired`, a `TimeoutError`; let out, it makes a dead letter at once."""
    agent, _ = clerk(deadline=datetime.now(UTC) + timedelta(seconds=0.05))

    @agent.skill
    async def careful(ctx: TaskContext) -> str:
        try:
            return str(await ctx.ask("Anybody?", deadline=0.05))
        except TimeoutError as over:
            return f"{type(over).__name__}: {over}"

    await team.work(agent)
    careful_one, lost = await team.orc.submit("careful"), await team.orc.submit("book")
    assert await careful_one.result(TIMEOUT_S) == f"AskExpired: {AskExpired('Anybody?')}"
    with pytest.raises(TaskFailed, match=r"AskExpired: not answered in time: Which row\?") as failed:
        await lost.result(TIMEOUT_S)
    assert len(failed.value.errors) == 1


async def test_a_changed_question(team: LocalTeam) -> None:
    """A handler that asks something else where it had an answer fails, and says what was asked before."""
    agent, texts = Agent("asker"), iter(["one", "two"])

    @agent.skill(max_attempts=1)
    async def fickle(ctx: TaskContext) -> Any:
        return await ctx.ask(next(texts))

    await team.work(agent)
    handle = await team.orc.submit("fickle")
    await asks(handle)
    await handle.answer(1)
    with pytest.raises(TaskFailed, match="question 1 of this attempt is 'two', and an earlier attempt asked 'one'"):
        await handle.result(TIMEOUT_S)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"question": " "}, "must be a non-empty string"),
        ({"question": 5}, "must be a non-empty string"),
        ({"options": []}, "options must be a non-empty list"),
        ({"options": "ab"}, "options must be a non-empty list"),
        ({"options": [{1, 2}]}, "an option would contain a set"),
        ({"default": 1}, "default= needs deadline="),
        ({"deadline": -1}, "deadline"),
        ({"deadline": datetime(2030, 1, 1)}, "deadline"),  # noqa: DTZ001 - that is what is refused
        ({"question": "x" * 70_000}, "the question is 70009 bytes long"),
        ({"question": "\ud800"}, "unpaired surrogate"),
    ],
)
async def test_what_cannot_be_asked(team: LocalTeam, options: dict[str, Any], says: str) -> None:
    """A question that makes no sense is refused when it is asked; nothing is stored."""
    agent = Agent("asker")

    @agent.skill(max_attempts=1)
    async def odd(ctx: TaskContext) -> Any:
        return await ctx.ask(**{"question": "?", **options})

    await team.work(agent)
    handle = await team.orc.submit("odd")
    with pytest.raises(TaskFailed, match=says):
        await handle.result(TIMEOUT_S)
    assert (await handle.info()).questions == ()


async def test_cancelled_while_it_asks(team: LocalTeam) -> None:
    """A task that waits for a person ends at once, and no answer brings it back."""
    agent, begun = clerk()
    await team.work(agent)
    handle = await team.orc.submit("book")
    await asks(handle)
    assert await handle.cancel("too late") is CancelStatus.ENDED
    with pytest.raises(TaskCancelled, match="too late"):
        await handle.result(TIMEOUT_S)
    with pytest.raises(AnswerRefused, match="it has asked 1 question so far and is cancelled"):
        await handle.answer("a")
    assert begun == [1]


async def test_a_new_supervisor_and_worker_know_what_was_asked(team: LocalTeam) -> None:
    """Nothing that waits for a person depends on who was there when it asked."""
    agent, _ = clerk(deadline=3600)
    worker = await team.work(agent)
    handle = await team.orc.submit("book")
    await asks(handle)
    await team.stop(worker)
    another, _ = clerk(deadline=3600)
    await team.work(another)
    assert await handle.answer("c") is AnswerStatus.ANSWERED
    assert await handle.result(TIMEOUT_S) == [2, "c"]


async def test_followers_see_questions_and_answers(team: LocalTeam) -> None:
    """`events()` tells of each question with its options, each answer with who gave it, and a deadline that passed."""
    agent = Agent("asker")

    @agent.skill
    async def plan(ctx: TaskContext) -> None:
        await ctx.ask("From?", options=["here"])
        await ctx.ask("To?", deadline=0.05, default=None)

    await team.work(agent)
    handle = await team.orc.submit("plan", delay=0.2)
    seen = []
    async for event in handle.events():
        seen.append((event.kind, event.number, event.reason, event.data))
        if event.kind == "asked" and event.number == 1:
            await handle.answer("here", actor="ada")
    told = [entry for entry in seen if entry[0] in {"asked", "answered", "unanswered"}]
    assert told == [
        ("asked", 1, "From?", ["here"]),
        ("answered", 1, "ada", "here"),
        ("asked", 2, "To?", None),
        ("unanswered", 2, "", None),
    ]


# ---------------------------------------------------------------------------------------------------------------- once


async def test_once_over_attempts(team: LocalTeam) -> None:
    """What was done once is not done again; all attempts get its result as JSON gives it back."""
    agent, did = Agent("asker"), list[str]()

    @agent.skill
    async def buy(ctx: TaskContext) -> list[Any]:
        async def pay(amount: int) -> tuple[str, int]:
            did.append(ctx.idempotency_key)
            return ("paid", amount)

        receipt = await ctx.once("pay", pay, 7)
        assert isinstance(receipt, list)
        again = await ctx.once("pay", pay, 8)
        return [receipt, again, await ctx.ask("Ship it?"), await ctx.once("note", lambda: did.append("note"))]

    await team.work(agent)
    handle = await team.orc.submit("buy", key="order-1")
    await asks(handle)
    await handle.answer(value=True)
    assert await handle.result(TIMEOUT_S) == [["paid", 7], ["paid", 7], True, None]
    assert did == ["order-1", "note"]
    assert sorted((await handle.info()).once) == ["note", "pay"]


async def test_once_at_the_same_time(team: LocalTeam) -> None:
    """Two calls of one name that run at once do it once; a call that failed does not count, so the next one does it."""
    agent, did = Agent("asker"), list[str]()

    @agent.skill
    async def both(ctx: TaskContext) -> list[Any]:
        results: list[Any] = []

        async def slow() -> int:
            did.append("slow")
            await anyio.sleep(0.02)
            return len(did)

        async def flaky() -> str:
            did.append("flaky")
            if did.count("flaky") == 1:
                raise OSError("the line was busy")
            return "done"

        async def one() -> None:
            results.append(await ctx.once("slow", slow))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        with pytest.raises(OSError, match="busy"):
            await ctx.once("flaky", flaky)
        return [*results, await ctx.once("flaky", flaky)]

    await team.work(agent)
    assert await (await team.orc.submit("both")).result(TIMEOUT_S) == [1, 1, "done"]
    assert did == ["slow", "flaky", "flaky"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("", "must be a non-empty string"), ("x" * 257, "has 257 bytes"), ("\ud800", "unpaired surrogate")],
)
async def test_once_without_a_name(team: LocalTeam, name: str, says: str) -> None:
    """A call needs a name, of a bearable length."""
    agent = Agent("asker")

    @agent.skill(max_attempts=1)
    async def odd(ctx: TaskContext) -> Any:
        return await ctx.once(name, list)

    await team.work(agent)
    with pytest.raises(TaskFailed, match=says):
        await (await team.orc.submit("odd")).result(TIMEOUT_S)


async def test_once_with_a_result_that_cannot_be_kept(team: LocalTeam) -> None:
    """What JSON cannot hold is refused and says so."""
    agent = Agent("asker")

    @agent.skill(max_attempts=1)
    async def odd(ctx: TaskContext) -> Any:
        return await ctx.once("thing", object)

    await team.work(agent)
    with pytest.raises(TaskFailed, match="what 'thing' returned would contain a object"):
        await (await team.orc.submit("odd")).result(TIMEOUT_S)


# ------------------------------------------------------------------------------------------------ what stands beside it


async def test_a_lane_waits_with_its_task(team: LocalTeam) -> None:
    """A task that waits for a person keeps its place in its lane: the next one starts when it has ended."""
    agent, ran = Agent("clerk"), list[str]()

    @agent.skill
    async def step(ctx: TaskContext, name: str, *, asking: bool = False) -> None:
        if asking:
            await ctx.ask("Go on?")
        ran.append(name)

    await team.work(agent)
    first = await team.orc.submit("step", {"name": "first", "asking": True}, lane="one")
    second = await team.orc.submit("step", {"name": "second"}, lane="one")
    background = await team.orc.submit("step", {"name": "beside"}, lane="other")
    await asks(first)
    await background.result(TIMEOUT_S)
    assert (await second.status()).detail.cause is Cause.LANE
    await first.answer(value=True)
    await second.result(TIMEOUT_S)
    assert ran == ["beside", "first", "second"]


async def test_who_answered_is_on_record(team: LocalTeam) -> None:
    """An answer leaves a control command behind: which question of which task, who and when; a repeat leaves none."""
    agent, _ = clerk()
    await team.work(agent)
    handle = await team.orc.submit("book")
    await asks(handle)
    for _ in range(2):
        await handle.answer("a", actor="ada")
    signer = signer_of(team.settings, place=team.services.keys.root)
    given = [one for one in await records(team.services.store, signer, limit=9) if one.kind == "answer"]
    assert [(one.actor, one.state, one.problem) for one in given] == [("ada", "given", "")]
    assert handle.id in given[0].words


async def test_an_answer_stands_without_a_record(team: LocalTeam) -> None:
    """When its record is refused, because of too many commands in a minute, an answer stands all the same."""
    agent, _ = clerk()
    await team.work(agent)
    handle = await team.orc.submit("book")
    await asks(handle)
    store = team.services.store
    minute = await queries.server_ms(store) // 60_000
    for number in (minute, minute + 1):
        await store.execute("SET", f"{store.keys.root}:control:{number}", 10**6, "EX", 120)
    assert await handle.answer("b") is AnswerStatus.ANSWERED
    assert await handle.result(TIMEOUT_S) == [2, "b"]
    (one,) = await records(store, signer_of(team.settings, place=store.keys.root), limit=9)
    assert (one.kind, one.state) == ("answer", "refused")


async def test_the_synchronous_client_answers(team: LocalTeam) -> None:
    """`orchestrator.sync` answers too, and raises the same."""
    agent, _ = clerk(options=["a", "b"])
    await team.work(agent)
    handle = await team.orc.submit("book")
    await asks(handle)

    def answer(value: str) -> AnswerStatus:
        with sync.Orchestrator(settings=team.settings) as orc:
            return orc.task(handle.id).answer(value, actor="ada")

    with pytest.raises(InvalidInput, match="none of the options"):
        await to_thread.run_sync(answer, "c")
    assert await to_thread.run_sync(answer, "a") is AnswerStatus.ANSWERED
    assert await handle.result(TIMEOUT_S) == [2, "a"]
