"""The log of a worker tells the life of tasks: starts, successes, and every failure with the line of code."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Reject, Retry, Snooze, Submission, TaskContext
from orchestrator.agents import scripts as registry
from orchestrator.core.errors import TaskFailed
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import set_level
from orchestrator.core.wakeups import Wakeup
from orchestrator.services import SyncStore
from orchestrator.supervisor.recoverer import Recoverer
from orchestrator.tasks import scripts
from orchestrator.workers.runtime import task_log
from orchestrator.workers.runtime.dead_worker import abandon_entries
from tests.helpers.json_log import Log, json_log, line_of
from tests.helpers.process_handlers import cruncher
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.helpers.json_log import Log
    from tests.helpers.local_team import LocalTeam

HERE = __file__
WAIT_S = 30.0
"""Longer than a loaded machine needs; nothing here measures the time."""


@pytest.fixture
def log() -> Iterator[Log]:
    """The log at info, as JSON lines."""
    with json_log() as kept:
        yield kept


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log as the workers of `orc up` do."""
    monkeypatch.setattr(task_log._Level, "is_info", True)


async def _lines(log: Log, count: int, *events: str) -> list[dict[str, Any]]:
    """Wait for so many lines: a client may have the result before the worker has written its line."""
    await wait_for(lambda: len(log.lines(*events)) >= count, f"{count} lines of {events}", WAIT_S)
    return log.lines(*events)


async def _run(team: LocalTeam, agent: Agent, skill: str, args: dict[str, Any] | None = None) -> None:
    await team.work(agent)
    handle = await team.orc.submit(skill, args)
    with contextlib.suppress(TaskFailed):
        await handle.result(WAIT_S)


@pytest.mark.usefixtures("up")
async def test_a_task_is_told_from_start_to_end(team: LocalTeam, log: Log) -> None:
    """Under `orc up` two lines at info: the start, and the success with skill, attempt and time."""
    agent = Agent("calm")

    @agent.skill
    async def work(size: int) -> int:
        await asyncio.sleep(0.05)
        return size

    await _run(team, agent, "work", {"size": 1})
    started, succeeded = await _lines(log, 2, "task_started", "task_succeeded")
    assert (started["event"], started["level"], succeeded["level"]) == ("task_started", "info", "info")
    assert (succeeded["skill"], succeeded["attempt"], succeeded["agent"]) == ("work", 1, "calm")
    assert succeeded["task"] == started["task"]
    assert 50 <= succeeded["ran_ms"] < 5000


async def test_a_service_tells_it_at_debug(team: LocalTeam, log: Log) -> None:
    """Without `orc up` the lines are there at debug only."""
    agent = Agent("calm")

    @agent.skill
    async def work() -> None: ...

    await _run(team, agent, "work")
    assert log.lines("task_started") == []
    set_level("debug")
    await _run(team, Agent("other"), "work")
    (started,) = await _lines(log, 1, "task_started")
    await wait_for(lambda: started["task"] in {line["task"] for line in log.lines("task_succeeded")}, "the end", WAIT_S)
    assert {line["level"] for line in log.lines("task_started", "task_succeeded")} == {"debug"}


async def test_a_failure_has_its_line_and_one_traceback(team: LocalTeam, log: Log) -> None:
    """Three attempts fail in the same line: each is told with skill, file and line, the traceback once."""
    agent = Agent("flaky")

    def parse(text: str) -> int:
        return int(text)

    @agent.skill(max_attempts=3)
    async def work(ctx: TaskContext) -> int:
        return parse(f"no number {ctx.attempt}")

    await _run(team, agent, "work")
    lines = await _lines(log, 3, "attempt_failed", "task_failed")
    assert [line["event"] for line in lines] == ["attempt_failed", "attempt_failed", "task_failed"]
    assert {line["skill"] for line in lines} == {"work"}
    where = f"{HERE}:{line_of(parse, 'int(text)')}"
    assert {where.endswith(line["where"]) for line in lines} == {True}
    assert ["exception" in line for line in lines] == [True, False, False]
    assert "return int(text)" in lines[0]["exception"]
    assert "no number 3" in lines[2]["reason"]


async def test_another_failure_has_its_own_traceback(team: LocalTeam, log: Log) -> None:
    """The twin: an attempt that fails in another line brings its traceback."""
    agent = Agent("flaky")

    @agent.skill(max_attempts=2)
    async def work(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            raise ValueError("first")
        raise KeyError("second")

    await _run(team, agent, "work")
    assert ["exception" in line for line in await _lines(log, 2, "attempt_failed", "task_failed")] == [True, True]


async def test_two_tasks_have_a_traceback_each(team: LocalTeam, log: Log) -> None:
    """Whoever follows one task finds its traceback, also if another one failed before in the same line."""
    agent = Agent("flaky")

    @agent.skill(max_attempts=1)
    async def work() -> None:
        raise ValueError("always")

    await team.work(agent)
    for _ in range(2):
        with pytest.raises(TaskFailed):
            await (await team.orc.submit("work")).result(WAIT_S)
    assert ["exception" in line for line in await _lines(log, 2, "task_failed")] == [True, True]


def _reject() -> Agent:
    agent = Agent("picky")

    @agent.skill
    async def work(size: int = 1) -> object:
        raise Reject("too old")

    return agent


def _unfit() -> Agent:
    agent = Agent("picky")

    @agent.skill
    async def work(size: int = 1) -> object:
        return object()

    return agent


def _huge() -> Agent:
    agent = Agent("picky")

    @agent.skill
    async def work(size: int = 1) -> object:
        return "x" * 10_000_000

    return agent


@pytest.mark.parametrize(
    ("make", "size", "expected"),
    [
        (_reject, 1, ("too old", "raise Reject")),
        (_unfit, 1, ("result of 'work'", "@agent.skill")),
        (_huge, 1, ("result of 'work'", "@agent.skill")),
        (_reject, "large", ("size: Input should be a valid integer", "@agent.skill")),
    ],
)
async def test_each_dead_letter_is_told(
    team: LocalTeam, log: Log, make: Callable[[], Agent], size: object, expected: tuple[str, str]
) -> None:
    """Wrong arguments, an unfit or huge result and `Reject`: one line with the reason, the file and the line."""
    reason, line = expected
    await _run(team, make(), "work", {"size": size})
    (told,) = await _lines(log, 1, "task_failed", "attempt_failed")
    assert (told["event"], told["level"], told["skill"], told["attempt"]) == ("task_failed", "error", "work", 1)
    assert reason in told["reason"]
    assert f"{HERE}:{line_of(make, line)}".endswith(told["where"])
    assert "exception" not in told


async def test_a_dead_letter_by_deaths_is_told(team: LocalTeam, log: Log) -> None:
    """The host of a worker that died tells of the task that killed it, with skill, attempt, deaths and reason."""
    agent, running = Agent("fatal"), anyio.Event()

    @agent.skill(max_deaths=1)
    async def work() -> None:
        running.set()
        await anyio.sleep_forever()

    worker = await team.work(agent)
    handle = await team.orc.submit("work")
    await running.wait()
    with contextlib.closing(SyncStore(team.services.endpoint, team.services.keys, name="host")) as store:
        give = partial(abandon_entries, store, agents=[agent], worker=worker.id, how="killed", dead_ttl_s=60)
        assert await anyio.to_thread.run_sync(give) == 1
    (line,) = log.lines("task_failed")
    assert (line["level"], line["task"], line["agent"], line["skill"]) == ("error", handle.id, "fatal", "work")
    assert (line["attempt"], line["deaths"], "its worker died" in line["reason"]) == (1, 1, True)


@pytest.mark.parametrize("script", ["adopt", "recover"])
async def test_workers_and_supervisors_tell_of_deaths(
    team: LocalTeam, log: Log, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """They tell of the dead letters that they find when a whole host is gone."""
    real, found = getattr(scripts, script), [scripts.DeadByDeaths("t1", "work", 3, 2)]

    def call(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)
        return replace(made, parse=lambda reply: made.parse(reply)._replace(dead=[found.pop()] if found else []))

    monkeypatch.setattr(scripts, script, call)
    agent = Agent("calm")

    @agent.skill
    async def work() -> None: ...

    await team.work(agent)
    if script == "recover":
        with team.services.watch_loop("recoverer", waits_s=sweep_s) as turn:
            await Recoverer(team.services, repair_requested=Wakeup())._recover("calm", turn, clean=False)
    (line,) = await _lines(log, 1, "task_failed")
    assert (line["task"], line["agent"], line["attempt"], line["deaths"]) == ("t1", "calm", 3, 2)


async def test_an_expired_question_is_told(team: LocalTeam, log: Log) -> None:
    """A handler that lets the end of its deadline pass makes a dead letter, which is told with the line of the call."""
    agent = Agent("patient")

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        await ctx.ask("Go on?", deadline=0.01)

    await _run(team, agent, "work")
    (line,) = await _lines(log, 1, "task_failed")
    assert (line["skill"], line["level"], "Go on?" in line["reason"]) == ("work", "error", True)
    assert f"{HERE}:{line_of(test_an_expired_question_is_told, 'await ctx.ask')}".endswith(line["where"])


async def test_snooze_and_retry_are_told(team: LocalTeam, log: Log) -> None:
    """A snooze says until when, a requested retry why; neither has a traceback."""
    agent, runs = Agent("patient"), list[int]()

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        runs.append(ctx.attempt)
        if len(runs) == 1:
            raise Snooze(0.05, reason="not yet")
        if ctx.attempt == 1:
            raise Retry(0.05, reason="once more")

    await _run(team, agent, "work")
    (snoozed,), (retried,) = await _lines(log, 1, "task_snoozed"), await _lines(log, 1, "attempt_failed")
    assert (snoozed["level"], snoozed["reason"], snoozed["retry_in_ms"]) == ("info", "not yet", 50)
    assert "once more" in retried["reason"]
    for line, code in ((snoozed, "raise Snooze"), (retried, "raise Retry")):
        assert f"{HERE}:{line_of(test_snooze_and_retry_are_told, code)}".endswith(line["where"])
        assert "exception" not in line


async def test_a_process_handler_names_its_line(team: LocalTeam, log: Log) -> None:
    """The file and line come from the process of the handler."""
    await team.work(cruncher)
    with pytest.raises(TaskFailed):
        await (await team.orc.submit("end", {"how": "raise"})).result(WAIT_S)
    (line,) = await _lines(log, 1, "task_failed")
    assert line["where"].startswith("tests/helpers/process_handlers.py:")


@pytest.mark.usefixtures("up")
async def test_a_flood_is_counted(team: LocalTeam, log: Log) -> None:
    """Beyond the lines of a second, starts and successes are counted in one line; failures are still told."""
    agent = Agent("busy", concurrency=50)

    @agent.skill(max_attempts=1)
    async def work(number: int) -> None:
        if number == 499:
            raise ValueError("the last one")

    await team.work(agent)
    handles = await team.orc.submit_many([Submission("work", {"number": number}) for number in range(500)])
    for handle in handles[:-1]:
        await handle.result(WAIT_S)
    with pytest.raises(TaskFailed):
        await handles[-1].result(WAIT_S)

    def counted() -> int:
        return sum(line["count"] for line in log.lines("task_lines_left_out"))

    def told() -> list[dict[str, Any]]:
        return log.lines("task_started", "task_succeeded")

    await wait_for(lambda: len(told()) + counted() >= 999, "all lines to be written or counted", WAIT_S)
    assert len(told()) + counted() == 999
    assert counted() > 0
    assert len(await _lines(log, 1, "task_failed")) == 1
    assert all(line["count"] == sum(line["events"].values()) for line in log.lines("task_lines_left_out"))
    ended = {line["task"] for line in told() if line["event"] == "task_succeeded"}
    assert ended <= {line["task"] for line in told() if line["event"] == "task_started"}


async def test_a_standby_supervisor_says_so(team: LocalTeam, log: Log) -> None:
    """The second supervisor of a pool tells once that it stands by, and nothing at its further requests."""
    asked, lead = [], registry.lead

    def count(*args: Any, **options: Any) -> Any:
        asked.append(options["supervisor"])
        return lead(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.supervisor.leader.registry.lead", count)
        scope = await team.start_supervisor()
        await wait_for(lambda: any(asked.count(each) >= 3 for each in asked), "three requests for the lease", WAIT_S)
    (line,) = log.lines("supervisor_stands_by")
    assert (line["level"], asked.count(line["supervisor"]) >= 2) == ("info", True)
    scope.cancel()


# ------------------------------------------------------------------------------------------------ calls without await


@pytest.mark.parametrize("call", ["submit", "emit", "once", "progress"])
async def test_a_forgotten_await_fails_by_name(team: LocalTeam, log: Log, call: str) -> None:
    """The attempt fails, and its reason names the call and what to write; the log has the line of the call."""
    agent = Agent("forgetful")

    @agent.skill(max_attempts=1)
    async def work(ctx: TaskContext) -> str:
        calls: dict[str, Callable[[], object]] = {
            "submit": lambda: ctx.submit("work"),  # forgotten: submit
            "emit": lambda: ctx.emit({"text": "lost"}),  # forgotten: emit
            "once": lambda: ctx.once("pay", print),  # forgotten: once
            "progress": lambda: ctx.progress(1),  # forgotten: progress
        }
        calls[call]()
        return "done"

    await _run(team, agent, "work")
    (line,) = await _lines(log, 1, "task_failed")
    assert f"ctx.{call}() was called without await" in line["reason"]
    assert f"await ctx.{call}(" in line["reason"]
    source = line_of(test_a_forgotten_await_fails_by_name, f"# forgotten: {call}")
    assert f"{HERE}:{source}".endswith(line["where"])


async def test_awaited_calls_succeed(team: LocalTeam, log: Log) -> None:
    """The twin: awaited, gathered, closed and cancelled calls are no mistake, also more than are remembered."""
    agent = Agent("careful")

    @agent.skill(max_attempts=1)
    async def work(ctx: TaskContext) -> str:
        await ctx.emit(0)
        await asyncio.gather(ctx.emit(1), ctx.progress(1), ctx.once("pay", str))
        ctx.emit(2).close()
        cancelled = asyncio.create_task(ctx.emit(3))
        cancelled.cancel()
        await asyncio.wait([cancelled])
        for _ in range(600):
            await ctx.heartbeat()
        await asyncio.gather(*[ctx.heartbeat() for _ in range(600)])
        return "done"

    await team.work(agent)
    assert await (await team.orc.submit("work")).result(WAIT_S) == "done"
    assert log.lines("task_failed", "attempt_failed") == []


async def test_a_call_in_a_task_that_just_started_is_no_mistake(team: LocalTeam, log: Log) -> None:
    """A call that a handler hands to a task right before it returns begins all the same, and is not judged before."""
    agent, begun = Agent("hasty"), list[object]()

    @agent.skill(max_attempts=1)
    async def work(ctx: TaskContext) -> str:
        begun.append(asyncio.create_task(ctx.emit("last words")))
        return "done"

    await team.work(agent)
    handle = await team.orc.submit("work")
    assert await handle.result(WAIT_S) == "done"
    assert len(begun) == 1
    assert log.lines("task_failed", "attempt_failed") == []


async def test_a_handler_that_ignored_its_end_is_judged(team: LocalTeam, log: Log) -> None:
    """A handler that swallows the cancellation at its time limit and forgets an await gets its verdict at once."""
    agent = Agent("stubborn")

    @agent.skill(max_attempts=1, timeout=0.2)
    async def work(ctx: TaskContext) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(WAIT_S)
        ctx.emit("lost")  # type: ignore[unused-coroutine]  # the mistake
        return "done"

    await _run(team, agent, "work")
    assert "ctx.emit() was called without await" in (await _lines(log, 1, "task_failed"))[0]["reason"]


async def test_a_thread_that_cannot_await_is_told(team: LocalTeam, log: Log) -> None:
    """A `def` handler that calls `ctx.emit` gets the same reason."""
    agent = Agent("forgetful")

    @agent.skill(max_attempts=1)
    def work(ctx: TaskContext) -> str:
        ctx.emit("lost")  # type: ignore[unused-coroutine]  # the mistake
        return "done"

    await _run(team, agent, "work")
    assert "ctx.emit() was called without await" in (await _lines(log, 1, "task_failed"))[0]["reason"]
