"""Measures submits, round trips and the drain of a queue, for `orc bench` and for the benchmarks.

Imports only the standard library, because the benchmarks also run it in environments of other task queues.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

ONE_BY_ONE, AT_ONCE, MANY = "one by one", "100 at once", "1000 in a call"
CALLERS: Final = 100
BATCH: Final = 1000
RAMP_SHARE: Final = 0.05
"""Share of a drain that is not timed: readers wake up, pipelines fill, caches warm."""
SAMPLE_S: Final = 0.005


def _numbered(number: int) -> dict[str, Any]:
    return {"number": number}


@dataclass(frozen=True, slots=True)
class TaskClient:
    """Makes the traffic that is measured.

    Attributes:
        submit: submits one task and returns what `result` takes.
        result: waits for the result of a submitted task.
        submit_bulk: submits many tasks in one call; without it, `CALLERS` callers submit them.
        arguments: makes the arguments of a task from its number.
        bulk: tasks of one bulk call.
    """

    submit: Callable[[dict[str, Any]], Awaitable[Any]]
    result: Callable[[Any], Awaitable[Any]] | None = None
    submit_bulk: Callable[[list[dict[str, Any]]], Awaitable[Any]] | None = None
    arguments: Callable[[int], dict[str, Any]] = _numbered
    bulk: int = BATCH

    async def submit_one_by_one(self, count: int) -> None:
        """Submit tasks, each after the answer to the one before."""
        for number in range(count):
            await self.submit(self.arguments(number))

    async def submit_at_once(self, count: int) -> None:
        """Submit tasks from `CALLERS` concurrent callers."""
        numbers = iter(range(count))
        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(self._submit_all(numbers))

    async def submit_many(self, count: int) -> None:
        """Submit tasks in calls of `bulk`."""
        if self.submit_bulk is None:
            await self.submit_at_once(count)
            return
        for start in range(0, count, self.bulk):
            await self.submit_bulk([self.arguments(number) for number in range(start, min(start + self.bulk, count))])

    async def round_trip(self, number: int) -> None:
        """Submit one task and wait for its result."""
        assert self.result is not None
        await self.result(await self.submit(self.arguments(number)))

    async def _submit_all(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self.submit(self.arguments(number))


@dataclass(frozen=True, slots=True)
class Pace:
    """Tasks in a time."""

    tasks: int
    duration_s: float

    @property
    def per_s(self) -> float:
        """Tasks per second."""
        return self.tasks / max(self.duration_s, SAMPLE_S)


async def time_submits(
    submit: Callable[[int], Awaitable[None]], tasks: int, *, step: int | None = None, at_most_s: float = math.inf
) -> Pace:
    """Submit `tasks` tasks, `step` of them at a time, until the time is over."""
    done, started_s = 0, time.perf_counter()
    while done < tasks and time.perf_counter() - started_s < at_most_s:
        count = min(step or tasks, tasks - done)
        await submit(count)
        done += count
    return Pace(done, time.perf_counter() - started_s)


async def time_round_trips(
    round_trip: Callable[[int], Awaitable[None]],
    tasks: int,
    *,
    warm_ups: int,
    pause_s: float = 0.0,
    at_most_s: float = math.inf,
) -> list[float]:
    """Run tasks one after another and return the milliseconds of each, without the warm-ups."""
    taken_ms: list[float] = []
    deadline_s = math.inf
    for number in range(warm_ups + tasks):
        if number == warm_ups:
            deadline_s = time.monotonic() + at_most_s
        if number > warm_ups + 1 and time.monotonic() >= deadline_s:
            break
        await asyncio.sleep(pause_s)
        started_s = time.perf_counter()
        await round_trip(number)
        taken_ms.append((time.perf_counter() - started_s) * 1000)
    return taken_ms[warm_ups:]


@dataclass(slots=True)
class DrainWatch:
    """Follows how many tasks remain, and times the drain from the end of its ramp."""

    tasks: int
    remaining: int = field(init=False)
    idle_s: float = field(default=0.0, init=False)
    _changed_s: float = field(default_factory=time.monotonic, init=False)
    _now_s: float = field(default=0.0, init=False)
    _ramp: tuple[int, float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.remaining = self.tasks

    @property
    def is_timed(self) -> bool:
        """Tell whether the ramp is over."""
        return self._ramp is not None

    @property
    def pace(self) -> Pace:
        """Tasks that ended since the end of the ramp."""
        left, started_s = self._ramp or (self.remaining, self._now_s)
        return Pace(left - self.remaining, self._now_s - started_s)

    def note(self, remaining: int) -> None:
        """Record the number of unfinished tasks at this moment."""
        self._now_s = time.monotonic()
        if remaining != self.remaining:
            self.remaining, self._changed_s = remaining, self._now_s
        self.idle_s = self._now_s - self._changed_s
        if self._ramp is None and remaining <= int(self.tasks * (1 - RAMP_SHARE)):
            self._ramp = remaining, self._now_s


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles of one pass, in milliseconds."""

    p50: float
    p95: float
    p99: float
    count: int = field(compare=False)


def percentiles(values_ms: Sequence[float]) -> Latencies:
    """Return percentiles by the nearest rank."""
    ordered = sorted(values_ms)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Latencies(rank(0.50), rank(0.95), rank(0.99), len(ordered))
