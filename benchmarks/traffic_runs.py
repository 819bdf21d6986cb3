"""Runs one pass of client traffic: submit rates, round trips, pick-up times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.payload import read_waits_ms
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.team import Team

_LAST_START_TIMEOUT_S = 15.0


def submit_rate(team: Team, kind: str, count: int) -> float:
    """Return submits per second of one kind, while no worker runs."""

    async def run() -> float:
        async with team.client() as driver:
            return await driver.submit_rate(kind, count)

    team.prepare()
    return run_loop(run)


def round_trips_ms(team: Team) -> list[float]:
    """Return the times from submit to result of tasks that run one at a time."""

    async def run() -> list[float]:
        async with team.client() as driver:
            return await driver.round_trips_ms(team.sizes.round_trips)

    team.prepare()
    with team.worker_processes(1) as worker_processes:
        worker_processes.start()
        return run_loop(run)


def pick_up_waits_ms(team: Team, starts_file: Path, *, rate_per_s: int) -> list[float]:
    """Return the times from submit to the start of the handler, at a steady rate of submits."""
    count = int(rate_per_s * team.sizes.pick_up_s)

    async def run() -> None:
        async with team.client() as driver:
            await driver.steady_stream(rate_per_s, count)

    starts_file.unlink(missing_ok=True)
    team.prepare()
    with team.worker_processes(1) as worker_processes:
        worker_processes.start()
        run_loop(run)
        deadline_s = time.monotonic() + _LAST_START_TIMEOUT_S
        while len(waits_ms := read_waits_ms(starts_file)) < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{count - len(waits_ms)} of {count} tasks did not start.")
            time.sleep(0.05)
    return waits_ms
