"""Calls a handler where it runs: in the event loop, in a thread, or in a process; through the agent's middleware."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from workers.runtime.handler_processes import HandlerProcesses, check_found_by_name
from workers.skill import HandlerKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from orchestrator.core.settings import Settings
    from workers.agent import Agent, Middleware
    from workers.context import TaskContext
    from workers.runtime.in_flight import Held
    from workers.skill import Skill


@dataclass(frozen=True, slots=True)
class Serialised:
    """A result that is JSON already: it comes from a handler's process as it is to be stored."""

    json: bytes


class HandlerCaller:
    """Calls the handlers of one agent. Threads and processes are its own: `concurrency` of each at most.

    A thread cannot be stopped from outside. One that does not return keeps running when its attempt is left behind,
    and the next attempt gets a fresh one.

    Raises:
        ConfigError: a process would not find the handler of a skill.
    """

    def __init__(self, agent: Agent, *, settings: Settings) -> None:
        for skill in agent.skills.values():
            if skill.kind is HandlerKind.PROCESS:
                check_found_by_name(skill)
        self._middleware: Sequence[Middleware] = agent.middleware
        self._threads = anyio.CapacityLimiter(agent.concurrency)
        self._processes = HandlerProcesses(settings)

    def call(
        self, skill: Skill[Any, Any], values: dict[str, Any], *, args: bytes, context: TaskContext, held: Held
    ) -> Awaitable[Any]:
        """Start one call.

        Args:
            skill: whose handler is called.
            values: what it is called with, unless it runs in a process.
            args: the same as JSON; a process checks it there.
            context: for the middleware.
            held: learns how to leave a call that does not end.

        Returns:
            To be awaited: what the handler returned, or `Serialised`.
        """
        run: Callable[[], Awaitable[Any]]
        if skill.kind is HandlerKind.LOOP:
            if not self._middleware:
                return skill.handler(**values)
            run = partial(skill.handler, **values)
        elif skill.kind is HandlerKind.THREAD:
            run = partial(self._in_thread, skill.handler, values, held)
        else:
            run = partial(self._in_process, skill, args)
        return self._through_middleware(0, context, run) if self._middleware else run()

    async def _in_thread(self, handler: Callable[..., Any], values: Mapping[str, Any], held: Held) -> Any:
        # A handler that was told to stop is waited for: it still runs, so its attempt has not ended. Only when its
        # grace is over is the thread left behind, by cancelling the shield.
        value: Any = None
        with anyio.CancelScope(shield=True) as shield:
            held.leave = shield.cancel
            value = await to_thread.run_sync(partial(handler, **values), abandon_on_cancel=True, limiter=self._threads)
        # An `async def` under a decorator that is a plain `def` looks like one from outside.
        return await value if inspect.isawaitable(value) else value

    async def _in_process(self, skill: Skill[Any, Any], args: bytes) -> Any:
        data = await self._processes.run(skill, args)
        # A middleware is promised the value; without one, the bytes are stored as they are.
        return skill.read_result(data) if self._middleware else Serialised(data)

    async def _through_middleware(self, index: int, context: TaskContext, run: Callable[[], Awaitable[Any]]) -> Any:
        if index == len(self._middleware):
            return await run()

        async def call_next(_: TaskContext | None = None, /) -> Any:
            return await self._through_middleware(index + 1, context, run)

        return await self._middleware[index](context, call_next)

    async def close(self) -> None:
        """End the idle processes, kill the others."""
        await self._processes.close()
