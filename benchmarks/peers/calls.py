"""The traffic of a peer's client, made of the few calls that the peer offers; runs under the peer's interpreter."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.payload import arguments, stamped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

AT_ONCE = 100
MANY = 1000
RESULT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Calls:
    """A client of the benchmarks.

    Attributes:
        submit: submits one task and answers what `result` needs.
        result: waits for the result of a submitted task; a client without it has a `round_trip` of its own.
        submit_bulk: submits many in one call, if the peer has such a call.
    """

    submit: Callable[[dict[str, Any]], Awaitable[Any]]
    result: Callable[[Any], Awaitable[Any]] | None = None
    submit_bulk: Callable[[list[dict[str, Any]]], Awaitable[Any]] | None = None

    async def submit_one_by_one(self, count: int) -> None:
        """Submit tasks, each after the answer to the one before."""
        for number in range(count):
            await self.submit(arguments(number))

    async def submit_at_once(self, count: int) -> None:
        """Submit tasks from a hundred callers that know nothing of each other."""
        numbers = iter(range(count))
        async with asyncio.TaskGroup() as callers:
            for _ in range(AT_ONCE):
                callers.create_task(self._submit_all(numbers))

    async def submit_many(self, count: int) -> None:
        """Submit tasks in calls of a thousand, or from a hundred callers where there is no such call."""
        if self.submit_bulk is None:
            await self.submit_at_once(count)
            return
        for start in range(0, count, MANY):
            await self.submit_bulk([arguments(number) for number in range(start, min(start + MANY, count))])

    async def submit_stamped(self, number: int) -> None:
        """Submit one task that carries the time."""
        await self.submit(stamped(number))

    async def round_trip(self, number: int) -> None:
        """Submit one task and wait for its result."""
        assert self.result is not None
        await self.result(await self.submit(arguments(number)))

    async def _submit_all(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self.submit(arguments(number))
