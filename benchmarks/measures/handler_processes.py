"""Processes of `process=True` handlers: time to the first result, and memory."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from benchmarks.figures import Figure, figure_of
from benchmarks.goals import FIRST_RESULT_S, PROCESS_PSS_MB, at_most
from benchmarks.ours.team import CRUNCH, OurTeam
from benchmarks.processes import pss_bytes, wait_until
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench
    from benchmarks.processes import Child

_SETTLE_S = 3.0
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Pass:
    first_s: float
    last_s: float
    pss_mb: float
    processes: int


def measure(bench: Bench) -> Iterator[Figure]:
    """Submit a task per slot to a worker at rest: once tasks that return, once tasks that hold their processes."""
    taken = bench.in_turns({str(slots): partial(_run, bench, slots) for slots in FIRST_RESULT_S})
    for slots, bound_s in FIRST_RESULT_S.items():
        runs = taken[str(slots)]
        words = f"{slots} slots"
        yield figure_of(
            "processes", f"first result, {words}", "s", [run.first_s for run in runs], goals=(at_most(bound_s),)
        )
        yield figure_of("processes", f"last result, {words}", "s", [run.last_s for run in runs])
        note = f"PSS of {runs[-1].processes} processes, all but host and worker, divided by {slots}"
        memory = [run.pss_mb for run in runs]
        figure = figure_of("processes", f"memory of a process, {words}", "MB", memory, goals=(at_most(PROCESS_PSS_MB),))
        yield replace(figure, note=note)


def _run(bench: Bench, slots: int) -> _Pass:
    team = OurTeam(bench, CRUNCH[slots])
    with team.worker_processes(1) as workers, tempfile.TemporaryDirectory() as folder:
        workers.start()
        time.sleep(_SETTLE_S)
        first_s, last_s = run_loop(_results, team, slots)
        pss_mb, processes = run_loop(_held, team, slots, workers.workers[0], Path(folder))
    return _Pass(first_s, last_s, pss_mb, processes)


async def _results(team: OurTeam, slots: int) -> tuple[float, float]:
    """Return the times until the first and the last of as many tasks as slots."""
    ended_s: list[float] = []
    async with team.orchestrator() as orc:
        started_s = time.monotonic()

        async def one() -> None:
            await (await orc.submit("crunch")).result(timeout=_TIMEOUT_S)
            ended_s.append(time.monotonic() - started_s)

        async with anyio.create_task_group() as group:
            for _ in range(slots):
                group.start_soon(one)
    return min(ended_s), max(ended_s)


async def _held(team: OurTeam, slots: int, host: Child, folder: Path) -> tuple[float, int]:
    """Return the memory per slot while every slot runs a handler, and the number of processes."""
    async with team.orchestrator() as orc:
        handles = [await orc.submit("crunch", {"folder": str(folder)}) for _ in range(slots)]
        await anyio.to_thread.run_sync(
            partial(
                wait_until,
                lambda: len(list(folder.iterdir())) == slots,
                what=f"{slots} processes",
                children=(host,),
                timeout_s=_TIMEOUT_S,
            )
        )
        pids = host.pids()[2:]
        memory = sum(pss_bytes(pid) for pid in pids)
        await anyio.Path(folder, "gate").touch()
        for handle in handles:
            await handle.result(timeout=_TIMEOUT_S)
    return memory / slots / 1e6, len(pids)
