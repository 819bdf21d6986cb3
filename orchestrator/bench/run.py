"""Takes the measurements of `orc bench` through the public client, each within a few seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.bench.measures import (
    BATCH,
    SAMPLE_S,
    DrainWatch,
    Latencies,
    TaskClient,
    percentiles,
    time_round_trips,
    time_submits,
)
from orchestrator.core.errors import OrchestratorError
from orchestrator.tasks import queries
from orchestrator.tasks.submission import Submission

if TYPE_CHECKING:
    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle

SKILL: Final = "nothing"
WAITING_SKILL: Final = "wait"
LEAST_WAITING: Final = 4000
"""Tasks whose handlers wait that show a rate: a worker process runs 200 at once, so fewer end in one moment."""
FIRST_RESULT_S: Final = 15.0
"""Limit for the first task, because workers and supervisor are still starting."""
RESULT_S: Final = 5.0
WARM_UPS: Final = 50
STALL_S: Final = 5.0


class BenchFailed(OrchestratorError):
    """The pool did not run the tasks."""


def _client(orc: Orchestrator, body: str, *, timeout_s: float = RESULT_S) -> TaskClient:
    async def result(handle: TaskHandle[Any]) -> None:
        try:
            await handle.result(timeout=timeout_s)
        except TimeoutError:
            raise BenchFailed(f"a task that does nothing has not ended for {timeout_s:g} s") from None

    return TaskClient(
        submit=lambda args: orc.submit(SKILL, args),
        result=result,
        submit_bulk=lambda batch: orc.submit_many([Submission(SKILL, args) for args in batch]),
        arguments=lambda number: {"number": number, "body": body} if body else {"number": number},
    )


async def measure_latency(orc: Orchestrator, *, tasks: int, at_most_s: float, body: str = "") -> Latencies:
    """Run tasks one after another.

    Raises:
        BenchFailed: a task does not end.
    """
    await _client(orc, body, timeout_s=FIRST_RESULT_S).round_trip(0)
    round_trip = _client(orc, body).round_trip
    return percentiles(await time_round_trips(round_trip, tasks, warm_ups=WARM_UPS, at_most_s=at_most_s))


@dataclass(frozen=True, slots=True)
class SubmitRates:
    """Tasks per second of each kind of submit, and the number of all submitted tasks."""

    one_by_one: float
    at_once: float
    many: float
    tasks: int


async def measure_submits(orc: Orchestrator, *, tasks: int, at_most_s: float, body: str = "") -> SubmitRates:
    """Submit up to `tasks` tasks in each of three ways, while no supervisor assigns them."""
    client = _client(orc, body)
    one_by_one = await time_submits(client.submit_one_by_one, tasks, step=10, at_most_s=at_most_s)
    at_once = await time_submits(client.submit_at_once, tasks, step=BATCH, at_most_s=at_most_s)
    many = await time_submits(client.submit_many, tasks, step=BATCH, at_most_s=at_most_s)
    submitted = one_by_one.tasks + at_once.tasks + many.tasks
    return SubmitRates(one_by_one.per_s, at_once.per_s, many.per_s, submitted)


async def submit_waiting(orc: Orchestrator, *, tasks: int) -> None:
    """Submit tasks whose handlers wait for 5 ms."""
    for start in range(0, tasks, BATCH):
        numbers = range(start, min(start + BATCH, tasks))
        await orc.submit_many([Submission(WAITING_SKILL, {"number": number}) for number in numbers])


async def measure_drain(orc: Orchestrator, *, tasks: int, at_most_s: float) -> float:
    """Return how many of the waiting tasks end per second.

    Raises:
        BenchFailed: tasks stop ending.
    """
    before = await _succeeded(orc)
    watch = DrainWatch(tasks)
    while True:
        watch.note(max(0, before + tasks - await _succeeded(orc)))
        if watch.is_timed and (watch.remaining == 0 or watch.pace.duration_s > at_most_s):
            return watch.pace.per_s
        if watch.idle_s > (STALL_S if watch.is_timed else FIRST_RESULT_S):
            done = tasks - watch.remaining
            raise BenchFailed(f"only {done} of {tasks} tasks were done, then nothing for {watch.idle_s:.0f} s")
        await anyio.sleep(SAMPLE_S)


async def _succeeded(orc: Orchestrator) -> int:
    return (await queries.counters(orc.services.store)).get("succeeded", 0)
