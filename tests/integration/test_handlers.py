"""What handlers may do, and what becomes of their attempts."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import logging
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import anyio
import pytest
import structlog

from orchestrator import Agent, Reject, Retry, Snooze, TaskContext
from orchestrator.core.errors import TaskCancelled, TaskFailed
from orchestrator.core.log import configure_logging
from orchestrator.tasks.model import CancelStatus, TaskState
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.helpers.local_team import LocalTeam


# ---------------------------------------------------------------------------------------------------- ends of attempts


async def test_arguments_that_do_not_fit_are_a_dead_letter_at_once(team: LocalTeam) -> None:
    """The handler is not run, nothing is retried, and the reason names the argument."""
    agent, runs = Agent("strict"), []

    @agent.skill(max_attempts=5)
    async def work(size: int) -> None:
        runs.append(size)

    handle = await team.orc.submit("work", {"size": "large", "more": 1})
    listed = await team.orc.submit("work", {f"argument{number}": number for number in range(2000)})
    await team.work(agent)
    with pytest.raises(TaskFailed, match=r"size: Input should be a valid integer.*; more: Extra inputs") as failed:
        await handle.result(TIMEOUT_S)
    assert (len(failed.value.errors), runs) == (1, [])
    with pytest.raises(TaskFailed) as failed:
        await listed.result(TIMEOUT_S)
    assert len(failed.value.reason) <= 500
    assert len(failed.value.errors[0]) < 10_000


async def test_failures_are_retried_until_the_attempts_are_used_up(team: LocalTeam) -> None:
    """Attempts count 1, 2, 3; every error is kept in order; the last one is the reason."""
    agent, attempts = Agent("flaky"), []

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError(f"failure {ctx.attempt}")

    await team.work(agent)
    handle = await team.orc.submit("work")
    with pytest.raises(TaskFailed, match="ValueError: failure 3") as failed:
        await handle.result(TIMEOUT_S)
    assert attempts == [1, 2, 3]
    assert len(failed.value.errors) == 3
    for number, error in enumerate(failed.value.errors, 1):
        assert f"ValueError: failure {number}" in error
        assert "in work" in error  # the traceback
    info = await handle.info()
    assert (info.state, info.attempts, info.errors) == (TaskState.DEAD, 3, failed.value.errors)


async def test_a_task_may_say_how_many_attempts_it_has(team: LocalTeam) -> None:
    """`max_attempts` of the task overrides the skill's, upwards and downwards."""
    agent = Agent("flaky")

    @agent.skill(backoff=0)
    async def work(ctx: TaskContext, good: int) -> int:
        if ctx.attempt < good:
            raise ValueError("not yet")
        return ctx.attempt

    await team.work(agent)
    assert await (await team.orc.submit("work", {"good": 5}, max_attempts=5)).result(TIMEOUT_S) == 5
    with pytest.raises(TaskFailed) as failed:
        await (await team.orc.submit("work", {"good": 2}, max_attempts=1)).result(TIMEOUT_S)
    assert len(failed.value.errors) == 1


async def test_retry_counts_an_attempt_and_waits_as_long_as_it_says(team: LocalTeam) -> None:
    """`Retry(delay)` is a failure with a delay of its own; after the last attempt it is a dead letter."""
    agent, starts = Agent("again"), []

    @agent.skill(max_attempts=2)
    async def work() -> None:
        starts.append(time.monotonic())
        raise Retry(delay=0.3, reason="the door is closed")

    await team.work(agent)
    with pytest.raises(TaskFailed, match="the door is closed") as failed:
        await (await team.orc.submit("work")).result(TIMEOUT_S)
    assert len(failed.value.errors) == len(starts) == 2
    assert 0.29 <= starts[1] - starts[0] < 2


@pytest.mark.parametrize("form", ["delay", "until"])
async def test_snooze_counts_no_attempt(team: LocalTeam, form: str) -> None:
    """A task may snooze more often than it has attempts; each wait is as long as it says."""
    agent, seen = Agent("sleepy"), []

    @agent.skill(max_attempts=1)
    async def work(ctx: TaskContext) -> int:
        seen.append((ctx.attempt, time.monotonic()))
        if len(seen) < 4:
            soon = timedelta(seconds=0.15)
            raise Snooze(soon, reason="later") if form == "delay" else Snooze(until=datetime.now(UTC) + soon)
        return len(seen)

    await team.work(agent)
    handle = await team.orc.submit("work")
    assert await handle.result(TIMEOUT_S) == 4
    assert [attempt for attempt, _ in seen] == [1, 1, 1, 1]
    assert all(0.14 <= after - before < 1.5 for (_, before), (_, after) in pairwise(seen))
    assert (await handle.info()).errors == ()


async def test_a_task_that_snoozes_for_ever_is_a_dead_letter(team: LocalTeam) -> None:
    """After `max_snoozes` of the skill, which the reason names; a retry by an operator counts from 0 again."""
    agent, seen = Agent("sleepy"), []

    @agent.skill(max_snoozes=3)
    async def work() -> None:
        seen.append(1)
        raise Snooze(0, reason="the model is busy")

    await team.work(agent)
    handle = await team.orc.submit("work")
    for runs in (4, 8):
        with pytest.raises(TaskFailed, match=r"snoozed 3 times.*max_snoozes.*the model is busy") as failed:
            await handle.result(TIMEOUT_S)
        assert len(seen) == runs
        info = await handle.info()
        assert (info.state, info.snoozes) == (TaskState.DEAD, 3)
        assert "max_snoozes" in failed.value.errors[-1]
        if runs == 4:
            await handle.retry()


async def test_a_skill_may_allow_any_number_of_snoozes(team: LocalTeam) -> None:
    """They are counted, and a success ends the task."""
    agent, seen = Agent("sleepy"), []

    @agent.skill(max_snoozes=None)
    async def work() -> int:
        seen.append(1)
        if len(seen) < 30:
            raise Snooze(0)
        return len(seen)

    await team.work(agent)
    handle = await team.orc.submit("work")
    assert await handle.result(TIMEOUT_S) == 30
    assert (await handle.info()).snoozes == 29


async def test_reject_is_a_dead_letter_at_once(team: LocalTeam) -> None:
    """However many attempts are left."""
    agent, runs = Agent("picky"), []

    @agent.skill(max_attempts=9)
    async def work() -> None:
        runs.append(1)
        raise Reject("never\nin a hundred years")

    await team.work(agent)
    with pytest.raises(TaskFailed, match="failed: never in a hundred years") as failed:
        await (await team.orc.submit("work")).result(TIMEOUT_S)
    assert (len(runs), failed.value.errors) == (1, ("never\nin a hundred years",))


async def test_waits_between_attempts_stay_below_their_ceiling(team: LocalTeam) -> None:
    """Exponential back-off with full jitter: the record shows a due time between now and the ceiling, spread out."""
    agent = Agent("slow_to_recover", concurrency=40)
    failed_ms: dict[str, float] = {}

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        failed_ms[ctx.task_id] = time.time() * 1000
        raise ValueError("down")

    await team.work(agent, retry__base_s=60, retry__cap_s=100)
    handles = [await team.orc.submit("work") for _ in range(40)]

    async def delays() -> list[float]:
        infos = [await handle.info() for handle in handles]
        known = sorted(info.due_at.timestamp() * 1000 - failed_ms[info.id] for info in infos if info.due_at)
        return known if len(known) == 40 else []

    found = await wait_for(delays, "all to wait for their second attempt")
    assert -50 <= found[0] < 20_000
    assert 40_000 < found[-1] <= 60_500


# ------------------------------------------------------------------------------------------------------ odd exceptions


class MuteError(Exception):
    """An exception whose texts cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class LazyReject(Reject):
    """A signal of a user who forgot to call the base class."""

    def __init__(self) -> None:  # pylint: disable=super-init-not-called
        Exception.__init__(self)


class Rude(BaseException):
    """An exception that is no Exception."""


def _raise_group() -> None:
    raise ExceptionGroup("two", [ValueError("one"), KeyError("other")])


def _raise(error: BaseException) -> Callable[[], None]:
    def thrower() -> None:
        raise error

    return thrower


ODD: dict[str, tuple[Callable[[], None], str]] = {
    "mute": (_raise(MuteError()), "MuteError: .its str.. raised"),
    "surrogate": (_raise(ValueError("half \ud800 of it")), "ValueError: half . of it"),
    "endless": (_raise(ValueError("x" * 1_000_000)), "ValueError: xxx"),
    "system exit": (_raise(SystemExit(3)), "SystemExit: 3"),
    "generator exit": (_raise(GeneratorExit()), "GeneratorExit"),
    "keyboard": (_raise(KeyboardInterrupt()), "KeyboardInterrupt"),
    "cancelled": (_raise(asyncio.CancelledError("by itself")), "CancelledError: by itself"),
    "rude": (_raise(Rude("no manners")), "Rude: no manners"),
    "group": (_raise_group, "ExceptionGroup: two"),
    "stop": (_raise(StopAsyncIteration()), "StopAsyncIteration"),
    "lazy": (_raise(LazyReject()), "failed: $"),
    "surrogate signal": (_raise(Retry(0, reason="half \ud800")), "half"),
}


@pytest.mark.parametrize("name", ODD)
async def test_whatever_a_handler_raises_the_worker_goes_on(team: LocalTeam, name: str) -> None:
    """Exceptions of every kind are failures with a readable reason; the one slot serves the next task."""
    agent = Agent("odd", concurrency=1)
    thrower, told = ODD[name]

    @agent.skill(max_attempts=2, backoff=0)
    async def work() -> None:
        thrower()

    @agent.skill
    async def fine() -> str:
        return "fine"

    await team.work(agent)
    handle = await team.orc.submit("work")
    with pytest.raises(TaskFailed, match=told) as failed:
        await handle.result(TIMEOUT_S)
    assert len(failed.value.errors) == (1 if name == "lazy" else 2)
    assert len(failed.value.reason) <= 500
    assert all(len(error.encode()) < 10_000 for error in failed.value.errors)
    assert await (await team.orc.submit("fine")).result(TIMEOUT_S) == "fine"


async def test_a_snooze_with_an_odd_reason_is_stored(team: LocalTeam) -> None:
    """Half characters in a reason are replaced; the worker's completer is not held up."""
    agent, runs = Agent("odd"), []

    @agent.skill
    async def work() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise Snooze(0, reason="half \ud800")
        return len(runs)

    await team.work(agent)
    assert await (await team.orc.submit("work")).result(TIMEOUT_S) == 2


async def test_a_handler_that_cancels_its_own_task_harms_nobody(team: LocalTeam) -> None:
    """A stray cancellation is swept away: the result stands, slot and neighbours go on."""
    agent = Agent("odd", concurrency=2)

    @agent.skill
    async def stray() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    @agent.skill
    async def neighbour() -> str:
        await anyio.sleep(0.3)
        return "undisturbed"

    await team.work(agent)
    background = await team.orc.submit("neighbour")
    for _ in range(5):
        assert await (await team.orc.submit("stray")).result(TIMEOUT_S) == "done"
    assert await background.result(TIMEOUT_S) == "undisturbed"


async def test_an_envelope_that_cannot_be_read_is_a_dead_letter(team: LocalTeam) -> None:
    """A task whose record was damaged ends with a reason instead of stopping workers."""
    agent = Agent("reader")

    @agent.skill
    async def work() -> str:
        return "read"

    handle = await team.orc.submit("work")
    key = team.services.keys.task(handle.id)
    await team.services.store.execute("HSET", key, "env", b"\xc1 broken")
    await team.work(agent)
    with pytest.raises(TaskFailed, match="its envelope cannot be decoded"):
        await handle.result(TIMEOUT_S)
    assert await (await team.orc.submit("work")).result(TIMEOUT_S) == "read"


# ------------------------------------------------------------------------------------------------ stopping and limits


async def test_a_timeout_is_a_failure_with_retry(team: LocalTeam) -> None:
    """The attempt is cancelled at its deadline and retried; the task's own timeout overrides the skill's."""
    agent, ends = Agent("slow"), []

    @agent.skill(timeout=0.1, backoff=0, max_attempts=2)
    async def work(ctx: TaskContext) -> None:
        assert ctx.deadline is not None
        try:
            await anyio.sleep(30)
        finally:
            ends.append((datetime.now(UTC) - ctx.deadline).total_seconds())

    await team.work(agent)
    with pytest.raises(TaskFailed, match=r"longer than its timeout of 0\.1 s") as failed:
        await (await team.orc.submit("work")).result(TIMEOUT_S)
    assert len(failed.value.errors) == 2
    assert all(-0.05 < late < 1 for late in ends)
    with pytest.raises(TaskFailed, match=r"timeout of 0\.2 s"):
        await (await team.orc.submit("work", timeout=0.2, max_attempts=1)).result(TIMEOUT_S)


async def test_a_cancelled_task_stops_within_a_few_heartbeats(team: LocalTeam) -> None:
    """Cancelling a running task reaches its handler, which sees it in its context; the end is a cancelled task."""
    agent, seen = Agent("slow"), []
    started = anyio.Event()

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        started.set()
        try:
            await anyio.sleep(30)
        finally:
            seen.append(ctx.cancelled)

    await team.work(agent)
    handle = await team.orc.submit("work")
    await started.wait()

    async def running() -> bool:
        return (await handle.status()).state is TaskState.RUNNING

    await wait_for(running, "the task to run")
    asked_s = time.monotonic()
    assert await handle.cancel("changed my mind") is CancelStatus.SIGNALLED
    with pytest.raises(TaskCancelled, match="changed my mind"):
        await handle.result(TIMEOUT_S)
    assert time.monotonic() - asked_s < 2
    assert seen == [True]


async def test_a_handler_may_finish_although_it_was_cancelled(team: LocalTeam) -> None:
    """A handler that shields its end from the cancellation succeeds with what it returns."""
    agent = Agent("thorough")
    started = anyio.Event()

    @agent.skill
    async def work() -> str:
        started.set()
        try:
            await anyio.sleep(30)
        except asyncio.CancelledError:
            return "cleaned up"
        return "slept"

    await team.work(agent)
    handle = await team.orc.submit("work")
    await started.wait()
    await handle.cancel()
    assert await handle.result(TIMEOUT_S) == "cleaned up"


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_handler_that_does_not_stop_is_left_behind(team: LocalTeam, how: str) -> None:
    """After its grace the attempt ends without the handler, whose slot is replaced; its late result changes nothing."""
    agent, release, ends = Agent("stubborn", concurrency=1), anyio.Event(), list[str]()
    started = anyio.Event()

    @agent.skill(timeout=0.1 if how == "timeout" else None, max_attempts=1)
    async def work() -> str:
        started.set()
        with anyio.CancelScope(shield=True):
            await release.wait()
        ends.append("late")
        return "late"

    @agent.skill
    async def fine() -> str:
        return "fine"

    await team.work(agent, worker__grace_s=0.2)
    handle = await team.orc.submit("work")
    await started.wait()
    if how == "cancel":
        await handle.cancel("enough")
        with pytest.raises(TaskCancelled, match="enough"):
            await handle.result(TIMEOUT_S)
    else:
        with pytest.raises(TaskFailed, match=r"timeout of 0\.1 s, and its handler did not stop"):
            await handle.result(TIMEOUT_S)
    for _ in range(3):
        assert await (await team.orc.submit("fine")).result(TIMEOUT_S) == "fine"
    release.set()
    await wait_for(lambda: ends, "the handler to end")
    assert await (await team.orc.submit("fine")).result(TIMEOUT_S) == "fine"
    assert (await handle.info()).result is None


async def test_a_failure_during_a_cancellation_is_the_cancellation(team: LocalTeam) -> None:
    """An error in the clean-up of a cancelled handler does not make the task a failure."""
    agent = Agent("clumsy")
    started = anyio.Event()

    @agent.skill
    async def work() -> None:
        started.set()
        try:
            await anyio.sleep(30)
        finally:
            raise ValueError("fell over")

    await team.work(agent)
    handle = await team.orc.submit("work")
    await started.wait()
    await handle.cancel("stop")
    with pytest.raises(TaskCancelled, match="stop"):
        await handle.result(TIMEOUT_S)


# -------------------------------------------------------------------------------------------------------- surroundings

MARK: contextvars.ContextVar[str] = contextvars.ContextVar("MARK", default="unset")


async def test_context_variables_do_not_leak_between_attempts(team: LocalTeam) -> None:
    """What one handler sets is not seen by the next one in the same slot."""
    agent = Agent("setter", concurrency=1)

    @agent.skill
    async def work(value: str) -> str:
        seen = MARK.get()
        MARK.set(value)
        return seen

    await team.work(agent)
    for number in range(5):
        assert await (await team.orc.submit("work", {"value": str(number)})).result(TIMEOUT_S) == "unset"


@pytest.fixture
def log_lines() -> Iterator[io.StringIO]:
    """Log as JSON into a text for the length of a test."""
    root, stream = logging.getLogger(), io.StringIO()
    level, handlers = root.level, list(root.handlers)
    configure_logging("info", "json", stream)
    yield stream
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


async def test_the_log_is_bound_to_the_attempt(team: LocalTeam, log_lines: io.StringIO) -> None:
    """What a handler logs carries agent, worker, task and attempt."""
    agent = Agent("talker")

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        ctx.log.info("thinking", depth=3)

    worker = await team.work(agent)
    handle = await team.orc.submit("work")
    await handle.result(TIMEOUT_S)
    (line,) = [line for line in log_lines.getvalue().splitlines() if "thinking" in line]
    record = json.loads(line)
    bound = {name: record.get(name) for name in ("event", "depth", "agent", "worker", "task", "attempt")}
    assert bound == {
        "event": "thinking", "depth": 3, "agent": "talker", "worker": worker.id, "task": handle.id, "attempt": 1,
    }  # fmt: skip


async def test_many_slots_run_at_once(team: LocalTeam) -> None:
    """As many attempts run side by side as the agent has slots, and no more."""
    agent, running, most = Agent("busy", concurrency=7), set[str](), [0]
    everybody = anyio.Event()

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        running.add(ctx.task_id)
        most[0] = max(most[0], len(running))
        if len(running) == 7:
            everybody.set()
        with anyio.move_on_after(2):
            await everybody.wait()
        running.discard(ctx.task_id)

    await team.work(agent)
    handles = [await team.orc.submit("work") for _ in range(21)]
    for handle in handles:
        await handle.result(TIMEOUT_S)
    assert most == [7]
