"""The slots of one agent: long-lived asyncio tasks that run one attempt after another.

A handler must neither end a slot nor affect the next attempt. A new slot replaces one that a handler has tainted (with
context variables, or by cancelling its own task) or does not return to.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from orchestrator.workers.runtime.attempt import Attempt


WAKE_AHEAD: Final = 2
"""A slot that takes an attempt wakes another slot unless this many are waking. One slot then runs all handlers that
never wait, without a turn of the event loop for each, and handlers that wait start in a few turns."""


class Slots:
    """Runs attempts in `count` asyncio tasks.

    Args:
        count: number of slots.
        attempt: runs an attempt.
        unbegun: called with an attempt that was stopped before its handler began, wherever it waited for that.

    Attributes:
        on_readable: called when an entry may be read, after a time when none was.
    """

    def __init__(
        self, count: int, *, attempt: Callable[[Attempt], Coroutine[Any, Any, None]], unbegun: Callable[[Attempt], None]
    ) -> None:
        self._count, self._run_attempt, self._give_back = count, attempt, unbegun
        self._feed: deque[Attempt] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._woken = 0
        self._free = count
        self._freed = anyio.Event()
        self.on_readable: Callable[[], None] = lambda: None
        self._lent = 0
        self._open = False
        self._returning: list[tuple[int, int, asyncio.Future[None]]] = []
        self._returns = 0
        self._surplus = 0
        self._ended = False
        self._missing = 0
        self._slot_ended = anyio.Event()

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._free

    @property
    def readable(self) -> int:
        """Number of entries that may be read: free slots, and lent ones only while awaited tasks may arrive."""
        # Called for each agent at each read.
        return self._free if self._open or not self._lent else max(0, self._free - self._lent)

    @property
    def lent(self) -> int:
        """Number of slots that waiting attempts lend."""
        return self._lent

    async def wait_free(self) -> int:
        """Wait for a free slot and return the number of free slots."""
        while self._free == 0:
            await self._wait_freed()
        return self._free

    async def _wait_freed(self) -> None:
        self._freed = anyio.Event()
        await self._freed.wait()

    def start(self, attempt: Attempt) -> None:
        """Run an attempt in a free slot."""
        self._free -= 1
        self._feed.append(attempt)
        if self._woken == 0:
            self._wake()

    async def run(self) -> None:
        """Run all slots, until cancelled."""
        async with anyio.create_task_group() as slots:
            for _ in range(self._count):
                slots.start_soon(self._run_slot)
            try:
                while True:
                    await self._slot_ended.wait()
                    self._slot_ended = anyio.Event()
                    while self._missing:
                        self._missing -= 1
                        slots.start_soon(self._run_slot)
            finally:
                # An attempt waits for its slot in a shielded scope.
                self._ended = True
                for _, _, turn in self._returning:
                    if not turn.done():
                        turn.set_result(None)

    def give_up(self, attempt: Attempt) -> None:
        """Replace the slot of an abandoned handler; the old slot ends when the handler does."""
        if attempt.lends:
            # Another asyncio task runs in its slot already.
            self._end_lending(attempt)
            self._surplus -= 1
        else:
            self._work_ended()
            self._replace()

    # ------------------------------------------------------------------------------------------------------- lending

    def lend(self, attempt: Attempt) -> None:
        """Free the slot of an attempt that waits for a child (protocol rule 32)."""
        attempt.lends = True
        self._lent += 1
        self._work_ended()
        if self._surplus < self._lent:
            self._surplus += 1
            self._replace()

    async def take_back(self, attempt: Attempt, depth: int) -> None:
        """Take a slot again for an attempt that lent its own. Of several attempts the deepest gets the next slot."""
        if self._free > 0 or self._ended:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._returns += 1
            heapq.heappush(self._returning, (-depth, self._returns, turn))
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._work_ended()
                turn.cancel()
                raise
        self._end_lending(attempt)

    def _end_lending(self, attempt: Attempt) -> None:
        attempt.lends = False
        self._lent -= 1

    def open_lent(self, *, expected: bool) -> None:
        """Set whether awaited tasks may arrive, so that entries are read for lent slots too."""
        self._open = expected
        if self.readable:
            self.on_readable()

    # -------------------------------------------------------------------------------------------- the asyncio tasks

    async def _run_slot(self) -> None:
        clean = contextvars.copy_context()
        while await self._run_until_cancelled(clean):
            if await _cancelled_itself() or contextvars.copy_context() != clean:
                # Context variables cannot be unset from outside, so the next attempt gets a new asyncio task.
                self._replace()
                return

    async def _run_until_cancelled(self, clean: contextvars.Context) -> bool:
        """Run attempts until one was cancelled or has tainted the slot; return False if the slot was replaced."""
        task = asyncio.current_task()
        assert task is not None
        # Attempts share a scope until one is cancelled, because entering a scope costs a tenth of a short attempt.
        with anyio.CancelScope() as scope:
            while not scope.cancel_called:
                attempt = await self._next()
                attempt.scope = scope
                try:
                    await self._run_attempt(attempt)
                except asyncio.CancelledError:
                    if attempt.begun or not attempt.stop_requested:
                        raise
                    self._give_back(attempt)
                finally:
                    # A later `stop` must not cancel the next attempt of this slot.
                    attempt.scope = None
                    if attempt.lends:
                        # It was stopped while it waited, so another attempt may have its slot.
                        self._end_lending(attempt)
                    elif not attempt.abandoned:
                        self._work_ended()
                if attempt.abandoned:
                    return False
                if self._surplus > self._lent:
                    self._surplus -= 1
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
        while self._returning:
            _, _, turn = heapq.heappop(self._returning)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
        if self._free == 1:
            self._freed.set()
        if self.readable == 1:
            self.on_readable()

    def _replace(self) -> None:
        self._missing += 1
        self._slot_ended.set()


def slot_ends() -> bool:
    """Return whether the slot itself is being cancelled, and not only its attempt."""
    return anyio.current_effective_deadline() == -math.inf


async def _cancelled_itself() -> bool:
    """Remove a cancellation that a handler made of its own asyncio task; return True if there was one."""
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
