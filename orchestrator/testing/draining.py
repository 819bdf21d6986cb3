"""Waits until a pool has no work left, advancing its time on request, and describes the rest on failure."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.agents.queries import skills_by_agent
from orchestrator.core.errors import NotFound
from orchestrator.tasks import scripts
from orchestrator.tasks.model import TaskState
from orchestrator.why import lookup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from orchestrator.testing.scripts import RemainingWork
    from orchestrator.testing.submitted import Submitted
    from orchestrator.testing.temporary_pool import TemporaryPool

POLL_S: Final = 0.002
SHOWN: Final = 10
ASSIGN_LIMIT: Final = 500


class Drain:
    """One wait.

    Args:
        pool: the pool.
        skip_time: advance time whenever all remaining work waits for it.
        at_most: limit of attempts that start meanwhile.
        all_registered: returns False while an actor is being replaced; then the wait only polls.
        awaited: returns the tasks that handlers wait for at the moment.
    """

    def __init__(
        self,
        pool: TemporaryPool,
        *,
        skip_time: bool,
        at_most: int,
        all_registered: Callable[[], bool],
        awaited: Callable[[], Collection[str]],
    ) -> None:
        self._pool, self._skip_time, self._at_most = pool, skip_time, at_most
        self._all_registered, self._awaited = all_registered, awaited

    async def run(self, timeout_s: float, *, until: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Wait until no work is left, or until `until` returns True.

        Raises:
            TimeoutError: it took longer; the message lists the remaining work.
            AssertionError: more than `at_most` attempts started, or the remaining work can never start.
        """
        __tracebackhide__ = True
        deadline_s = time.monotonic() + timeout_s
        before = (await self._pool.remaining()).starts
        while True:
            # Before the poll, so that the poll sees everything that came before.
            enough = until is not None and await until()
            seen = await self._pool.remaining()
            if seen.starts - before > self._at_most:
                raise AssertionError(await self._too_many(seen.starts - before))
            if enough or (until is None and self._done(seen)):
                return
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"work is left after {timeout_s:g} s:{await self._describe()}")
            if not await self._advance(seen, until):
                await anyio.sleep(POLL_S)

    def _done(self, seen: RemainingWork) -> bool:
        return not (seen.ready or seen.held or (self._skip_time and seen.scheduled))

    async def _advance(self, seen: RemainingWork, until: Callable[[], Awaitable[bool]] | None) -> bool:
        """Act on the remaining work; return True if another poll may see progress at once."""
        __tracebackhide__ = True
        if not self._all_registered() or (seen.held and not self._blocked(seen)):
            return False
        opens_ms = None
        if seen.ready:
            assigned, opens_ms = await self._assign()
            again = await self._pool.remaining()
            if assigned or again.held != seen.held or not again.ready or again.starts != seen.starts:
                return True
            # It was ready all along, no attempt started meanwhile, and no assignment was possible.
            if opens_ms is None and not seen.held and not (self._skip_time and seen.due_ms is not None):
                raise AssertionError(f"this can never start:{await self._describe()}")
        if not self._skip_time:
            return False
        steps = [step for step in (opens_ms, seen.due_ms) if step is not None]
        if not steps:
            return False
        # A task that asked after the last call of `until` gets its answer before time moves past its deadline.
        if until is not None:
            ended, again = await until(), await self._pool.remaining()
            if ended or (again.ready, again.held, again.starts) != (seen.ready, seen.held, seen.starts):
                return True
        await self._pool.advance(min(steps))
        return True

    def _blocked(self, seen: RemainingWork) -> bool:
        """Return True if every running task only waits for children that wait for a time."""
        awaited = self._awaited()
        if not (self._skip_time and awaited and (seen.scheduled or seen.ready)):
            return False
        tasks = self._pool.submitted()
        waiting = {task.parent for task in tasks if task.id in awaited and not task.state.final}
        return all(task.id in waiting for task in tasks if task.state is TaskState.ASSIGNED)

    async def _assign(self) -> tuple[int, int | None]:
        """Assign for each agent, as a supervisor does. Returns the number, and ms until a rate limit allows more."""
        keys, store = self._pool.services.keys, self._pool.services.store
        count, waits_us = 0, list[int]()
        for agent in await skills_by_agent(store):
            done = await store.call(scripts.assign(keys, agents=[agent], limit=ASSIGN_LIMIT))
            count += done.count
            waits_us += done.waits_us.values()
        return count, -(-min(waits_us) // 1000) if waits_us else None

    async def _describe(self) -> str:
        left = [task for task in self._pool.submitted() if not task.state.final]
        lines = [f"\n  {task}{await self._why(task)}" for task in left[:SHOWN]]
        return "".join(lines) + (f"\n  … and {len(left) - SHOWN} more" if len(left) > SHOWN else "")

    async def _why(self, task: Submitted) -> str:
        try:
            found = await lookup.info(self._pool.services.store, task.id)
        except NotFound:
            return ""
        return f": {found.why or found.state}"

    async def _too_many(self, starts: int) -> str:
        by_skill = Counter(task.skill for task in self._pool.submitted()).most_common(3)
        told = ", ".join(f"{count} of {skill!r}" for skill, count in by_skill)
        return (
            f"{starts} attempts started and work is left; tasks so far: {told}. An agent that submits or "
            "retries without end never drains; pass at_most= if so many are intended"
        )
