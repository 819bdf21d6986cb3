"""Time until work goes on after a kill: restarts of single tasks, and ends of tasks that take seconds in each attempt.

The value of a promise is the worst round, because a promise is a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from benchmarks.crashes import Task, crash
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import at_most
from benchmarks.ours.team import CROWD, FIFTY, HELD, TEN, OurTeam
from benchmarks.payload import ATTEMPTS_FILE_VARIABLE, Attempt, read_attempts
from benchmarks.processes import wait_until
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from benchmarks.crashes import Crash
    from benchmarks.harness import Bench
    from benchmarks.ours.team import AgentUnderTest

_LEASE_S = 15.0
_CHECK_S = _LEASE_S / 5
_MAX_DEATHS = 3
_IN_FLIGHT, _SHORT_S, _LONG_S = 100, 1.5, 20.0
_FRESH_EVERY_S, _FRESH_TASK_S, _FRESH_FOR_S = 1.25, 10.0, 60.0
_SLOW_S = 1.0
# Longer than every promise, so that a broken one is measured too.
_PATIENCE_S = 300.0


def measure(bench: Bench) -> Iterator[Figure]:
    """Kill with SIGKILL while one task runs."""
    if bench.ours:
        yield from _restarts(bench, full=bench.sizes.rounds > 1)


def measure_crowds(bench: Bench) -> Iterator[Figure]:
    """Kill with SIGKILL while many tasks run."""
    if not bench.ours:
        return
    full = bench.sizes.rounds > 1  # the lease alone takes too long for a quick run
    for processes in (2, 4) if full else (2,):
        yield from _killed_worker(bench, processes)
    yield from _poisons(bench, 1, among=100, within_s=15.0, kill_after_s=0.0)
    if not full:
        return
    yield from _poisons(bench, 1, among=100, within_s=15.0, kill_after_s=1.0)
    yield from _poisons(bench, 3, among=60, within_s=20.0, kill_after_s=0.0)
    yield from _killed_machine(bench)
    yield from _half_of_all(bench)
    yield from _fresh_tasks(bench)


def _killed_worker(bench: Bench, processes: int) -> Iterator[Figure]:
    async def run(scene: Crash) -> tuple[float, float, int]:
        await scene.submit([Task(_SHORT_S)] * _IN_FLIGHT)
        await scene.until_running(_IN_FLIGHT)
        await asyncio.sleep(0.5)
        scene.kill([scene.busiest()])
        await scene.until_ended(_PATIENCE_S)
        return scene.ran_again_s(), scene.ended_s(range(_IN_FLIGHT)) - scene.killed_s, len(scene.lost)

    again_s, ended_s, lost = _rounds(bench, CROWD, run, processes=processes)
    what = f"killed worker of {processes}, {_IN_FLIGHT} tasks of {_SHORT_S:g} s"
    yield _worst(f"{what}: all run again", again_s, Goal("≤ 1", 1.0, at_most=True), note=_lost(lost))
    goal = Goal(f"≤ 3 x handler + 2 ({3 * _SHORT_S + 2:g})", 3 * _SHORT_S + 2, at_most=True)
    yield _worst(f"{what}: all ended", ended_s, goal)


def _poisons(bench: Bench, poisons: int, *, among: int, within_s: float, kill_after_s: float) -> Iterator[Figure]:
    async def run(scene: Crash) -> tuple[float, int, int, float, int]:
        # Spread over the crowd, so that the order of submission puts no poison first or last.
        places = [(2 * number + 1) * among // (2 * poisons) for number in range(poisons)]
        await scene.submit(
            [Task(_SHORT_S, kill_after_s if number in places else None) for number in range(among)],
        )
        await scene.until_ended(_PATIENCE_S)
        innocents = set(range(among)) - set(places)
        return (
            scene.ended_s(innocents) - scene.submitted_s[0],
            sum(scene.ends[number].dead for number in innocents),
            sum(scene.ends[number].dead for number in places),
            max(scene.ends[number].at_s for number in places) - scene.submitted_s[0],
            len({one.pid for one in scene.attempts if one.number in places}),
        )

    ended_s, innocents_dead, poisons_dead, dead_s, deaths = _rounds(bench, CROWD, run, processes=2)
    when = f" that kill after {kill_after_s:g} s" if kill_after_s else ""
    noun = "poison" if poisons == 1 else "poisons"
    what = f"{poisons} {noun}{when.replace('kill', 'kills') if poisons == 1 else when} among {among} x {_SHORT_S:g} s"
    goal = Goal(f"≤ {within_s:g}", within_s, at_most=True)
    note = f"the last poison was dead after {max(dead_s):.1f} s"
    yield _worst(f"{what}: innocents done", ended_s, goal, note=note)
    yield _worst(f"{what}: innocents dead", innocents_dead, Goal("≤ 0", 0, at_most=True), unit="tasks")
    every = Goal(f"≥ {poisons}", poisons, at_most=False)
    fewest = min(poisons_dead)
    yield Figure("recovery", f"{what}: {noun} dead", "tasks", fewest, goals=(every,), rounds=tuple(poisons_dead))
    bound = poisons * (math.ceil(math.log2(among)) + _MAX_DEATHS)
    name = f"{what}: processes that died"
    yield _worst(name, deaths, Goal(f"≤ {bound}", bound, at_most=True), unit="processes")


def _killed_machine(bench: Bench) -> Iterator[Figure]:
    async def run(scene: Crash) -> tuple[float, float, int]:
        await scene.submit([Task(_SHORT_S)] * _IN_FLIGHT)
        await scene.until_running(_IN_FLIGHT)
        await asyncio.sleep(0.5)
        scene.kill_hosts(1)
        await scene.until_ended(_PATIENCE_S)
        return scene.ran_again_s(), scene.ended_s(range(_IN_FLIGHT)) - scene.killed_s, len(scene.lost)

    again_s, ended_s, lost = _rounds(bench, CROWD, run, processes=2, hosts=2, rounds=1)
    what = f"killed machine of 2, {_IN_FLIGHT} tasks of {_SHORT_S:g} s"
    bound_s = _LEASE_S + _CHECK_S
    goal = Goal(f"≤ lease + a fifth ({bound_s:g})", bound_s, at_most=True)
    yield _worst(f"{what}: all run again", again_s, goal, note=_lost(lost))
    bound_s += 3 * _SHORT_S + 2
    goal = Goal(f"≤ lease + a fifth + 3 x handler + 2 ({bound_s:g})", bound_s, at_most=True)
    yield _worst(f"{what}: all ended", ended_s, goal)


def _half_of_all(bench: Bench) -> Iterator[Figure]:
    tasks = 500

    async def run(scene: Crash) -> tuple[float, float, int]:
        await scene.submit([Task(_LONG_S)] * tasks)
        await scene.until_running(tasks)
        await asyncio.sleep(2.0)
        scene.kill_hosts(2)
        await scene.until_ended(_PATIENCE_S)
        return scene.ran_again_s(), scene.ended_s(range(tasks)) - scene.killed_s, len(scene.lost)

    again_s, ended_s, lost = _rounds(bench, FIFTY, run, processes=5, hosts=4, rounds=1)
    what = f"killed 10 of 20 processes with 2 of 4 machines, {tasks} tasks of {_LONG_S:g} s"
    goal = Goal(f"≤ lease + 5 ({_LEASE_S + 5:g})", _LEASE_S + 5, at_most=True)
    yield _worst(f"{what}: all run again", again_s, goal, note=_lost(lost))
    bound_s = _LEASE_S + 5 + _LONG_S + 2
    goal = Goal(f"≤ lease + 5 + handler + 2 ({bound_s:g})", bound_s, at_most=True)
    yield _worst(f"{what}: all ended", ended_s, goal)


def _fresh_tasks(bench: Bench) -> Iterator[Figure]:
    async def run(scene: Crash) -> tuple[float, float, int, int]:
        kill_at_s = time.monotonic() + 1.5 * _FRESH_TASK_S
        first_fresh = 0
        due_s = time.monotonic()
        while due_s < kill_at_s + _FRESH_FOR_S:
            await scene.submit([Task(_FRESH_TASK_S)])
            due_s += _FRESH_EVERY_S
            if not first_fresh and due_s >= kill_at_s:
                await asyncio.sleep(max(0.0, kill_at_s - time.monotonic()))
                scene.kill([scene.busiest()])
                first_fresh = len(scene.tasks)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        await scene.until_ended(_PATIENCE_S)
        started_s: dict[int, float] = {}
        for one in scene.attempts:
            started_s.setdefault(one.number, one.started_ns / 1e9)
        fresh_s = [(scene.submitted_s[number], started_s[number]) for number in range(first_fresh, len(scene.tasks))]
        waited_s = [begun_s - sent_s for sent_s, begun_s in fresh_s]
        least_s = _least_waits_s([scene.killed_s] * len(scene.lost) + [sent_s for sent_s, _ in fresh_s])
        return max(waited_s), max(least_s), _slow(waited_s), _slow(least_s)

    (waited_s,), (least_s,), (slow,), (least_slow,) = _rounds(bench, TEN, run, processes=1, rounds=1)
    what = f"killed worker with all 10 slots at 80 % load, tasks of {_FRESH_TASK_S:g} s: fresh tasks"
    goal = Goal(f"≤ 10 idle slots would give + 2 ({least_s + 2:.3g})", least_s + 2, at_most=True)
    yield Figure("recovery", f"{what}, longest wait", "s", waited_s, goals=(goal,))
    # One that barely starts in time counts or not, so that the bound has room for two.
    goal = Goal(f"≤ 10 idle slots would give + 2 ({least_slow + 2})", least_slow + 2, at_most=True)
    yield Figure("recovery", f"{what} that wait over {_SLOW_S:g} s", "tasks", slow, goals=(goal,))


def _least_waits_s(submitted_s: Sequence[float]) -> list[float]:
    """Return the waits if ten idle slots took the tasks in this order: nothing that has as many slots is faster."""
    free_s = [0.0] * 10
    waits_s = []
    for sent_s in submitted_s:
        slot = free_s.index(min(free_s))
        started_s = max(sent_s, free_s[slot])
        free_s[slot] = started_s + _FRESH_TASK_S
        waits_s.append(started_s - sent_s)
    return waits_s


def _slow(waits_s: Sequence[float]) -> int:
    return sum(waited_s > _SLOW_S for waited_s in waits_s)


def _rounds(
    bench: Bench,
    agent: AgentUnderTest,
    story: Callable[[Crash], Coroutine[Any, Any, tuple[Any, ...]]],
    *,
    processes: int,
    hosts: int = 1,
    rounds: int | None = None,
) -> list[tuple[Any, ...]]:
    """Return each figure of the story over all rounds."""
    file = bench.folder / "attempts"
    team = OurTeam(bench, agent, {ATTEMPTS_FILE_VARIABLE: str(file)})

    async def run_once() -> tuple[Any, ...]:
        async with crash(team, file, processes=processes, hosts=hosts) as scene:
            return await story(scene)

    found = []
    for _ in range(rounds or bench.sizes.rounds):
        bench.clean()
        file.unlink(missing_ok=True)
        found.append(run_loop(run_once))
    return list(zip(*found, strict=True))


def _worst(name: str, rounds: Sequence[float], goal: Goal, *, unit: str = "s", note: str = "") -> Figure:
    return Figure("recovery", name, unit, max(rounds), goals=(goal,), rounds=tuple(rounds), note=note)


def _lost(lost: Sequence[int]) -> str:
    return f"{min(lost)} to {max(lost)} lost" if min(lost) != max(lost) else f"{lost[0]} lost"


def _restarts(bench: Bench, *, full: bool) -> Iterator[Figure]:
    """Measure how soon a single task starts again; its second attempt ends at once."""
    attempts = bench.folder / "attempts"
    team = OurTeam(bench, HELD, {ATTEMPTS_FILE_VARIABLE: str(attempts)})
    for name, processes, goal_s in (("with a sibling", 2, 0.3), ("alone under its host", 1, 0.5)):
        taken_s = [_after_killed_worker(bench, team, attempts, processes) for _ in range(bench.sizes.rounds)]
        yield figure_of("recovery", f"killed worker, {name}", "s", taken_s, goals=(at_most(goal_s),))
    if full:
        goal = Goal(f"≤ lease + 5 ({_LEASE_S + 5:g})", _LEASE_S + 5, at_most=True)
        taken = _after_killed_host(bench, team, attempts)
        yield Figure("recovery", "killed host, another host lives", "s", taken, goals=(goal,))


def _after_killed_worker(bench: Bench, team: OurTeam, attempts: Path, processes: int) -> float:
    bench.clean()
    attempts.unlink(missing_ok=True)
    with team.worker_processes(processes) as worker_processes:
        worker_processes.start()
        first = _run_first(team, attempts)
        killed_s = time.monotonic()
        os.kill(first.pid, signal.SIGKILL)
        return _again_s(team, attempts) - killed_s


def _after_killed_host(bench: Bench, team: OurTeam, attempts: Path) -> float:
    bench.clean()
    attempts.unlink(missing_ok=True)
    with team.worker_processes(1, hosts=2) as worker_processes:
        worker_processes.start()
        first = _run_first(team, attempts)
        # Either host may have the task; kill that host before its children.
        host = next(host for host in worker_processes.workers if first.pid in host.pids())
        killed_s = time.monotonic()
        for pid in host.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return _again_s(team, attempts, timeout_s=3 * _LEASE_S) - killed_s


def _run_first(team: OurTeam, attempts: Path) -> Attempt:
    """Submit a task that holds its slot in the first attempt, and wait until it does."""

    async def submit() -> None:
        async with team.client() as driver:
            await driver.load(1)

    run_loop(submit)
    wait_until(lambda: len(read_attempts(attempts)) == 1, what="the first attempt")
    # The first heartbeat may be under way; wait for the usual case.
    time.sleep(1.0)
    return read_attempts(attempts)[0]


def _again_s(team: OurTeam, attempts: Path, timeout_s: float = 20.0) -> float:
    """Return when the task ran again; it must do so once, and end."""
    wait_until(lambda: len(read_attempts(attempts)) >= 2, what="the second attempt", timeout_s=timeout_s)
    wait_until(lambda: not team.remaining(), what="its end")
    started = read_attempts(attempts)
    if len(started) != 2:
        raise RuntimeError(f"a task died once and began {len(started)} times")
    return started[-1].started_ns / 1e9
