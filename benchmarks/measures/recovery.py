"""Time until a task runs again after its worker was killed: with a sibling, alone, or with the whole host."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import at_most
from benchmarks.ours.team import CROWD, HELD, OurTeam
from benchmarks.payload import ATTEMPTS_FILE_VARIABLE, Attempt, read_attempts
from benchmarks.processes import wait_until
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness import Bench
_LEASE_S = 15.0
_CROWD = 100


def measure(bench: Bench) -> Iterator[Figure]:
    """Kill with SIGKILL while a task runs, and wait for its next start."""
    if not bench.ours:
        return
    attempts = bench.folder / "attempts"
    team = OurTeam(bench, HELD, {ATTEMPTS_FILE_VARIABLE: str(attempts)})
    for name, processes, goal_s in (("with a sibling", 2, 0.3), ("alone under its host", 1, 0.5)):
        taken_s = [_after_killed_worker(bench, team, attempts, processes) for _ in range(bench.sizes.rounds)]
        yield figure_of("recovery", f"killed worker, {name}", "s", taken_s, goals=(at_most(goal_s),))
    crowd = OurTeam(bench, CROWD, {ATTEMPTS_FILE_VARIABLE: str(attempts)})
    taken_s = [_after_killed_worker(bench, crowd, attempts, 1, in_flight=_CROWD) for _ in range(bench.sizes.rounds)]
    yield figure_of(
        "recovery", f"killed worker with {_CROWD} tasks, until all run", "s", taken_s, goals=(at_most(1.0),)
    )
    if bench.sizes.rounds == 1:
        return  # the lease alone takes too long for a quick run
    goal = Goal(f"≤ lease + 5 ({_LEASE_S + 5:g})", _LEASE_S + 5, at_most=True)
    yield Figure(
        "recovery", "killed host, another host lives", "s", _after_killed_host(bench, team, attempts), goals=(goal,)
    )
    taken = _after_killed_crowd(bench, crowd, attempts)
    yield Figure("recovery", f"killed host with {_CROWD} tasks, until all run", "s", taken, goals=(goal,))


def _after_killed_worker(bench: Bench, team: OurTeam, attempts: Path, processes: int, *, in_flight: int = 1) -> float:
    bench.clean()
    attempts.unlink(missing_ok=True)
    with team.worker_processes(processes) as worker_processes:
        worker_processes.start()
        first = _run_first(team, attempts, in_flight)
        killed_s = time.monotonic()
        os.kill(first.pid, signal.SIGKILL)
        return _all_again_s(team, attempts, in_flight) - killed_s


def _after_killed_crowd(bench: Bench, team: OurTeam, attempts: Path) -> float:
    """Kill a host with all its tasks, while another host has as many free slots."""
    bench.clean()
    attempts.unlink(missing_ok=True)
    with team.worker_processes(1) as worker_processes:
        worker_processes.start()
        _run_first(team, attempts, _CROWD)
        worker_processes.join()
        wait_until(lambda: team.registered() == 2, what="the other host", children=tuple(worker_processes.helpers))
        time.sleep(1.0)
        killed_s = time.monotonic()
        for pid in worker_processes.workers[0].pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return _all_again_s(team, attempts, _CROWD, timeout_s=3 * _LEASE_S) - killed_s


def _after_killed_host(bench: Bench, team: OurTeam, attempts: Path) -> float:
    bench.clean()
    attempts.unlink(missing_ok=True)
    with team.worker_processes(1, hosts=2) as worker_processes:
        worker_processes.start()
        first = _run_first(team, attempts, 1)
        # Either host may have the task; kill that host before its children.
        host = next(host for host in worker_processes.workers if first.pid in host.pids())
        killed_s = time.monotonic()
        for pid in host.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return _all_again_s(team, attempts, 1, timeout_s=3 * _LEASE_S) - killed_s


def _run_first(team: OurTeam, attempts: Path, in_flight: int) -> Attempt:
    """Submit tasks that hold their slots in the first attempt, and wait until they do."""

    async def submit() -> None:
        async with team.client() as driver:
            await driver.load(in_flight)

    run_loop(submit)
    wait_until(lambda: len(read_attempts(attempts)) == in_flight, what="the first attempts")
    # The first heartbeat may be under way; wait for the usual case.
    time.sleep(1.0)
    return read_attempts(attempts)[0]


def _all_again_s(team: OurTeam, attempts: Path, in_flight: int, timeout_s: float = 20.0) -> float:
    """Return when the last task ran again; each must do so once, and end."""
    wait_until(lambda: len(read_attempts(attempts)) >= 2 * in_flight, what="the second attempts", timeout_s=timeout_s)
    wait_until(lambda: not team.remaining(), what="their ends")
    started = read_attempts(attempts)
    if len(started) != 2 * in_flight:
        raise RuntimeError(f"{in_flight} tasks died once and began {len(started)} times")
    return started[-1].started_ns / 1e9
