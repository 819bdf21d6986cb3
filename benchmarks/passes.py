"""One pass of client traffic: how many submits a second, and how long single tasks take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from benchmarks.payload import read_waits_ms
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from benchmarks.team import Client, Team

_WARM_UP = 20
# Long enough for every process to be back in its blocking read.
_BREATH_S = 0.005
_LAST_START_TIMEOUT_S = 10.0


def submit_rate(team: Team, count: int, traffic: Callable[[Client, int], Awaitable[None]]) -> float:
    """Submits per second of one kind of traffic, while nobody works."""

    async def run() -> float:
        async with team.client() as client:
            await traffic(client, _WARM_UP)
            started_s = time.perf_counter()
            await traffic(client, count)
            return count / (time.perf_counter() - started_s)

    team.prepare()
    return run_loop(run)


def round_trips_ms(team: Team, count: int) -> list[float]:
    """Time from submit to result of tasks that come one at a time."""

    async def run() -> list[float]:
        taken_ms: list[float] = []
        async with team.client() as client:
            for number in range(_WARM_UP + count):
                await anyio.sleep(_BREATH_S)
                started_s = time.perf_counter()
                await client.round_trip(number)
                taken_ms.append((time.perf_counter() - started_s) * 1000)
        return taken_ms[_WARM_UP:]

    team.prepare()
    with team.crew(1) as crew:
        crew.go()
        return run_loop(run)


def pick_up_waits_ms(team: Team, starts_file: Path, *, rate_per_s: int, duration_s: float) -> list[float]:
    """Time from submit to the start of the handler, for tasks that come at a steady rate whatever the answers do."""
    count = int(rate_per_s * duration_s)

    async def run() -> None:
        async with team.client() as client, anyio.create_task_group() as submits:
            for number in range(_WARM_UP):
                await client.round_trip(number)
            started_s = time.perf_counter()
            for number in range(count):
                if (early_s := started_s + number / rate_per_s - time.perf_counter()) > 0:
                    await anyio.sleep(early_s)
                submits.start_soon(client.submit_stamped, number)

    starts_file.unlink(missing_ok=True)
    team.prepare()
    with team.crew(1) as crew:
        crew.go()
        run_loop(run)
        deadline_s = time.monotonic() + _LAST_START_TIMEOUT_S
        while len(waits_ms := read_waits_ms(starts_file)) < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{count - len(waits_ms)} of {count} tasks did not start.")
            time.sleep(0.05)
    return waits_ms
