"""`Team`: supervisor, workers and a client in the tasks of a test, on a real Redis."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack, overload

import anyio

from orchestrator.core.durations import to_ms, to_seconds
from orchestrator.core.errors import InvalidInput, OrchestratorError, TaskFailed
from orchestrator.tasks import queries
from orchestrator.testing.draining import Drain
from orchestrator.testing.event_loop import check_event_loop
from orchestrator.testing.submitted import (
    Submitted,
    check_not_submitted,
    check_submitted,
    select,
    wanted,
)
from orchestrator.testing.temporary_pool import (
    TemporaryPool,
    new_prefix,
    open_temporary_pool,
    remove_keys,
    temporary_settings,
)
from orchestrator.testing.temporary_server import temporary_server
from orchestrator.workers.testing.scripted_record import UNANSWERED, answer_to, check_answers
from orchestrator.workers.testing.worker_pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.durations import Duration
    from orchestrator.core.settings import Settings
    from orchestrator.tasks.options import TaskOptions
    from orchestrator.tasks.submission import Arguments, NamedSkill, TypedSkill
    from orchestrator.workers.agent import Agent
    from orchestrator.workers.testing.crashes import Crash, Step
    from orchestrator.workers.testing.scripted_record import ScriptedAnswers

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
LEAVE_WITHIN_S: Final = 0.2
"""Time that cancelled asyncio tasks have to end."""
AT_MOST: Final = 1000


class Team:
    """Supervisor, workers and a client in the tasks of this process, on a real Redis. Use it in an `async with` block.

    Heartbeats are short, and retries have no back-off unless their skill has a fixed one, so that tests do not wait.

    Args:
        agents: agents that every worker hosts.
        url: URL of a running Redis; by default the team starts one for the block, which takes some 20 ms.
        prefix: namespace of the keys; by default a new one, whose keys are removed at the end.
        workers: number of workers, each of which acts as one process.
        settings: changed settings by dotted name, such as `{"limits": {"model": "10/s"}, "queue.max_tasks": 3}`.
    """

    def __init__(
        self,
        *agents: Agent,
        url: str | None = None,
        prefix: str | None = None,
        workers: int = 1,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._agents, self._url, self._workers, self._changed = agents, url, workers, settings
        self._prefix, self._owns_keys = prefix or new_prefix(), prefix is None
        self._stack = AsyncExitStack()
        self._opened: tuple[TemporaryPool, WorkerPool] | None = None
        self._before = frozenset[asyncio.Task[Any]]()
        self.leaks: tuple[str, ...] = ()
        """Asyncio tasks that started in the block and still run after it, a line each."""

    def __repr__(self) -> str:
        return f"Team({', '.join(repr(agent) for agent in self._agents)})"

    # ------------------------------------------------------------------------------------------------ life cycle

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise OrchestratorError("this team is open already; make another one")
        check_event_loop()
        self._before = frozenset(asyncio.all_tasks())
        async with AsyncExitStack() as stack:
            # Not in a thread, because the server ends with the thread that started it.
            url = self._url or stack.enter_context(temporary_server())
            settings = temporary_settings(url, self._prefix, self._changed)
            if self._owns_keys and self._url is not None:
                stack.callback(remove_keys, settings)
            pool = await stack.enter_async_context(open_temporary_pool(settings))
            worker_pool = WorkerPool(pool)
            stack.push_async_callback(worker_pool.stop_all)
            if self._agents:
                for _ in range(self._workers):
                    await worker_pool.start_worker(self._agents)
            self._opened = pool, worker_pool
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        not_happened = self._parts[1].plan.not_happened()
        self._opened = None
        swallowed = await self._stack.__aexit__(kind, error, trace)
        if error is None:
            self.leaks = await _left_running(self._before)
            if not_happened:
                told = "; ".join(
                    f"the {crash} did not happen, the step was reached {crash.seen}x" for crash in not_happened
                )
                raise AssertionError(f"this test proves nothing: {told}")
        return swallowed

    @property
    def is_open(self) -> bool:
        """True inside the `async with` block."""
        return self._opened is not None

    @property
    def _pool(self) -> TemporaryPool:
        return self._parts[0]

    @property
    def _parts(self) -> tuple[TemporaryPool, WorkerPool]:
        if self._opened is None:
            raise OrchestratorError("this team does not run; use it inside `async with Team(...) as team:`")
        return self._opened

    @property
    def orc(self) -> Orchestrator:
        """Client of the team."""
        return self._pool.orc

    @property
    def settings(self) -> Settings:
        """All settings, for code under test that opens its own client: `Orchestrator(settings=team.settings)`."""
        return self._pool.settings

    # ------------------------------------------------------------------------------------------------------ work

    @overload
    async def run(
        self,
        skill: TypedSkill[T],
        args: Arguments = None,
        *,
        within: Duration = TIMEOUT_S,
        skip_time: bool = False,
        answers: ScriptedAnswers = (),
        **options: Unpack[TaskOptions],
    ) -> T: ...

    @overload
    async def run(
        self,
        skill: str | NamedSkill,
        args: Arguments = None,
        *,
        within: Duration = TIMEOUT_S,
        skip_time: bool = False,
        answers: ScriptedAnswers = (),
        **options: Unpack[TaskOptions],
    ) -> Any: ...

    async def run(
        self,
        skill: Any,
        args: Arguments = None,
        *,
        within: Duration = TIMEOUT_S,
        skip_time: bool = False,
        answers: ScriptedAnswers = (),
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Submit a task, wait for its end, and return its result.

        Args:
            skill: name of the handler, or the skill itself, which types the result.
            args: its arguments.
            within: seconds or timedelta of real time that this may take.
            skip_time: move time whenever all remaining tasks wait for it, as `drain` does.
            answers: answers to the questions of this task: a list in their order, a mapping by their text, or a
                function of the text. A `TimeoutError` or a missing answer leaves the question to its deadline.
            options: options of `Orchestrator.submit`.

        Raises:
            TaskFailed, TaskCancelled, TaskExpired: the task ended without a result; a note has the last traceback.
            TimeoutError: it has not ended; the message lists the remaining tasks.
            AssertionError: it can never start.
        """
        __tracebackhide__ = True
        check_answers(answers)
        pool = self._pool
        handle = await pool.orc.submit(skill, args, **options)

        async def ended() -> bool:
            if answers:
                await _answer(handle, answers)
            return handle.id in await queries.outcomes(pool.services.store, [handle.id])

        await self._drain(skip_time=skip_time, at_most=AT_MOST).run(to_seconds("within", within), until=ended)
        try:
            return await handle.result(TIMEOUT_S)
        except TaskFailed as failed:
            for traceback in failed.errors[-1:]:
                failed.add_note(f"The handler's last traceback:\n{traceback}")
            # Frames of the client do not help the author of the test.
            raise failed.with_traceback(None) from None

    async def drain(self, timeout: Duration = TIMEOUT_S, *, skip_time: bool = False, at_most: int = AT_MOST) -> None:
        """Wait until no task is ready, assigned or running.

        Scheduled, snoozed and later retried tasks stay, unless `skip_time` is set.

        Args:
            timeout: seconds or timedelta of real time that this may take.
            skip_time: move time whenever a task waits for a time or for a rate limit, and only parents that wait for
                their children run, until no task is left.
            at_most: limit of started attempts, which detects agents that submit without end.

        Raises:
            TimeoutError: it took longer; the message lists the remaining tasks.
            AssertionError: more attempts were started, or the remaining tasks can never start.
        """
        __tracebackhide__ = True
        await self._drain(skip_time=skip_time, at_most=at_most).run(to_seconds("timeout", timeout))

    def _drain(self, *, skip_time: bool, at_most: int) -> Drain:
        pool, worker_pool = self._parts
        return Drain(
            pool,
            skip_time=skip_time,
            at_most=at_most,
            all_registered=lambda: worker_pool.all_registered,
            awaited=worker_pool.awaited,
        )

    async def advance(
        self,
        by: str | float | timedelta = 0,
        /,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Move time for waiting tasks: scheduled, retried and snoozed ones, `start_by`, rate limits, providers.

        When this returns, due tasks are ready or expired; `drain` runs them. It does not move times that a handler or
        a worker measures itself (timeouts, leases), nor the retention of records.

        Args:
            by: `"1h 30min"`, seconds or timedelta.
            days: added to `by`, as are `hours`, `minutes` and `seconds`.
            hours: see `days`.
            minutes: see `days`.
            seconds: see `days`.

        Raises:
            InvalidInput: the time span is invalid.
        """
        await self._pool.advance(span_ms(by, days=days, hours=hours, minutes=minutes, seconds=seconds))

    def crash(self, skill: str | NamedSkill, at: Step, *, nth: int = 1) -> Crash:
        """Plan a crash: the worker that runs a task of `skill` crashes at a step, and the team replaces it.

        It does not deregister and stores no verdict. As after a kill that its host saw, its tasks have one more death
        and run again at once. If the crash has not happened by the end of the block, the block fails.

        Args:
            skill: name of the handler, or the skill itself.
            at: `start` (the handler has not begun), `submit`, `progress`, `emit` (Redis has it, the handler does not
                know it), `result` (the handler has returned, nothing is stored) or `stored` (the verdict is stored, the
                worker does not know it).
            nth: number of the occurrence of the step, counted from now over all tasks of the skill.

        Returns:
            The crash; its `happened` becomes true when the worker crashes.

        Raises:
            InvalidInput: there is no such step, or `nth` is below 1.
        """
        return self._parts[1].plan.add(skill if isinstance(skill, str) else skill.name, at, nth)

    # ------------------------------------------------------------------------------------------ what was submitted

    def submitted(
        self, skill: str | NamedSkill | None = None, *, args: Arguments = None, session: str | None = None
    ) -> list[Submitted]:
        """Return the tasks that were submitted so far, by any client, in order, including children.

        Args:
            skill: only tasks of this skill.
            args: only tasks whose arguments contain these values; a task may have further arguments.
            session: only tasks of this session.
        """
        return select(self._pool.submitted(), wanted(skill, args, session))

    def assert_submitted(
        self,
        skill: str | NamedSkill | None = None,
        *,
        args: Arguments = None,
        session: str | None = None,
        times: int | None = None,
    ) -> list[Submitted]:
        """Check that such a task was submitted; see `submitted` for the arguments.

        Args:
            skill: see `submitted`.
            args: see `submitted`.
            session: see `submitted`.
            times: exact number of tasks; by default at least one.

        Returns:
            The matching tasks.

        Raises:
            AssertionError: no, or not as many, such tasks; the message lists the submitted ones.
        """
        __tracebackhide__ = True
        return check_submitted(self._pool.submitted(), wanted(skill, args, session), times=times)

    def assert_not_submitted(
        self, skill: str | NamedSkill | None = None, *, args: Arguments = None, session: str | None = None
    ) -> None:
        """Check that no such task was submitted; see `submitted` for the arguments.

        Raises:
            AssertionError: such a task was submitted; the message lists them.
        """
        __tracebackhide__ = True
        check_not_submitted(self._pool.submitted(), wanted(skill, args, session))


async def _answer(handle: TaskHandle[Any], answers: ScriptedAnswers) -> None:
    """Answer the current question of a task, if there is an answer."""
    found = (await handle.status()).detail
    if found.number is None or found.question is None:
        return
    answer = answer_to(answers, found.number, found.question)
    if answer is not UNANSWERED and not isinstance(answer, TimeoutError):
        await handle.answer(answer, question=found.number, actor="a test")


async def _left_running(before: frozenset[asyncio.Task[Any]]) -> tuple[str, ...]:
    deadline_s = time.monotonic() + LEAVE_WITHIN_S
    while True:
        left = [task for task in asyncio.all_tasks() - before if not task.done()]
        if not left or time.monotonic() >= deadline_s:
            return tuple(f"asyncio task {task.get_name()!r}: {task.get_coro()!r}" for task in left)
        await anyio.sleep(0.005)


_UNITS: Final = {
    "ms": "milliseconds", "s": "seconds", "min": "minutes", "m": "minutes", "h": "hours", "d": "days", "w": "weeks",
}  # fmt: skip
_PART: Final = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})(?![a-z])")


def span_ms(by: str | float | timedelta, **parts: float) -> int:
    """Read a span as milliseconds.

    Args:
        by: see `Team.advance`.
        parts: days, hours, minutes, seconds to add.

    Raises:
        InvalidInput: the span is invalid, negative or zero.
    """
    span = _read(by) if isinstance(by, str) else by
    total_ms = to_ms("time to move", span) + to_ms("time to move", timedelta(**parts))
    if total_ms == 0:
        raise InvalidInput('say how far time moves: "1h", 90 (seconds), timedelta(hours=1), or hours=1')
    return total_ms


def _read(text: str) -> timedelta:
    total, at = timedelta(), 0
    while part := _PART.match(text, at):
        total += timedelta(**{_UNITS[part[2]]: float(part[1])})
        at = part.end()
    if at == 0 or text[at:].strip():
        raise InvalidInput(f'{text!r} is no span of time; write it as "90s", "10min", "1h 30min", "2d" or "1w"')
    return total
