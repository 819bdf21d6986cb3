"""How soon a task runs again after its worker was killed: with a sibling, alone under its host, with the whole host."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import at_most
from benchmarks.ours.team import HELD, OurTeam
from benchmarks.payload import ATTEMPTS_FILE_VARIABLE, Attempt, read_attempts
from benchmarks.processes import wait_until
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness import Bench
_LEASE_S = 15.0


def measure(bench: Bench) -> Iterator[Figure]:
    """Kill with SIGKILL while a task runs, and wait for the next start of the same task."""
    if not bench.ours:
        return
    attempts = bench.folder / "attempts"
    team = OurTeam(bench, HELD, {ATTEMPTS_FILE_VARIABLE: str(attempts)})
    for name, processes, goal_s in (("with a sibling", 2, 0.3), ("alone under its host", 1, 0.5)):
        taken_s = [_after_killed_worker(bench, team, attempts, processes) for _ in range(bench.sizes.rounds)]
        yield figure_of("recovery", f"killed worker, {name}", "s", taken_s, goals=(at_most(goal_s),))
    if bench.sizes.rounds == 1:
        return  # the lease alone takes longer than a quick run should
    goal = Goal(f"≤ lease + 5 ({_LEASE_S + 5:g})", _LEASE_S + 5, at_most=True)
    yield Figure(
        "recovery", "killed host, another host lives", "s", _after_killed_host(bench, team, attempts), goals=(goal,)
    )


def _after_killed_worker(bench: Bench, team: OurTeam, attempts: Path, processes: int) -> float:
    bench.clean()
    attempts.unlink(missing_ok=True)
    with team.crew(processes) as crew:
        crew.go()
        first = _run_one(team, attempts)
        killed_s = time.monotonic()
        os.kill(first.pid, signal.SIGKILL)
        return _second_start_s(attempts) - killed_s


def _after_killed_host(bench: Bench, team: OurTeam, attempts: Path) -> float:
    bench.clean()
    attempts.unlink(missing_ok=True)
    with team.crew(1, hosts=2) as crew:
        crew.go()
        first = _run_one(team, attempts)
        # Either host may have got the task; the one that did dies with all its processes, the host before its children.
        host = next(host for host in crew.workers if first.pid in host.pids())
        killed_s = time.monotonic()
        for pid in host.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return _second_start_s(attempts, timeout_s=3 * _LEASE_S) - killed_s


def _run_one(team: OurTeam, attempts: Path) -> Attempt:
    """Submit a task that holds its slot in its first attempt, and wait until it does."""

    async def submit() -> None:
        async with team.client() as driver:
            await driver.load(1)

    run_loop(submit)
    wait_until(lambda: len(read_attempts(attempts)) == 1, what="the first attempt")
    # The pulse may be in the middle of its first turn; a task that has just begun is not the usual case.
    time.sleep(1.0)
    return read_attempts(attempts)[0]


def _second_start_s(attempts: Path, timeout_s: float = 20.0) -> float:
    wait_until(lambda: len(read_attempts(attempts)) > 1, what="the second attempt", timeout_s=timeout_s)
    return read_attempts(attempts)[1].started_ns / 1e9
