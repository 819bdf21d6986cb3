"""The client: submitting, waiting, handles, its own life."""

from __future__ import annotations

import gc
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_type

import anyio
import pytest
from pydantic import BaseModel, Field

from orchestrator import Agent, Reject, TaskContext
from orchestrator.client import replies
from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import (
    InvalidInput,
    KeyConflict,
    NotFound,
    OrchestratorError,
    QueueFull,
    ServerRefused,
    ServerUnavailable,
    SubmitRefused,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
)
from orchestrator.core.ids import new_task_id
from orchestrator.tasks.model import CancelStatus, TaskState
from orchestrator.tasks.submission import Submission
from orchestrator.why.model import Cause
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import redis

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from orchestrator.tasks.scripts import SubmitAnswer, SubmitRow
    from tests.helpers.local_team import LocalTeam


class Summary(BaseModel):
    """A typed result."""

    text: str
    words: int


class Renamed(BaseModel, extra="ignore"):
    """A model that has other names in Python than in JSON, and takes both."""

    count: int = Field(alias="words")
    content: str = Field(default="", alias="contentOfIt")


def make_editor(concurrency: int = 10) -> Agent:
    """An agent whose skills end in every way."""
    agent = Agent("editor", concurrency=concurrency)

    @agent.skill
    async def summarize(text: str) -> Summary:
        return Summary(text=text.upper(), words=len(text.split()))

    @agent.skill
    async def double(x: int) -> int:
        return 2 * x

    @agent.skill
    async def reject(reason: str) -> None:
        raise Reject(reason)

    @agent.skill
    async def wait_long() -> None:
        await anyio.sleep(60)

    @agent.skill
    async def tell(ctx: TaskContext) -> dict[str, Any]:
        return {
            "task": ctx.task_id,
            "key": ctx.idempotency_key,
            "attempt": ctx.attempt,
            "agent": ctx.agent,
            "worker": ctx.worker,
            "session": ctx.session,
            "tags": ctx.tags,
            "deadline": ctx.deadline,
            "cancelled": ctx.cancelled,
        }

    return agent


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client alone: nobody takes its tasks."""
    async with Orchestrator(settings=settings) as client:
        yield client


# -------------------------------------------------------------------------------------------------------------- results


async def test_results_come_in_the_form_asked_for(team: LocalTeam) -> None:
    """Plain JSON by name, a model with `as_`, the handler's own type when the skill itself is submitted."""
    agent = make_editor()

    @agent.skill
    async def shorten(text: str) -> Summary:
        return Summary(text=text[:1], words=1)

    @agent.skill
    async def delegate(ctx: TaskContext, text: str) -> int:
        summary = await (await ctx.submit(shorten, {"text": text}, tags=["child"])).result()
        assert_type(summary, Summary)
        return len(summary.text)

    @agent.skill
    async def rename() -> Renamed:
        return Renamed(words=3, contentOfIt="x")

    await team.work(agent)
    named = await team.orc.submit("summarize", {"text": "a b"})
    assert await named.result(TIMEOUT_S) == {"text": "A B", "words": 2}
    assert await named.result(as_=Summary) == Summary(text="A B", words=2)
    assert (await named.result(as_=Renamed)).count == 2
    renamed = await team.orc.submit("rename")
    assert await renamed.result(TIMEOUT_S) == {"count": 3, "content": "x"}
    assert await renamed.result(as_=Renamed) == Renamed(words=3, contentOfIt="x")
    typed = await team.orc.submit(shorten, {"text": "abc"}, priority="high")
    summary = await typed.result(TIMEOUT_S)
    assert_type(summary, Summary)
    assert summary == Summary(text="a", words=1)
    assert await (await team.orc.submit(delegate, {"text": "abc"})).result(TIMEOUT_S) == 1


async def test_ends_without_a_result_have_their_own_errors(team: LocalTeam) -> None:
    """A dead letter, a cancelled and an expired task raise what happened, with the reason."""
    await team.work(make_editor())
    failed = await team.orc.submit("reject", {"reason": "not today"})
    with pytest.raises(TaskFailed, match="not today") as refused:
        await failed.result(TIMEOUT_S)
    assert (refused.value.task_id, refused.value.reason, refused.value.errors) == (
        failed.id,
        "not today",
        ("not today",),
    )

    cancelled = await team.orc.submit("double", {"x": 1}, delay=60)
    assert await cancelled.cancel("no longer needed") is CancelStatus.ENDED
    assert await cancelled.cancel() is CancelStatus.ALREADY
    with pytest.raises(TaskCancelled, match="no longer needed"):
        await cancelled.result(TIMEOUT_S)

    expired = await team.orc.submit("nobody_has_this", start_by=datetime.now(UTC) + timedelta(seconds=0.2))
    with pytest.raises(TaskExpired, match="did not start in time"):
        await expired.result(TIMEOUT_S)
    assert (await expired.status()).state is TaskState.EXPIRED


async def test_a_wait_that_times_out_leaves_the_task_alone(team: LocalTeam) -> None:
    """`result(timeout)` raises the builtin TimeoutError; the task goes on and can be waited for again."""
    handle = await team.orc.submit("double", {"x": 4})
    with pytest.raises(TimeoutError, match="it goes on"):
        await handle.result(timeout=0.05)
    assert (await handle.status()).state is TaskState.READY
    await team.work(make_editor())
    assert await handle.result(TIMEOUT_S) == 8


async def test_a_handle_is_made_from_an_id_alone(team: LocalTeam) -> None:
    """Another client reads state and result by the id, before and after the end."""
    other = await team.client()
    handle = await team.orc.submit("double", {"x": 4})
    foreign = other.task(handle.id)
    assert (await foreign.status()).detail.cause is Cause.NO_AGENT
    await team.work(make_editor())
    assert await foreign.result(TIMEOUT_S) == 8
    late = await team.client()
    asked_s = time.monotonic()
    assert await late.task(handle.id).result(TIMEOUT_S) == 8
    assert time.monotonic() - asked_s < 0.2
    assert (await late.task(handle.id).info()).result == b"8"


async def test_an_unknown_task_is_told_apart_from_a_wrong_id(orc: Orchestrator) -> None:
    """A well-formed id that nobody knows is expired or not found; anything else is refused at once."""
    unknown = orc.task(new_task_id())
    with pytest.raises(TaskExpired, match="does not exist: the id is unknown"):
        await unknown.result(TIMEOUT_S)
    with pytest.raises(NotFound, match="does not exist"):
        await unknown.status()
    assert await unknown.cancel() is CancelStatus.UNKNOWN
    for wrong in ("", "5", "x" * 36, new_task_id().upper()):
        with pytest.raises(InvalidInput, match="not a task id"):
            orc.task(wrong)


async def test_a_reply_may_overtake_the_answer_to_the_submit(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a task has ended and its reply was read before the submit is answered, its result is there at once."""
    await team.work(make_editor())
    batcher = team.orc._batcher
    send, store, keys = batcher.send, team.services.store, team.services.keys

    async def answer_late(rows: Sequence[SubmitRow]) -> list[SubmitAnswer]:
        answers = await send(rows)

        async def replied() -> bool:
            states = await store.pipeline([("HGET", keys.task(row.id), "state") for row in rows])
            return set(states) == {b"succeeded"}

        await wait_for(replied, "the end of the task")
        await (await other.submit("double", {"x": 0})).result(TIMEOUT_S)
        await anyio.wait_all_tasks_blocked()  # now the reply has been read as well
        return answers

    other = await team.client()
    waits = await team.orc.submit("wait_long")
    async with anyio.create_task_group() as group:
        group.start_soon(_result_or_cancelled, waits)  # keeps the reader of replies awake
        await anyio.wait_all_tasks_blocked()
        monkeypatch.setattr(batcher, "send", answer_late)
        monkeypatch.setattr(batcher._commits, "_send", answer_late)
        handle = await team.orc.submit("double", {"x": 3})
        assert await handle.result(timeout=1) == 6
        (handle,) = await team.orc.submit_many([Submission("double", {"x": 4})])
        assert await handle.result(timeout=1) == 8
        await waits.cancel()


async def test_handles_that_nobody_holds_are_forgotten(orc: Orchestrator) -> None:
    """Whoever submits and forgets leaves no entry per task behind; handles that are held stay known."""
    held = await orc.submit_many([Submission("work")] * 10)
    for _ in range(20):
        await orc.submit_many([Submission("work")] * 500)
    assert len(orc._replies._own) <= 2 * replies.SWEEP_AT
    assert all(orc.task(handle.id) is handle for handle in held)


async def test_a_task_asked_for_again_is_looked_up(team: LocalTeam) -> None:
    """A task whose first handle is gone may have ended unheard, so a new handle for its id asks at once."""
    await team.work(make_editor())
    waits = await team.orc.submit("wait_long")
    async with anyio.create_task_group() as group:
        group.start_soon(_result_or_cancelled, waits)  # keeps the reader of replies awake
        id_ = (await team.orc.submit("double", {"x": 3})).id
        assert await (await team.orc.submit("double", {"x": 4})).result(TIMEOUT_S) == 8
        gc.collect()
        assert await team.orc.task(id_).result(timeout=2) == 6
        await waits.cancel()


async def _result_or_cancelled(handle: TaskHandle[Any]) -> None:
    with pytest.raises(TaskCancelled):
        await handle.result()


async def test_replies_are_read_ahead_of_the_next_submit(team: LocalTeam, redis_client: redis.Redis) -> None:
    """After an awaited result the client reads on, until it gets replies that no caller awaits."""

    def reads() -> bool:
        listed: Any = redis_client.client_list()
        return any(one["name"].endswith(":replies") and "b" in one["flags"] for one in listed)

    await team.work(make_editor())
    assert await (await team.orc.submit("double", {"x": 2})).result(TIMEOUT_S) == 4
    await wait_for(reads, "the read ahead of the next submit")
    handle = await team.orc.submit("double", {"x": 1})
    await wait_for(lambda: not reads(), "the reply that no caller awaits")
    assert await handle.result(TIMEOUT_S) == 2


async def test_results_are_there_after_replies_were_trimmed(
    team: LocalTeam, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the first time long after the end reads the task itself when its reply is gone."""
    monkeypatch.setattr(replies, "FRESH_S", 0.0)
    await team.work(make_editor())
    handle = await team.orc.submit("double", {"x": 1})

    async def ended() -> bool:
        return (await handle.status()).state is TaskState.SUCCEEDED

    await wait_for(ended, "the end of the task")
    for key in redis_client.scan_iter(match=f"{team.settings.prefix}:*:replies:*"):
        redis_client.delete(key)
    asked_s = time.monotonic()
    assert await handle.result(TIMEOUT_S) == 2
    assert time.monotonic() - asked_s < 1


# ------------------------------------------------------------------------------------------------------------- options


async def test_options_reach_the_attempt_and_the_record(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Session, tags, key, timeout and agent are seen by the handler and kept in the record."""
    worker = await team.work(make_editor())
    handle = await team.orc.submit(
        "tell", agent="editor", session="s/1 é", tags=["a", "b c"], key="msg 7", timeout=30, max_attempts=5,
        priority=7, result_ttl=timedelta(minutes=10),
    )  # fmt: skip
    told = await handle.result(TIMEOUT_S)
    deadline = datetime.fromisoformat(told.pop("deadline"))
    assert timedelta(seconds=20) < deadline - datetime.now(UTC) <= timedelta(seconds=30)
    assert told == {
        "task": handle.id, "key": "msg 7", "attempt": 1, "agent": "editor", "worker": worker.id, "session": "s/1 é",
        "tags": ["a", "b c"], "cancelled": False,
    }  # fmt: skip
    info = await handle.info()
    assert (info.session, info.tags, info.key, info.priority, info.agent, info.attempts) == (
        "s/1 é", ("a", "b c"), "msg 7", 7, "editor", 1,
    )  # fmt: skip
    assert info.ended_at is not None
    assert info.submitted_at <= info.ended_at + timedelta(milliseconds=1)
    assert 500 < redis_client.ttl(team.services.keys.task(handle.id)) <= 600

    bare = await (await team.orc.submit("tell")).result(TIMEOUT_S)
    assert bare["key"] == bare["task"]
    assert (bare["session"], bare["tags"], bare["deadline"]) == (None, [], None)


@pytest.mark.parametrize("form", ["delay", "timedelta", "at"])
async def test_a_delayed_task_waits_until_it_is_due(team: LocalTeam, form: str) -> None:
    """Seconds, a timedelta or an aware time: the task is scheduled, tells so, and runs when due, not before."""
    await team.work(make_editor())
    asked_s = time.monotonic()
    options: dict[str, dict[str, Any]] = {
        "delay": {"delay": 0.4},
        "timedelta": {"delay": timedelta(seconds=0.4)},
        "at": {"at": datetime.now(UTC) + timedelta(seconds=0.4)},
    }
    handle = await team.orc.submit("double", {"x": 1}, **options[form])
    status = await handle.status()
    assert status.state is TaskState.SCHEDULED
    assert status.detail.cause is Cause.SCHEDULED
    assert await handle.result(TIMEOUT_S) == 2
    assert 0.39 <= time.monotonic() - asked_s < 2


async def test_the_same_key_and_body_is_the_same_task(team: LocalTeam) -> None:
    """While it waits, after its end, and from another client: the same task; another body is a conflict."""
    first = await team.orc.submit("double", {"x": 3}, key="k {1}")
    assert (await team.orc.submit("double", {"x": 3}, key="k {1}", priority="low")).id == first.id
    with pytest.raises(KeyConflict, match="another body") as refused:
        await team.orc.submit("double", {"x": 4}, key="k {1}")
    assert (refused.value.key, refused.value.existing) == ("k {1}", first.id)
    await team.work(make_editor())
    assert await first.result(TIMEOUT_S) == 6
    again = await (await team.client()).submit("double", {"x": 3}, key="k {1}")
    assert again.id == first.id
    assert await again.result(TIMEOUT_S) == 6
    with pytest.raises(KeyConflict):
        await team.orc.submit("tell", {"x": 3}, key="k {1}")
    assert (await team.orc.submit("double", {"x": 3}, key="k {2}")).id != first.id


async def test_one_key_many_times_at_once_is_one_task(orc: Orchestrator) -> None:
    """Fifty concurrent submits with one key give one task; so does one batch that holds the key twice."""
    ids: set[str] = set()

    async def submit() -> None:
        ids.add((await orc.submit("double", {"x": 1}, key="same")).id)

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(submit)
    twins = await orc.submit_many([Submission("double", {"x": 1}, key="twin")] * 2)
    assert len(ids) == 1
    assert twins[0].id == twins[1].id not in ids


# ----------------------------------------------------------------------------------------------------------- many, caps


async def test_callers_that_submit_again_and_again_travel_together(
    orc: Orchestrator, redis_client: redis.Redis
) -> None:
    """Callers that submit in a loop share calls too: whoever is first does not keep the lead for itself."""
    counter = CommandCounter(redis_client)

    async def caller() -> None:
        for _ in range(10):
            await orc.submit("work")

    async with anyio.create_task_group() as callers:
        for _ in range(50):
            callers.start_soon(caller)
    assert counter.scripts() < 60


async def test_concurrent_submits_travel_together(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """Three hundred concurrent submits need a handful of calls; one alone needs one."""
    counter = CommandCounter(redis_client)
    await orc.submit("double", {"x": 1})
    assert counter.scripts() == 1
    handles: list[TaskHandle[Any]] = []

    async def submit(number: int) -> None:
        handles.append(await orc.submit("double", {"x": number}))

    async with anyio.create_task_group() as group:
        for number in range(300):
            group.start_soon(submit, number)
    assert len({handle.id for handle in handles}) == 300
    assert counter.scripts() <= 10


async def test_many_are_sent_in_chunks(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """1,201 tasks travel in five calls of at most 250; the handles come in the order of the tasks."""
    counter = CommandCounter(redis_client)
    handles = await orc.submit_many(Submission("double", {"x": number}) for number in range(1201))
    assert counter.scripts() == 5
    assert [handle.id for handle in handles] == sorted({handle.id for handle in handles})
    assert (await handles[1200].info()).args == b'{"x":1200}'
    assert await orc.submit_many([]) == []


async def test_two_chunks_are_on_their_way(orc: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one chunk is answered the next is on its way already, and never a third; answers stay in order."""
    send, under_way = orc._batcher.send, [0, 0]

    async def slowly(rows: Sequence[SubmitRow]) -> list[SubmitAnswer]:
        under_way[0] += 1
        under_way[1] = max(under_way)
        try:
            await anyio.wait_all_tasks_blocked()
            return await send(rows)
        finally:
            under_way[0] -= 1

    monkeypatch.setattr(orc._batcher, "send", slowly)
    handles = await orc.submit_many(Submission("double", {"x": number}) for number in range(1300))
    assert under_way == [0, 2]
    assert [(await handles[number].info()).args for number in (0, 600, 1299)] == [
        b'{"x":0}',
        b'{"x":600}',
        b'{"x":1299}',
    ]


async def test_what_is_behind_a_failed_chunk_is_not_sent(orc: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a chunk fails, the one that is on its way is told for itself, and those behind it are not sent any more."""
    send, chunks = orc._batcher.send, 0

    async def fail_the_second(rows: Sequence[SubmitRow]) -> list[SubmitAnswer]:
        nonlocal chunks
        chunks += 1
        if chunks == 2:
            raise ServerUnavailable("no answer", outcome_unknown=True)
        return await send(rows)

    monkeypatch.setattr(orc._batcher, "send", fail_the_second)
    with pytest.raises(SubmitRefused) as refused:
        await orc.submit_many(Submission("double", {"x": number}) for number in range(1300))
    outcomes = refused.value.outcomes
    assert chunks < 5
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, ServerUnavailable):
            assert number >= 250
            assert outcome.outcome_unknown == (number < 500)
            assert len(outcome.task_ids) == (number < 500)
        else:
            assert not 250 <= number < 500
            if number % 100 == 0:
                accepted: Any = outcome
                assert (await accepted.status()).state is TaskState.READY
    assert isinstance(outcomes[-1], ServerUnavailable)


@pytest.mark.roles(client="operator")
async def test_large_tasks_are_sent_in_chunks_of_bytes(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """Forty tasks of 200 kB do not travel in one call.

    A client may not set the floor of an empty pool, and beside older programs each large value goes through the script.
    """
    counter = CommandCounter(redis_client)
    handles = await orc.submit_many([Submission("x", {"text": "x" * 200_000})] * 40)
    assert len(handles) == 40
    assert 8 <= counter.scripts() <= 10


async def test_a_malformed_one_among_many_stops_all(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """When one of many is refused by validation, nothing is sent."""
    counter = CommandCounter(redis_client)
    with pytest.raises(InvalidInput, match="NaN"):
        await orc.submit_many([Submission("a"), Submission("b", {"x": float("nan")})])
    assert counter.calls() == {}


async def test_a_submit_that_fails_in_the_middle_may_have_arrived(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """Redis keeps what a script wrote before its error: the task may run, so the error says so and names it."""
    redis_client.set(orc.services.keys.sessions, "not ours", px=60_000)
    with pytest.raises(ServerRefused, match=r"WRONGTYPE.*task .* may have arrived") as refused:
        await orc.submit("x", session="s")
    assert refused.value.outcome_unknown
    (id_,) = refused.value.task_ids
    assert (await orc.task(id_).status()).state is TaskState.READY
    with pytest.raises(SubmitRefused) as many:
        await orc.submit_many([Submission(skill, session="s") for skill in "abc"])
    assert [await _state(orc, outcome) for outcome in many.value.outcomes] == [TaskState.READY] * 3


async def _state(orc: Orchestrator, outcome: Any) -> TaskState:
    assert isinstance(outcome, ServerRefused)
    assert outcome.outcome_unknown
    return (await orc.task(*outcome.task_ids).status()).state


async def test_a_refused_command_did_nothing(orc: Orchestrator) -> None:
    """The twin: Redis refuses a command that is no script, and the error says that it did not run."""
    with pytest.raises(ServerRefused, match="wrong number of arguments") as refused:
        await orc.services.store.execute("SET", "x")
    assert not refused.value.outcome_unknown


@pytest.mark.parametrize("settings", [{"queue__max_tasks": 3}], indirect=True)
async def test_a_full_queue_refuses_and_hides_nothing(orc: Orchestrator) -> None:
    """Past the cap a submit raises QueueFull; of many, every one has its outcome in order, and those accepted work."""
    await orc.submit("a")
    tasks = [Submission("a"), Submission("b"), Submission("a"), Submission("a"), Submission("b")]
    with pytest.raises(SubmitRefused, match="1 of 5 tasks were not accepted; the first: queue skill:a") as refused:
        await orc.submit_many(tasks)
    outcomes = refused.value.outcomes
    assert [isinstance(outcome, QueueFull) for outcome in outcomes] == [False, False, False, True, False]
    assert isinstance(outcomes[3], QueueFull)
    assert (outcomes[3].queue, outcomes[3].cap) == ("skill:a", 3)
    for index in (0, 1, 2, 4):
        accepted: Any = outcomes[index]
        assert (await accepted.status()).state is TaskState.READY
    with pytest.raises(QueueFull, match=r"queue skill:a holds its maximum of 3"):
        await orc.submit("a")
    await orc.submit("a", agent="editor")
    delayed = [await orc.submit("a", delay=60) for _ in range(3)]
    with pytest.raises(QueueFull, match="scheduled"):
        await orc.submit("b", delay=60)
    await delayed[0].cancel()
    await orc.submit("b", delay=60)


@pytest.mark.parametrize(
    "args",
    [
        {"a": float("nan")}, {"a": [float("inf")]}, {"a": "\ud800"}, {"\udfff": 1}, {1: 2}, {"a": {None: 1}},
        {"a": {1, 2}}, {"a": b"x"}, {"a": datetime.now(UTC)}, {"a": object()}, {"a": "x" * 262_144}, [1, 2], "text", 5,
    ],
    ids=lambda args: str(args)[:20].encode("ascii", "replace").decode(),
)  # fmt: skip
async def test_what_json_cannot_hold_is_refused_before_it_is_sent(
    orc: Orchestrator, redis_client: redis.Redis, args: Any
) -> None:
    """Refused with the name of the skill, and the server has seen no command."""
    counter = CommandCounter(redis_client)
    with pytest.raises(InvalidInput, match="arguments of 'double'"):
        await orc.submit("double", args)
    assert counter.calls() == {}


# ------------------------------------------------------------------------------------------------------------- its life


async def test_a_client_that_is_not_open_says_so(settings: Settings) -> None:
    """Before opening and after closing, every use says what to write."""
    orc = Orchestrator(settings=settings)
    with pytest.raises(OrchestratorError, match="not open; use `async with"):
        await orc.submit("double")
    with pytest.raises(OrchestratorError, match="not open"):
        orc.task(new_task_id())
    async with orc:
        handle = await orc.submit("double")
        with pytest.raises(OrchestratorError, match="open already"):
            await orc.open()
    with pytest.raises(OrchestratorError, match="not open"):
        await orc.submit_many([Submission("double")])
    await orc.aclose()
    async with orc:
        assert (await orc.task(handle.id).status()).state is TaskState.READY


async def test_opening_and_closing_in_different_tasks(settings: Settings) -> None:
    """A framework may open in one task, use in another and close in a third."""
    orc = Orchestrator(settings=settings)
    async with anyio.create_task_group() as group:
        group.start_soon(orc.open)
    async with anyio.create_task_group() as group:
        group.start_soon(orc.submit, "double", {"x": 1})
    async with anyio.create_task_group() as group:
        group.start_soon(orc.aclose)


async def test_opening_without_a_server_fails_clean(settings: Settings) -> None:
    """When nobody answers, opening raises; the client can be opened later."""
    nowhere = Orchestrator("unix:///nonexistent/redis.sock", prefix=settings.prefix)
    for _ in range(2):
        with pytest.raises(OrchestratorError, match="no answer from Redis"):
            await nowhere.open()
    await nowhere.aclose()


async def test_closing_ends_every_wait(settings: Settings) -> None:
    """Whoever waits when the client closes gets an error, not silence and not a cancellation."""
    orc = await Orchestrator(settings=settings).open()
    handle = await orc.submit("double", {"x": 1})
    told: list[str] = []

    async def wait(timeout: float | None) -> None:
        try:
            await handle.result(timeout)
        except OrchestratorError as closed:
            told.append(str(closed))

    async with anyio.create_task_group() as group:
        group.start_soon(wait, None)
        group.start_soon(wait, 30)
        await anyio.wait_all_tasks_blocked()
        await orc.aclose()
    assert told == ["the client was closed while a result was awaited"] * 2


async def test_closing_ends_every_submit(settings: Settings, redis_client: redis.Redis) -> None:
    """Submits that wait for the server when the client closes get an error, not a cancellation."""
    orc = await Orchestrator(settings=settings).open()
    told: list[BaseException] = []

    async def submit() -> None:
        try:
            await orc.submit("double", {"x": 1})
        except BaseException as closed:
            told.append(closed)
            if not isinstance(closed, OrchestratorError):
                raise

    redis_client.client_pause(400, all=True)
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(submit)
        await anyio.wait_all_tasks_blocked()
        await orc.aclose()
        closed_s = time.monotonic()
    assert time.monotonic() - closed_s < 2
    assert [isinstance(error, OrchestratorError) for error in told] == [True, True, True], told


async def test_a_submit_given_up_harms_no_other(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """Of submits that travel together some are cancelled, also the one that sends: the others get their tasks."""
    ids: dict[int, str] = {}
    scopes = [anyio.CancelScope() for _ in range(6)]

    async def submit(number: int) -> None:
        with scopes[number]:
            ids[number] = (await orc.submit("double", {"x": number})).id

    redis_client.client_pause(200, all=True)
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(submit, number)
        await anyio.wait_all_tasks_blocked()
        scopes[0].cancel()  # sends its own
        scopes[3].cancel()  # waits behind it
    assert sorted(ids) == [1, 2, 4, 5]
    for number, id_ in ids.items():
        assert (await orc.task(id_).info()).args == f'{{"x":{number}}}'.encode()


async def test_a_wait_given_up_leaves_nothing_behind(orc: Orchestrator) -> None:
    """Waits that are cancelled are forgotten; the handle still works."""
    handle = await orc.submit("double", {"x": 1})
    for _ in range(3):
        with anyio.move_on_after(0.01):
            await handle.result()
    await handle.cancel("enough")
    with pytest.raises(TaskCancelled, match="enough"):
        await handle.result(TIMEOUT_S)
