"""The project's client under load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from benchmarks.payload import arguments, stamped
from orchestrator import Orchestrator, Submission

_AT_ONCE = 100
_MANY = 1000
_RESULT_TIMEOUT_S = 10

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class OurClient:
    """Submits to one skill.

    Attributes:
        lanes: over how many lanes `submit_many` spreads the tasks; 0: none has one.
    """

    orc: Orchestrator
    skill: str
    lanes: int = 0

    async def submit_one_by_one(self, count: int) -> None:
        """Submit tasks, each after the answer to the one before."""
        for number in range(count):
            await self.orc.submit(self.skill, arguments(number))

    async def submit_at_once(self, count: int) -> None:
        """Submit tasks from a hundred callers that know nothing of each other."""
        numbers = iter(range(count))
        async with anyio.create_task_group() as callers:
            for _ in range(_AT_ONCE):
                callers.start_soon(self._submit_all, numbers)

    async def submit_many(self, count: int) -> None:
        """Submit tasks in calls of a thousand."""
        for start in range(0, count, _MANY):
            numbers = range(start, min(start + _MANY, count))
            await self.orc.submit_many([self._submission(number) for number in numbers])

    async def submit_stamped(self, number: int) -> None:
        """Submit one task that carries the time."""
        await self.orc.submit(self.skill, stamped(number))

    async def round_trip(self, number: int) -> None:
        """Submit one task and wait for its result."""
        handle = await self.orc.submit(self.skill, arguments(number))
        await handle.result(timeout=_RESULT_TIMEOUT_S)

    def _submission(self, number: int) -> Submission:
        lane = f"lane {number % self.lanes}" if self.lanes else None
        return Submission(self.skill, arguments(number), lane=lane)

    async def _submit_all(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self.orc.submit(self.skill, arguments(number))
