"""The slots of one agent: long-lived tasks, each running one attempt after another.

Nothing that a handler does may end a slot or leak into the next attempt: a slot that a handler has tainted (context
variables, a cancellation of its own task) or that a handler does not give back is replaced by a fresh one.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from orchestrator.workers.runtime.attempt import Attempt


WAKE_AHEAD: Final = 2
"""A slot that takes an entry wakes others while fewer than this many are about to look. Handlers that never wait are
then all run by one slot, without a turn of the loop for each; those that wait start in a few turns, twice as many in
each."""


class Slots:
    """Runs `attempt` for each entry that is started, in `count` tasks."""

    def __init__(self, count: int, *, attempt: Callable[[Attempt], Coroutine[Any, Any, None]]) -> None:
        self._count, self._run_attempt = count, attempt
        self._feed: deque[Attempt] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._woken = 0
        self._free = count
        self._freed = anyio.Event()
        self._missing = 0
        self._slot_ended = anyio.Event()

    @property
    def free(self) -> int:
        """Slots without work."""
        return self._free

    async def wait_free(self) -> int:
        """Wait until at least one slot has no work; answer how many."""
        while self._free == 0:
            self._freed = anyio.Event()
            await self._freed.wait()
        return self._free

    def start(self, attempt: Attempt) -> None:
        """Give an entry to a free slot."""
        self._free -= 1
        self._feed.append(attempt)
        if self._woken == 0:
            self._wake()

    async def run(self) -> None:
        """Run all slots, until cancelled."""
        async with anyio.create_task_group() as slots:
            for _ in range(self._count):
                slots.start_soon(self._run_slot)
            while True:
                await self._slot_ended.wait()
                self._slot_ended = anyio.Event()
                while self._missing:
                    self._missing -= 1
                    slots.start_soon(self._run_slot)

    def give_up(self) -> None:
        """Replace the slot of an attempt that has ended without its handler; that slot ends when the handler does."""
        self._work_ended()
        self._replace()

    async def _run_slot(self) -> None:
        clean = contextvars.copy_context()
        while await self._run_until_cancelled(clean):
            if await _cancelled_itself() or contextvars.copy_context() != clean:
                # Context variables cannot be unset from outside: the next attempt gets a task of its own.
                self._replace()
                return

    async def _run_until_cancelled(self, clean: contextvars.Context) -> bool:
        """Run attempts until one was cancelled or has tainted the slot; False: it was left behind, and it ends."""
        task = asyncio.current_task()
        assert task is not None
        # One scope for as many attempts as come to their end by themselves: entering one costs a tenth of an attempt.
        with anyio.CancelScope() as scope:
            while not scope.cancel_called:
                attempt = await self._next()
                attempt.scope = scope
                try:
                    await self._run_attempt(attempt)
                finally:
                    if not attempt.abandoned:
                        self._work_ended()
                if attempt.abandoned:
                    return False
                if task.cancelling() or contextvars.copy_context() != clean:
                    break
        return True

    async def _next(self) -> Attempt:
        while not self._feed:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiting)
            try:
                await waiting
            finally:
                if waiting in self._idle:
                    self._idle.remove(waiting)
                else:
                    self._woken -= 1
        attempt = self._feed.popleft()
        if self._feed and self._woken < WAKE_AHEAD:
            self._wake()
        return attempt

    def _wake(self) -> None:
        if self._idle:
            self._woken += 1
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)

    def _work_ended(self) -> None:
        self._free += 1
        if self._free == 1:
            self._freed.set()

    def _replace(self) -> None:
        self._missing += 1
        self._slot_ended.set()


def slot_ends() -> bool:
    """Whether the slot itself is being cancelled, not only what runs in it."""
    return anyio.current_effective_deadline() == -math.inf


async def _cancelled_itself() -> bool:
    """Whether a handler has left a cancellation of its own task behind; takes it away."""
    task = asyncio.current_task()
    assert task is not None
    if not task.cancelling() or slot_ends():
        return False
    while task.cancelling():
        task.uncancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if slot_ends():
            raise
    return True
