"""Calls handlers in the event loop, in a thread or in a process, through the agent's middleware."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import to_thread

from orchestrator.tracing.active import header_of_current_span
from orchestrator.workers.runtime.handler_processes import HandlerProcesses, check_found_by_name
from orchestrator.workers.skill import HandlerKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from orchestrator.core.live_settings import LiveSettings
    from orchestrator.core.settings import Settings
    from orchestrator.workers.agent import Agent, Middleware
    from orchestrator.workers.context import TaskContext
    from orchestrator.workers.runtime.attempt import Attempt
    from orchestrator.workers.runtime.process_starter import ProcessStarter
    from orchestrator.workers.skill import Skill


_LOOP: Final = HandlerKind.LOOP
"""The usual kind. A look-up of a member of an enum takes 0.1 µs on Python 3.11."""


@dataclass(frozen=True, slots=True)
class Serialised:
    """A result that a handler's process has encoded as JSON."""

    json: bytes


class HandlerCaller:
    """Calls the handlers of one agent. Each attempt has a slot, so the slots limit the threads and processes.

    A thread cannot be stopped from outside. An abandoned handler keeps its thread, and the next attempt gets another.
    One that waits for a child keeps its thread too, and its slot goes to another attempt.

    Raises:
        ConfigError: a `process=True` handler cannot be imported by name.
    """

    def __init__(self, agent: Agent, *, settings: Settings | LiveSettings, starter: ProcessStarter) -> None:
        for skill in agent.skills.values():
            if skill.kind is HandlerKind.PROCESS:
                check_found_by_name(skill)
                starter.add(skill)
        self._middleware: Sequence[Middleware] = agent.middleware
        self._threads = anyio.CapacityLimiter(math.inf)
        self._processes = HandlerProcesses(settings, starter)

    def call(self, attempt: Attempt) -> Awaitable[Any]:
        """Call the handler of a prepared attempt.

        Returns:
            An awaitable of what the handler returned, or of `Serialised`.
        """
        run: Callable[[], Awaitable[Any]]
        skill = attempt.skill
        if skill.kind is _LOOP:
            if not self._middleware:
                return skill.handler(**attempt.values)
            run = partial(skill.handler, **attempt.values)
        elif skill.kind is HandlerKind.THREAD:
            run = partial(self._in_thread, attempt)
        else:
            run = partial(self._in_process, attempt)
        if not self._middleware:
            return run()
        assert attempt.context is not None
        return self._through_middleware(0, attempt.context, run)

    async def _in_thread(self, attempt: Attempt) -> Any:
        # The attempt has not ended while its handler runs, so the shield makes a cancelled slot wait for the thread.
        # When the handler ignores the cancellation for its grace, the slot leaves by cancelling the shield.
        run, value = partial(attempt.skill.handler, **attempt.values), None
        with anyio.CancelScope(shield=True) as shield:
            attempt.leave_thread = shield.cancel
            value = await to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._threads)
        # A plain `def` that decorates an `async def` returns a coroutine.
        return await value if inspect.isawaitable(value) else value

    def begins_later(self, skill: Skill[Any, Any]) -> bool:
        """Return whether the user's code begins only when a process has imported the handler."""
        return skill.kind is not _LOOP and skill.kind is HandlerKind.PROCESS and not self._middleware

    async def _in_process(self, attempt: Attempt) -> Any:
        skill = attempt.skill
        may_begin = attempt.begin if self.begins_later(skill) else None
        trace = header_of_current_span(otherwise=attempt.envelope.trace)
        data = await self._processes.run(skill, attempt.envelope.args, may_begin=may_begin, trace=trace)
        # A middleware gets the value; without one, the worker stores the bytes.
        return skill.read_result(data) if self._middleware else Serialised(data)

    async def _through_middleware(self, index: int, context: TaskContext, run: Callable[[], Awaitable[Any]]) -> Any:
        if index == len(self._middleware):
            return await run()

        async def call_next(_: TaskContext | None = None, /) -> Any:
            return await self._through_middleware(index + 1, context, run)

        return await self._middleware[index](context, call_next)

    async def close(self) -> None:
        """End the idle processes and kill the busy ones."""
        await self._processes.close()
