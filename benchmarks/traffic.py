"""Makes and times the traffic of one client, in this process or in that of a peer's client.

Needs only the standard library and `orchestrator.bench.measures`, because it runs under peers' interpreters too.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.bench.measures import AT_ONCE, MANY, ONE_BY_ONE, time_round_trips, time_submits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from benchmarks.team import Client

_WARM_UP = 20
# Long enough for every process to be back in its blocking read.
_BREATH_S = 0.005
_CALLERS = 20
_IN_FLIGHT = 300
_SUBMITS: Mapping[str, Callable[[Client, int], Awaitable[None]]] = {
    ONE_BY_ONE: lambda client, count: client.submit_one_by_one(count),
    AT_ONCE: lambda client, count: client.submit_at_once(count),
    MANY: lambda client, count: client.submit_many(count),
}


@dataclass(frozen=True, slots=True)
class LocalDriver:
    """Makes traffic with a client of this process."""

    client: Client

    async def load(self, count: int) -> None:
        """Submit tasks as fast as possible."""
        await self.client.submit_many(count)

    async def submit_rate(self, kind: str, count: int) -> float:
        """Return submits per second of one kind."""
        submit = partial(_SUBMITS[kind], self.client)
        await submit(_WARM_UP)
        return (await time_submits(submit, count)).per_s

    async def round_trips_ms(self, count: int) -> list[float]:
        """Return the times from submit to result of tasks that run one at a time."""
        return await time_round_trips(self.client.round_trip, count, warm_ups=_WARM_UP, pause_s=_BREATH_S)

    async def steady_stream(self, rate_per_s: int, count: int) -> None:
        """Submit stamped tasks at a steady rate, independent of results."""
        for number in range(_WARM_UP):
            await self.client.round_trip(number)
        async with asyncio.TaskGroup() as submits:
            started_s = time.perf_counter()
            for number in range(count):
                if (early_s := started_s + number / rate_per_s - time.perf_counter()) > 0:
                    await asyncio.sleep(early_s)
                submits.create_task(self.client.submit_stamped(number))

    async def paced_round_trips_ms(self, rate_per_s: int, count: int) -> list[float]:
        """Return the times from submit to result at a steady rate of single submits, independent of results.

        Callers take turns, so that each submit comes from another asyncio task.
        """
        for number in range(_WARM_UP):
            await self.client.round_trip(number)
        taken_ms: list[float] = []

        async def time_one(number: int) -> None:
            before_s = time.perf_counter()
            await self.client.round_trip(number)
            taken_ms.append((time.perf_counter() - before_s) * 1000)

        async def call(first: int) -> None:
            for number in range(first, count, _CALLERS):
                if (early_s := started_s + number / rate_per_s - time.perf_counter()) > 0:
                    await asyncio.sleep(early_s)
                trips.create_task(time_one(number))

        async with asyncio.TaskGroup() as trips:
            started_s = time.perf_counter()
            for first in range(_CALLERS):
                trips.create_task(call(first))
        return taken_ms

    async def sustained_per_s(self, count: int) -> float:
        """Return the round trips per second of many callers, each of which submits its next task after a result."""
        for number in range(_WARM_UP):
            await self.client.round_trip(number)
        numbers = iter(range(count))

        async def call() -> None:
            for number in numbers:
                await self.client.round_trip(number)

        started_s = time.perf_counter()
        async with asyncio.TaskGroup() as callers:
            for _ in range(_IN_FLIGHT):
                callers.create_task(call())
        return count / (time.perf_counter() - started_s)
