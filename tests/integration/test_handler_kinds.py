"""Handlers in threads and in processes."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from anyio import from_thread

from orchestrator import Agent, Reject, Retry, TaskContext
from orchestrator.core.errors import ConfigError, TaskCancelled, TaskFailed
from orchestrator.core.settings import Settings
from orchestrator.tasks.model import TaskState
from orchestrator.workers.runtime.calling import HandlerCaller
from orchestrator.workers.runtime.process_starter import ProcessStarter
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.process_handlers import Point, cruncher, give_up, run_program, swap
from tests.helpers.subprocesses import alive
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator.client.handle import TaskHandle
    from tests.helpers.local_team import LocalTeam

PROCESS_TIMEOUT_S = 20.0
"""A process has to be started first, and the machine is shared."""


# ----------------------------------------------------------------------------------------------------------- threads


async def test_a_plain_def_runs_in_a_thread_of_its_own(team: LocalTeam) -> None:
    """It may block: the event loop turns meanwhile, and its value is the result."""
    agent = Agent("blocker")

    @agent.skill
    def work(ctx: TaskContext, text: str) -> dict[str, Any]:
        return {"text": text.upper(), "main": threading.current_thread() is threading.main_thread(), "try": ctx.attempt}

    await team.work(agent)
    handle = await team.orc.submit(work, {"text": "hello"})
    assert await handle.result(TIMEOUT_S) == {"text": "HELLO", "main": False, "try": 1}


async def test_every_slot_has_a_thread(team: LocalTeam) -> None:
    """As many plain handlers block at once as the agent has slots, however many that is."""
    agent, together = Agent("blocker", concurrency=60), threading.Barrier(60)

    @agent.skill
    def work() -> int:
        return together.wait(TIMEOUT_S)

    await team.work(agent)
    handles = [await team.orc.submit(work) for _ in range(60)]
    assert sorted([await handle.result(TIMEOUT_S) for handle in handles]) == list(range(60))


async def test_a_thread_decides_how_its_attempt_ends(team: LocalTeam) -> None:
    """Signals and failures of a plain handler mean what they mean elsewhere."""
    agent = Agent("blocker")

    @agent.skill
    def work(ctx: TaskContext, how: str) -> str:
        if how == "reject":
            raise Reject("no")
        if ctx.attempt == 1:
            raise Retry(delay=0) if how == "retry" else ValueError("broken")
        if how == "exit":
            raise SystemExit(3)
        return f"attempt {ctx.attempt}"

    await team.work(agent)
    assert await (await team.orc.submit(work, {"how": "retry"})).result(TIMEOUT_S) == "attempt 2"
    assert await (await team.orc.submit(work, {"how": "fail"})).result(TIMEOUT_S) == "attempt 2"
    for how, told in (("reject", "no"), ("exit", "SystemExit: 3")):
        with pytest.raises(TaskFailed, match=told):
            await (await team.orc.submit(work, {"how": how})).result(TIMEOUT_S)


async def test_a_thread_sees_that_its_task_was_cancelled(team: LocalTeam) -> None:
    """A thread cannot be stopped; one that looks at `ctx.cancelled` ends by itself, and its task is cancelled."""
    agent, started, seen = Agent("blocker"), threading.Event(), threading.Event()

    @agent.skill
    def work(ctx: TaskContext) -> None:
        started.set()
        while not ctx.cancelled:
            from_thread.run(ctx.heartbeat)
            time.sleep(0.01)
        seen.set()
        raise InterruptedError("told to stop")

    await team.work(agent)
    handle = await team.orc.submit(work)
    await wait_for(started.is_set, "the start")
    await handle.cancel("enough")
    with pytest.raises(TaskCancelled, match="enough"):
        await handle.result(TIMEOUT_S)
    assert seen.is_set()


async def test_a_thread_that_never_returns_is_left_behind(team: LocalTeam) -> None:
    """Its attempt fails when its grace is over, the only slot is free again, and the worker goes on and ends."""
    agent, release, left = Agent("blocker", concurrency=1), threading.Event(), threading.Event()

    @agent.skill(timeout=0.1, max_attempts=1)
    def work() -> None:
        release.wait(30)
        left.set()

    @agent.skill
    def other() -> str:
        return "done"

    await team.work(agent, worker__grace_s=0.1)
    try:
        handles = [await team.orc.submit(work) for _ in range(3)]
        for handle in handles:
            with pytest.raises(TaskFailed, match=r"longer than its timeout of 0.1 s, and its handler did not stop"):
                await handle.result(TIMEOUT_S)
        assert await (await team.orc.submit(other)).result(TIMEOUT_S) == "done"
        assert not left.is_set()
    finally:
        release.set()


async def test_a_task_that_died_does_not_wait_for_a_handler_that_was_left_behind(team: LocalTeam) -> None:
    """Tasks with a death behind them run one at a time; one whose handler never ends keeps the next out no longer."""
    agent, release = Agent("stubborn", concurrency=2), anyio.Event()

    @agent.skill(timeout=0.1, max_attempts=1)
    async def work() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    @agent.skill
    async def other() -> str:
        return "done"

    async def submit_dead(skill: Any) -> TaskHandle[Any]:
        handle = await team.orc.submit(skill)
        await team.services.store.execute("HSET", team.services.keys.task(handle.id), "deaths", 1, "death:1", "1 w how")
        return handle

    handles = [await submit_dead(skill) for skill in (work, other)]
    await team.work(agent, worker__grace_s=0.1)
    try:
        with pytest.raises(TaskFailed, match="its handler did not stop"):
            await handles[0].result(TIMEOUT_S)
        assert await handles[1].result(TIMEOUT_S) == "done"
    finally:
        release.set()


async def test_a_worker_ends_although_a_thread_does_not(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """What still runs when the drain is over goes back without burning an attempt."""
    monkeypatch.setattr("orchestrator.workers.runtime.worker.FLUSH_TIMEOUT_S", 0.2)
    agent, started, release = Agent("blocker"), threading.Event(), threading.Event()

    @agent.skill
    def work(ctx: TaskContext) -> int:
        if not started.is_set():
            started.set()
            release.wait(30)
        return ctx.attempt

    worker = await team.work(agent, worker__drain_s=0.1)
    handle = await team.orc.submit(work)
    try:
        await wait_for(started.is_set, "the start")
        with anyio.fail_after(TIMEOUT_S):
            await team.stop(worker)
        assert (await handle.status()).state is TaskState.READY
        await team.work(agent)
        assert await handle.result(TIMEOUT_S) == 1
    finally:
        release.set()


# -------------------------------------------------------------------------------------------- decorated functions


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them: a plain `def` around whatever it is given."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


async def test_a_function_may_be_a_skill_of_several_agents(team: LocalTeam) -> None:
    """Each decorator makes a skill of the function itself."""
    fast, slow = Agent("fast"), Agent("slow")

    @fast.skill
    @slow.skill(name="slow-work")
    async def work(ctx: TaskContext) -> str:
        return ctx.agent

    await team.work(fast, slow)
    assert [await (await team.orc.submit(name)).result(TIMEOUT_S) for name in ("work", "slow-work")] == [
        "fast",
        "slow",
    ]


async def test_an_async_def_under_a_plain_decorator_is_awaited(team: LocalTeam) -> None:
    """It looks like a `def`, but what it returns is awaited in the event loop, and cancelled there."""
    agent = Agent("wrapped")

    @agent.skill(timeout=0.2, max_attempts=1)
    @traced
    async def work(seconds: float) -> bool:
        await anyio.sleep(seconds)
        return threading.current_thread() is threading.main_thread()

    await team.work(agent)
    assert await (await team.orc.submit("work", {"seconds": 0})).result(TIMEOUT_S) is True
    with pytest.raises(TaskFailed, match=r"longer than its timeout of 0\.2 s$"):
        await (await team.orc.submit("work", {"seconds": 60})).result(TIMEOUT_S)


# --------------------------------------------------------------------------------------------------------- processes


def test_a_handler_that_its_process_would_not_find_stops_the_worker() -> None:
    """Not another function that has its name by now: the worker does not start."""
    settings = Settings()
    agent = Agent("cruncher")
    agent.skill(name="decorated", process=True)(traced(cast("Any", swap.handler)))
    with pytest.raises(ConfigError, match=r"process_handlers\.swap is another function"):
        HandlerCaller(agent, settings=settings, starter=ProcessStarter(settings))
    HandlerCaller(cruncher, settings=settings, starter=ProcessStarter(settings))


async def test_a_process_handler_gets_and_returns_its_types(team: LocalTeam) -> None:
    """Models arrive as models and come back as models; other arguments have their defaults."""
    await team.work(cruncher)
    handle = await team.orc.submit(swap, {"point": {"x": 1, "y": 2}})
    assert await handle.result(PROCESS_TIMEOUT_S) == Point(x=2, y=1)
    with pytest.raises(TaskFailed, match=r"arguments do not fit 'swap': point.x"):
        await (await team.orc.submit("swap", {"point": {"x": "much"}})).result(PROCESS_TIMEOUT_S)
    assert swap(Point(x=1, y=2)) == Point(x=2, y=1)


async def test_processes_are_kept_and_end_with_the_worker(team: LocalTeam) -> None:
    """One after another runs in the same process, which is not ours and is gone when the worker is."""
    worker = await team.work(cruncher)
    answers = [await (await team.orc.submit("where")).result(PROCESS_TIMEOUT_S) for _ in range(3)]
    pids = {answer["pid"] for answer in answers} | {await (await team.orc.submit("wait_there")).result(TIMEOUT_S)}
    assert len(pids) == 1
    assert os.getpid() not in pids
    await team.stop(worker)
    (pid,) = pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


CRASHES = {"exit": "exit status 3", "kill": "signal SIGKILL", "fault": "signal SIGSEGV", "orphan": "exit status 4"}


async def test_what_a_process_prints_appears_at_once(
    team: LocalTeam, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A printed line is there when the task has ended, and not only at the end of the process, which lives on."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    await team.work(cruncher)
    pid = await (await team.orc.submit("talk", {"text": "printed by a process"})).result(PROCESS_TIMEOUT_S)
    assert "printed by a process\n" in capfd.readouterr().out
    assert alive(pid)


async def test_the_crash_of_a_process_is_one_failed_attempt(team: LocalTeam, tmp_path: Path) -> None:
    """It is told how, the next attempt gets a fresh process, and a neighbour's call is not disturbed."""
    await team.work(cruncher)
    neighbour = await team.orc.submit("hold", {"marker": str(tmp_path / "neighbour")})
    for how, told in CRASHES.items():
        handle = await team.orc.submit("crash", {"how": how, "marker": str(tmp_path / how)})
        assert await handle.result(PROCESS_TIMEOUT_S) == "second", how
        info = await handle.info()
        assert (info.attempts, info.deaths) == (2, ()), how
        assert f"the process of the handler died before it returned a result: {told}" in info.errors[0]
        assert (await neighbour.status()).state is TaskState.RUNNING, how
    await neighbour.cancel()


async def test_a_process_that_takes_too_long_is_killed(team: LocalTeam, tmp_path: Path) -> None:
    """Code that holds the interpreter for ever is stopped on time; so is one whose task is cancelled."""
    await team.work(cruncher)
    with pytest.raises(TaskFailed, match="longer than its timeout"):
        await (await team.orc.submit("spin")).result(PROCESS_TIMEOUT_S)
    handle = await team.orc.submit(run_program, {"pid_file": str(tmp_path / "pids")})
    pids = await started(tmp_path / "pids")
    assert all(map(alive, pids))
    await handle.cancel("enough")
    with pytest.raises(TaskCancelled, match="enough"):
        await handle.result(TIMEOUT_S)
    assert not alive(pids[0])
    await gone(pids)


async def test_what_a_handler_started_ends_with_its_process(team: LocalTeam, tmp_path: Path) -> None:
    """The programs of a handler are killed with its process; those of one that returned live as long as the process."""
    worker = await team.work(cruncher)
    await (await team.orc.submit("where")).result(PROCESS_TIMEOUT_S)  # the import counts against the timeout
    for end, timeout_s in (("wait", 0.5), ("crash", None), ("return", None)):
        file = tmp_path / end
        handle = await team.orc.submit(run_program, {"pid_file": str(file), "then": end}, timeout=timeout_s)
        pids = await started(file)
        if end == "return":
            assert await handle.result(PROCESS_TIMEOUT_S) == pids
            assert all(map(alive, pids))
            await team.stop(worker)
        else:
            with pytest.raises(TaskFailed):
                await handle.result(PROCESS_TIMEOUT_S)
        await gone(pids)


async def started(file: Path) -> list[int]:
    """Wait for the program of a handler, and answer the ids of the handler's process and of the program."""
    await wait_for(file.exists, "the program", PROCESS_TIMEOUT_S)
    pids: list[int] = json.loads(await anyio.Path(file).read_text())
    return pids


async def gone(pids: list[int]) -> None:
    """Wait until none of these processes runs."""
    await wait_for(lambda: not any(map(alive, pids)), "the end of process and program")


ENDS = {
    "retry": "once more",
    "reject": "not like this",
    "raise": "ValueError: broken there",
    "leave": "SystemExit: left",
    "unreadable": r"Unreadable: \(its str\(\) raised\)",
    "unpicklable": "does not fit its type or JSON",
    "lambda": "does not fit its type or JSON",
    "large": "would be 2097154 bytes of JSON, more than the 1048576 allowed",
}


async def test_every_end_of_a_process_handler_is_told(team: LocalTeam) -> None:
    """Signals, failures and results that cannot be kept come back as what they are; the process stays."""
    await team.work(cruncher)
    pids = {(await (await team.orc.submit("where")).result(PROCESS_TIMEOUT_S))["pid"]}
    for how, told in ENDS.items():
        handle = await team.orc.submit("end", {"how": how})
        with pytest.raises(TaskFailed, match=told) as failed:
            await handle.result(PROCESS_TIMEOUT_S)
        if how == "raise":
            assert "in end" in failed.value.errors[0]  # the traceback from over there
        pids.add((await (await team.orc.submit("where")).result(PROCESS_TIMEOUT_S))["pid"])
        assert len(pids) == 1, f"{how} ended the process"
    assert await (await team.orc.submit("end", {"how": "noisy"})).result(PROCESS_TIMEOUT_S) == "quiet"


async def test_a_process_handler_may_snooze(team: LocalTeam) -> None:
    """Its wish travels: the task is scheduled, no attempt counted."""
    await team.work(cruncher)
    handle = await team.orc.submit("end", {"how": "snooze"})

    async def scheduled() -> bool:
        return (await handle.status()).state is TaskState.SCHEDULED

    await wait_for(scheduled, "the snooze", PROCESS_TIMEOUT_S)
    info = await handle.info()
    assert (info.attempts, info.reason) == (0, "tomorrow")


async def test_a_policy_knows_the_exceptions_of_a_process(team: LocalTeam) -> None:
    """By the names of their classes, also of a class above the one that was raised."""
    await team.work(cruncher)
    handle = await team.orc.submit(give_up)
    with pytest.raises(TaskFailed, match="Hopeless: not again; not retried: give_up_on has ValueError") as failed:
        await handle.result(PROCESS_TIMEOUT_S)
    assert len(failed.value.errors) == 1
