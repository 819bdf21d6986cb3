"""Spans of real tasks: who links to whom, what they say, and what they never say."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import sampling
from opentelemetry.trace import SpanKind, StatusCode

from orchestrator import (
    Agent,
    Orchestrator,
    Reject,
    Retry,
    ServerUnavailable,
    Snooze,
    Submission,
    TaskContext,
    TaskFailed,
)
from orchestrator.sync import Orchestrator as BlockingOrchestrator
from orchestrator.tasks.model import decode_envelope
from orchestrator.tasks.records import read_record
from orchestrator.tracing.active import active
from orchestrator.tracing.header import unpack
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.process_handlers import tracer as tracing_agent
from tests.helpers.spans import RecordedSpans, attributes, ids, links_of, parent_of
from tests.helpers.terminal import Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.helpers.local_team import LocalTeam

SECRET = "hunter2-marker"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> RecordedSpans:
    """The spans of this test."""
    recorded = RecordedSpans()
    recorded.install(monkeypatch)
    return recorded


def error_of(span: ReadableSpan) -> str | None:
    """The type of the error, of a span that has the status of one."""
    found = attributes(span).get("error.type")
    assert (span.status.status_code is StatusCode.ERROR) == (found is not None), span.to_json()
    assert span.status.description is None
    return None if found is None else str(found)


async def test_one_picture_of_a_request(team: LocalTeam, spans: RecordedSpans) -> None:
    """Client, attempts with a failure and a question, child, script, lock and waits: each refers to its cause."""
    agent = Agent("writer", concurrency=2)

    @agent.skill
    async def outline(topic: str) -> str:
        with trace.get_tracer("user").start_as_current_span("model call"):
            return topic.upper()

    @agent.skill(backoff=0.01)
    async def write(ctx: TaskContext, topic: str) -> str:
        if ctx.attempt == 1:
            raise ValueError(SECRET)
        async with ctx.locks.hold("page"):
            await ctx.workspace.set("topic", topic)
        child = await ctx.submit("outline", {"topic": topic})
        answer = await ctx.ask(f"publish {topic}?")
        return f"{await child.result()} {answer}"

    await team.work(agent)
    with trace.get_tracer("user").start_as_current_span("request"):
        handle = await team.orc.submit("write", {"topic": SECRET}, session="s1")

    async def asks() -> bool:
        return bool((await handle.info()).questions)

    await wait_for(asks, "the question")
    await handle.answer(SECRET)
    assert await handle.result(TIMEOUT_S) == f"{SECRET.upper()} {SECRET}"
    await spans.wait("wait write", 2)
    await spans.wait("wait outline")

    request, submit = spans.one("request"), spans.one("submit write")
    assert parent_of(submit) == ids(request)
    assert submit.kind is SpanKind.PRODUCER
    assert attributes(submit)["messaging.message.id"] == handle.id
    assert attributes(submit)["messaging.system"] == "redis"
    assert attributes(submit)["gen_ai.conversation.id"] == "s1"

    failed, asked, last = spans.named("run write")
    for run in (failed, asked, last):
        check_attempt(run, handle.id, submit)
    assert "previous_attempt" not in links_of(failed)
    assert links_of(asked)["previous_attempt"] == ids(failed)
    assert links_of(last)["previous_attempt"] == ids(asked)
    assert [attributes(run)["orc.task.outcome"] for run in (failed, asked, last)] == ["retry", "ask", "succeeded"]
    assert [error_of(run) for run in (failed, asked, last)] == ["ValueError", None, None]

    # The waits lie in the trace of the request, and lead to their attempts. No record tells when an answer came.
    waits = spans.named("wait write")
    assert {parent_of(wait) for wait in waits} == {ids(submit)}
    assert [links_of(wait)["attempt"] for wait in waits] == [ids(failed), ids(asked)]
    for wait, run in zip(waits, (failed, asked), strict=True):
        assert wait.end_time is not None
        assert run.start_time is not None
        assert abs(run.start_time - wait.end_time) < 50_000_000

    check_below(spans, handle.id, asked, last)
    told = "".join(span.to_json() for span in spans.all)
    assert SECRET not in told
    assert SECRET.upper() not in told
    assert not [span for span in spans.all if span.events]


def check_attempt(run: ReadableSpan, task: str, submit: ReadableSpan) -> None:
    """What every attempt of the request says."""
    assert run.kind is SpanKind.CONSUMER
    assert run.parent is None
    assert links_of(run)["producer"] == ids(submit)
    found = attributes(run)
    assert found["messaging.message.id"] == task
    assert found["messaging.operation.type"] == "process"
    assert found["gen_ai.operation.name"] == "invoke_agent"
    assert found["gen_ai.agent.name"] == "writer"
    assert found["gen_ai.conversation.id"] == "s1"
    assert found["messaging.message.body.size"] == len(json.dumps({"topic": SECRET}, separators=(",", ":")))


def check_below(spans: RecordedSpans, task: str, asked: ReadableSpan, last: ReadableSpan) -> None:
    """What happened inside the two attempts that submitted a child and asked."""
    first_child, again = spans.named("submit outline")
    assert (parent_of(first_child), parent_of(again)) == (ids(asked), ids(last))
    assert attributes(first_child)["orc.task.parent"] == task
    # The second attempt found the child of the first.
    assert attributes(again)["messaging.message.id"] == attributes(first_child)["messaging.message.id"]
    child = spans.one("run outline")
    assert links_of(child) == {"producer": ids(first_child)}
    assert parent_of(spans.one("model call")) == ids(child)

    questions = spans.named("ask")
    assert [parent_of(question) for question in questions] == [ids(asked), ids(last)]
    assert [attributes(question)["orc.ask.answered"] for question in questions] == [False, True]
    assert [error_of(question) for question in questions] == [None, None]

    locks = [lock for lock in spans.named("lock") if parent_of(lock) == ids(last)]
    assert {str(attributes(lock)["orc.lock.key"]).rpartition("}:")[2] for lock in locks} >= {"lock:page"}
    assert {attributes(lock)["orc.lock.acquired"] for lock in locks} == {True}
    assert all(isinstance(attributes(lock)["orc.lock.waited_ms"], int) for lock in locks)
    scripts = [span for span in spans.all if span.name.startswith("script ") and parent_of(span) == ids(last)]
    assert "workspace/patch" in {attributes(script)["db.stored_procedure.name"] for script in scripts}
    assert {script.kind for script in scripts} == {SpanKind.CLIENT}


@pytest.mark.parametrize("settings", [{"tracing__relation": "parent"}], indirect=True)
async def test_an_attempt_may_be_a_child_of_its_submit(team: LocalTeam, spans: RecordedSpans) -> None:
    """With `tracing.relation = parent` all is one trace, and a retry still links to the attempt before."""
    agent = Agent("worker")

    @agent.skill(backoff=0)
    async def work(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            raise Retry(0)

    await team.work(agent)
    await (await team.orc.submit("work")).result(TIMEOUT_S)
    first, second = await spans.wait("run work", 2)
    submit = spans.one("submit work")
    assert parent_of(first) == parent_of(second) == ids(submit)
    assert links_of(first) == {}
    assert links_of(second) == {"previous_attempt": ids(first)}
    assert error_of(first) is None, "Retry is a decision of the handler, no error"


async def test_outcomes(team: LocalTeam, spans: RecordedSpans) -> None:
    """An attempt that failed has the type of its error; one that only stops has none."""
    agent = Agent("worker", concurrency=5)

    @agent.skill(max_attempts=1, timeout=0.05)
    async def slow() -> None:
        await anyio.sleep_forever()

    @agent.skill(max_attempts=1)
    async def broken() -> None:
        raise LookupError(SECRET)

    @agent.skill
    async def refusing() -> None:
        raise Reject(SECRET)

    @agent.skill
    async def snoozing(ctx: TaskContext) -> None:
        raise Snooze(3600)

    @agent.skill
    async def cancelled() -> None:
        await anyio.sleep_forever()

    @agent.skill
    async def typed(count: int) -> int:
        return count

    await team.work(agent)
    doomed = [await team.orc.submit(skill) for skill in ("slow", "broken", "refusing")]
    doomed.append(await team.orc.submit("typed", {"count": SECRET}))
    for handle in doomed:
        with pytest.raises(TaskFailed):
            await handle.result(TIMEOUT_S)
    await team.orc.submit("snoozing")
    stopped = await team.orc.submit("cancelled")

    async def runs() -> bool:
        return (await stopped.status()).state == "running"

    await wait_for(runs, "the start")
    await stopped.cancel()
    (await spans.wait("run cancelled"), await spans.wait("run snoozing"))
    ends = {
        span.name: (attributes(span)["orc.task.outcome"], error_of(span))
        for span in spans.all
        if span.name.startswith("run ")
    }
    assert ends == {
        "run slow": ("dead", "timeout"),
        "run broken": ("dead", "LookupError"),
        "run refusing": ("dead", "Reject"),
        "run typed": ("invalid", "invalid"),
        "run snoozing": ("snooze", None),
        "run cancelled": ("cancelled", None),
    }
    assert SECRET not in "".join(span.to_json() for span in spans.all)


async def test_contexts_of_interleaved_attempts_do_not_mix(
    team: LocalTeam, spans: RecordedSpans, caplog: pytest.LogCaptureFixture
) -> None:
    """Attempts that take turns in one process keep their own span, in the loop and in threads, also in the log."""
    agent, both = Agent("worker", concurrency=4), {"async": anyio.Event(), "done": anyio.Event()}
    barrier = threading.Barrier(2)
    running = 0

    @agent.skill
    async def turn(ctx: TaskContext) -> list[int]:
        nonlocal running
        before = trace.get_current_span().get_span_context().span_id
        running += 1
        if running == 2:
            both["async"].set()
        await both["async"].wait()
        ctx.log.info("interleaved")
        await anyio.lowlevel.checkpoint()
        return [before, trace.get_current_span().get_span_context().span_id]

    @agent.skill
    def threaded(ctx: TaskContext) -> list[int]:
        before = trace.get_current_span().get_span_context().span_id
        barrier.wait(TIMEOUT_S)
        return [before, trace.get_current_span().get_span_context().span_id]

    await team.work(agent)
    with caplog.at_level(logging.INFO, logger="agent"):
        for skill in ("turn", "threaded"):
            handles = await team.orc.submit_many([Submission(skill)] * 2)
            seen = {handle.id: await handle.result(TIMEOUT_S) for handle in handles}
            runs = {attributes(span)["messaging.message.id"]: span for span in await spans.wait(f"run {skill}", 2)}
            assert {id_: [ids(span)[1]] * 2 for id_, span in runs.items()} == seen
    messages: list[Any] = [record.msg for record in caplog.records]
    logged = [message.values for message in messages if getattr(message, "event", "") == "interleaved"]
    turns = {attributes(span)["messaging.message.id"]: ids(span) for span in spans.named("run turn")}
    assert {one["task"]: (int(one["trace_id"], 16), int(one["span_id"], 16)) for one in logged} == turns
    assert trace.get_current_span().get_span_context().is_valid is False


async def test_a_traced_attempt_leaves_its_slot_clean(team: LocalTeam, spans: RecordedSpans) -> None:
    """The next attempt runs in the same asyncio task; a slot with foreign context variables would be replaced."""
    agent = Agent("worker", concurrency=1)
    tasks: list[asyncio.Task[None] | None] = []

    @agent.skill
    async def work() -> None:
        with trace.get_tracer("user").start_as_current_span("inner"):
            tasks.append(asyncio.current_task())

    await team.work(agent)
    for _ in range(3):
        await (await team.orc.submit("work")).result(TIMEOUT_S)
    assert len(set(tasks)) == 1
    assert [parent_of(span) for span in spans.named("inner")] == [ids(span) for span in spans.named("run work")]


@pytest.mark.parametrize("settings", [{"worker__grace_s": 0.05}], indirect=True)
async def test_an_abandoned_handler_ends_its_span_once(
    team: LocalTeam, spans: RecordedSpans, caplog: pytest.LogCaptureFixture
) -> None:
    """The span ends with the attempt; the handler that goes on changes nothing, and later tasks have their own."""
    agent, left = Agent("worker", concurrency=1), threading.Event()

    @agent.skill(timeout=0.05, max_attempts=1)
    def stubborn() -> None:
        left.wait(TIMEOUT_S)

    @agent.skill
    async def work() -> None: ...

    await team.work(agent)
    with pytest.raises(TaskFailed):
        await (await team.orc.submit("stubborn")).result(TIMEOUT_S)
    (run,) = spans.named("run stubborn")
    assert (error_of(run), attributes(run)["orc.task.outcome"]) == ("timeout", "dead")
    left.set()
    await (await team.orc.submit("work")).result(TIMEOUT_S)
    assert spans.one("run work").parent is None
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_a_drained_attempt_is_no_error(team: LocalTeam, spans: RecordedSpans) -> None:
    """A worker that stops requeues its task; the attempt at the next worker links to the same submit."""
    agent = Agent("worker")
    started = anyio.Event()

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        if not started.is_set():
            started.set()
            await anyio.sleep_forever()

    worker = await team.work(agent)
    handle = await team.orc.submit("work")
    await started.wait()
    worker.stop()
    worker.stop()
    await team.stop(worker)
    await team.work(agent)
    await handle.result(TIMEOUT_S)
    first, second = await spans.wait("run work", 2)
    assert [attributes(run)["orc.task.outcome"] for run in (first, second)] == ["requeue", "succeeded"]
    assert error_of(first) is None
    assert links_of(first) == links_of(second) == {"producer": ids(spans.one("submit work"))}, "another worker ran it"


async def test_an_attempt_that_lost_its_task(team: LocalTeam, spans: RecordedSpans) -> None:
    """It gets no verdict, and its span says that it is lost."""
    agent = Agent("worker")

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            await team.services.store.execute("HINCRBY", team.services.keys.task(ctx.task_id), "gen", 1)
            await ctx.progress(1)

    await team.work(agent)
    handle = await team.orc.submit("work")
    (run,) = await spans.wait("run work")
    assert (error_of(run), attributes(run)["orc.task.outcome"]) == ("lost", "lost")
    await handle.cancel()


async def test_a_handler_in_a_process_gets_the_context(team: LocalTeam, spans: RecordedSpans) -> None:
    """The span of the attempt is the current one in the handler's process too."""
    await team.work(tracing_agent)
    seen = await (await team.orc.submit("current_span")).result(20.0)
    (run,) = await spans.wait("run current_span")
    assert tuple(seen) == ids(run)


async def test_many_submits_share_a_span(team: LocalTeam, spans: RecordedSpans) -> None:
    """One span per call, with the number of tasks; each task carries its context."""
    await team.orc.submit_many([Submission("a"), Submission("a")])
    await team.orc.submit_many([Submission("a"), Submission("b", priority="high")])
    same, mixed = spans.one("submit a"), spans.one("submit")
    assert attributes(same)["messaging.batch.message_count"] == attributes(mixed)["messaging.batch.message_count"] == 2
    assert "orc.skill" not in attributes(mixed)
    assert not [span for span in spans.all if span.name.startswith("script") and span.parent is None]


async def test_a_refused_submit_is_an_error(team: LocalTeam, spans: RecordedSpans) -> None:
    """The span of the producer has the type of the exception."""
    with pytest.raises(ValueError, match="priority"):
        await team.orc.submit("work", priority=SECRET)
    assert error_of(spans.one("submit work")) == "InvalidInput"
    assert SECRET not in spans.one("submit work").to_json()


async def test_the_blocking_client_uses_the_span_of_its_thread(team: LocalTeam, spans: RecordedSpans) -> None:
    """A span that is current in the calling thread is the parent of the submit."""

    def submit() -> None:
        with (
            BlockingOrchestrator(settings=team.settings) as orc,
            trace.get_tracer("user").start_as_current_span("request"),
        ):
            orc.submit("work")

    await anyio.to_thread.run_sync(submit)
    assert parent_of(spans.one("submit work")) == ids(spans.one("request"))


async def test_background_work_of_a_client_belongs_to_no_span(team: LocalTeam, spans: RecordedSpans) -> None:
    """A client that is opened in a span does not put its reads and polls into it."""
    with trace.get_tracer("user").start_as_current_span("request"):
        async with Orchestrator(settings=team.settings) as orc, anyio.create_task_group() as submitting:
            # The first is sent by its caller, the others in a batch.
            for _ in range(20):
                submitting.start_soon(orc.submit, "work")
    assert len(spans.named("submit work")) == 20
    below = {span.name for span in spans.all if parent_of(span) == ids(spans.one("request"))}
    assert below == {"submit work"}


async def test_a_task_shows_its_trace(team: LocalTeam, spans: RecordedSpans, tmp_path: Path) -> None:
    """The info of a traced task has the trace id; a worker that does not trace hands the context on to children."""
    agent = Agent("worker")

    @agent.skill
    async def parent(ctx: TaskContext) -> str:
        return (await ctx.submit("child")).id

    handle = await team.orc.submit("parent")
    trace_id = (await handle.info()).trace_id
    assert trace_id == f"{ids(spans.one('submit parent'))[0]:032x}"
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)
    shown = await anyio.to_thread.run_sync(terminal.orc, "tasks", "show", handle.id)
    assert f"trace id      {trace_id}" in shown.out
    with pytest.MonkeyPatch.context() as untraced:
        untraced.setattr(trace, "_TRACER_PROVIDER", None)
        assert active() is None
        await team.work(agent)
        child = team.orc.task(await handle.result(TIMEOUT_S))
        assert (await child.info()).trace_id == trace_id
        assert (await (await team.orc.submit("child")).info()).trace_id is None


async def test_a_fire_of_a_schedule_begins_a_trace(team: LocalTeam, spans: RecordedSpans) -> None:
    """The supervisor makes the producer's span, which names the schedule; the attempt links to it."""
    agent = Agent("worker")

    @agent.skill
    async def nightly() -> None: ...

    await team.work(agent)
    with trace.get_tracer("user").start_as_current_span("request"):
        await team.orc.admin.schedules.add("often", "nightly", every=3600)
        triggered = await team.orc.admin.schedules.trigger("often")
        await team._pool.advance(3_600_000)
    by_request, by_time = (await spans.wait("run nightly", 2))[:2]
    first, second = spans.named("submit nightly")[:2]
    assert attributes(first)["messaging.message.id"] == triggered
    assert parent_of(first) == ids(spans.one("request"))
    assert second.parent is None
    for submit, run in ((first, by_request), (second, by_time)):
        assert attributes(submit)["orc.schedule"] == "often"
        assert attributes(submit)["messaging.message.id"] == attributes(run)["messaging.message.id"]
        assert links_of(run) == {"producer": ids(submit)}


async def test_waiting_for_a_lock_is_one_span(team: LocalTeam, spans: RecordedSpans) -> None:
    """The polls of a waiter are no spans; a lock that another owner keeps was not acquired, and that is no error."""
    other = await team.client()
    async with team.orc.locks().hold("page"):
        assert await other.locks().try_acquire("page") is None
        with trace.get_tracer("user").start_as_current_span("request"):
            await anyio.lowlevel.checkpoint()
            with anyio.move_on_after(0.2):
                async with other.locks().hold("page", wait=5):
                    raise AssertionError
    held, refused, waited = spans.named("lock")
    assert [attributes(span).get("orc.lock.acquired") for span in (held, refused, waited)] == [True, False, None]
    assert error_of(refused) is None
    assert parent_of(waited) == ids(spans.one("request"))
    assert not [span for span in spans.all if parent_of(span) == ids(waited)]


async def test_an_error_while_a_lock_is_taken(team: LocalTeam, spans: RecordedSpans) -> None:
    """The span of the lock has the type of the error."""
    locks = team.orc.locks()
    team.orc.services.store.stop_sending()
    with pytest.raises(ServerUnavailable):
        await locks.try_acquire("page")
    assert error_of(spans.one("lock")) == "ServerUnavailable"
    assert str(attributes(spans.one("lock"))["orc.lock.key"]).endswith(":lock:page")


async def test_a_request_that_is_not_sampled(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is exported; tasks carry the decision, and children are in the trace of their parents."""
    spans = RecordedSpans(sampling.ALWAYS_OFF)
    spans.install(monkeypatch)
    agent = Agent("worker", concurrency=2)

    @agent.skill
    async def child() -> None: ...

    @agent.skill
    async def parent(ctx: TaskContext) -> str:
        handle = await ctx.submit("child")
        await handle.result()
        return handle.id

    await team.work(agent)
    handle = await team.orc.submit("parent")
    child_id = await handle.result(TIMEOUT_S)
    records = [await read_record(team.services.store, id_, "env") for id_ in (handle.id, child_id)]
    contexts = [unpack(record.envelope.trace) for record in records]
    assert [context is not None and context.flags & 1 for context in contexts] == [0, 0]
    assert spans.names == []


async def test_what_a_task_carries(team: LocalTeam, spans: RecordedSpans) -> None:
    """The envelope of a traced task names the span of its producer."""
    handle = await team.orc.submit("work")
    record = await read_record(team.services.store, handle.id, "env")
    packed = record.field("env")
    assert packed is not None
    trace_id, span_id = ids(spans.one("submit work"))
    assert decode_envelope(packed).trace[:-3] == f"00-{trace_id:032x}-{span_id:016x}"
