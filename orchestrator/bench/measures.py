"""What is measured, through the public client: how fast tasks go in, how fast they are done, how long one takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count
from statistics import quantiles
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import OrchestratorError
from orchestrator.tasks import queries
from orchestrator.tasks.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.client.client import Orchestrator

SKILL: Final = "nothing"
AT_ONCE: Final = 100
MANY: Final = 1000
FIRST_RESULT_S: Final = 15.0
"""How long the first task may take: workers and supervisor are still starting."""
RESULT_S: Final = 5.0
WARM_UPS: Final = 50
RAMP_SHARE: Final = 0.05
"""Of a drain, this part is not counted: pipelines fill, caches warm."""
STALL_S: Final = 5.0
_SAMPLE_S: Final = 0.01


class BenchFailed(OrchestratorError):
    """What was to be measured did not happen."""


@dataclass(frozen=True, slots=True)
class Latency:
    """From submit to result, one task after another while nothing else is to be done."""

    p50_ms: float
    p99_ms: float
    tasks: int


async def measure_latency(orc: Orchestrator, *, tasks: int, at_most_s: float) -> Latency:
    """Run tasks one after another, each when the one before has ended.

    Raises:
        BenchFailed: no result comes.
    """
    await _round_trip(orc, 0, FIRST_RESULT_S)
    for number in range(WARM_UPS):
        await _round_trip(orc, number, RESULT_S)
    taken_s: list[float] = []
    deadline_s = time.monotonic() + at_most_s
    while len(taken_s) < tasks and (len(taken_s) < 2 or time.monotonic() < deadline_s):
        taken_s.append(await _round_trip(orc, len(taken_s), RESULT_S))
    cuts = quantiles(taken_s, n=100, method="inclusive")
    return Latency(cuts[49] * 1000, cuts[98] * 1000, len(taken_s))


async def _round_trip(orc: Orchestrator, number: int, timeout_s: float) -> float:
    began_s = time.perf_counter()
    handle = await orc.submit(SKILL, {"number": number})
    try:
        await handle.result(timeout=timeout_s)
    except TimeoutError:
        raise BenchFailed(f"a task that does nothing has not ended for {timeout_s:g} s") from None
    return time.perf_counter() - began_s


@dataclass(frozen=True, slots=True)
class SubmitRates:
    """Tasks per second; and how many tasks were submitted at all."""

    one_by_one: float
    at_once: float
    many: float
    tasks: int


async def measure_submits(orc: Orchestrator, *, tasks: int, at_most_s: float) -> SubmitRates:
    """Submit up to `tasks` tasks in each of three ways, for at most so long each; nobody takes them meanwhile."""
    submitted = count()

    async def one() -> int:
        await orc.submit(SKILL, {"number": next(submitted)})
        return 1

    async def many() -> int:
        await orc.submit_many([Submission(SKILL, {"number": next(submitted)}) for _ in range(min(MANY, tasks))])
        return min(MANY, tasks)

    one_by_one = await _rate(one, callers=1, tasks=tasks, at_most_s=at_most_s)
    at_once = await _rate(one, callers=AT_ONCE, tasks=tasks, at_most_s=at_most_s)
    in_batches = await _rate(many, callers=1, tasks=tasks, at_most_s=at_most_s)
    return SubmitRates(one_by_one, at_once, in_batches, next(submitted))


async def _rate(step: Callable[[], Awaitable[int]], *, callers: int, tasks: int, at_most_s: float) -> float:
    """How many tasks a second so many callers get through, each taking one step after another."""
    done = 0
    began_s = time.perf_counter()

    async def call() -> None:
        nonlocal done
        while done < tasks and time.perf_counter() - began_s < at_most_s:
            more = await step()
            done += more  # not in one: others count while this one waits

    async with anyio.create_task_group() as group:
        for _ in range(callers):
            group.start_soon(call)
    return done / (time.perf_counter() - began_s)


async def measure_drain(orc: Orchestrator, *, tasks: int, at_most_s: float) -> float:
    """Watch how fast so many waiting tasks are done, in tasks per second; the beginning is not counted.

    Raises:
        BenchFailed: they are not.
    """
    before = await _succeeded(orc)
    ramp, began_s = before + RAMP_SHARE * tasks, 0.0
    counted_from, moved_s, seen = before, time.perf_counter(), before
    while True:
        succeeded, now_s = await _succeeded(orc), time.perf_counter()
        if succeeded > seen:
            seen, moved_s = succeeded, now_s
        elif now_s - moved_s > (STALL_S if began_s else FIRST_RESULT_S):
            raise BenchFailed(
                f"only {seen - before} of {tasks} tasks were done, then nothing for {now_s - moved_s:.0f} s"
            )
        if not began_s and succeeded >= ramp:
            began_s, counted_from = now_s, succeeded
        elif began_s and (succeeded >= before + tasks or now_s - began_s > at_most_s):
            return (succeeded - counted_from) / (now_s - began_s)
        await anyio.sleep(_SAMPLE_S)


async def _succeeded(orc: Orchestrator) -> int:
    return (await queries.counters(orc.services.store)).get("succeeded", 0)
