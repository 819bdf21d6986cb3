"""Runs tasks that take seconds, kills their workers, and tells when each task ran again and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.payload import Attempt, read_attempts
from benchmarks.processes import ChildFailedError
from orchestrator import Submission, TaskFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence
    from pathlib import Path

    from benchmarks.ours.team import OurTeam, OurWorkers
    from orchestrator import Orchestrator, TaskHandle

_POLL_S = 0.01
# Timers of event loops count whole milliseconds.
_TIMER_S = 0.01


@dataclass(frozen=True, slots=True)
class Task:
    """A task that takes `seconds` in each attempt; a poison kills its process after `kill_after_s`."""

    seconds: float
    kill_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The end of a task, as its client sees it."""

    at_s: float
    dead: bool


@dataclass(slots=True)
class Crash:
    """One run: its workers, the submitted tasks by number, and their ends so far. All times are monotonic.

    Attributes:
        submitted_s: when each task was submitted.
        killed_s: the time of the kill.
        killed_pids: the killed processes.
    """

    team: OurTeam
    workers: OurWorkers
    orc: Orchestrator
    file: Path
    tasks: list[Task] = field(default_factory=list)
    submitted_s: list[float] = field(default_factory=list)
    ends: dict[int, End] = field(default_factory=dict)
    killed_s: float = 0.0
    killed_pids: frozenset[int] = frozenset()
    _waits: set[asyncio.Task[None]] = field(default_factory=set)

    async def submit(self, tasks: Sequence[Task]) -> None:
        """Submit tasks in one call, and watch for their ends."""
        first = len(self.tasks)
        self.tasks += tasks
        self.submitted_s += [time.monotonic()] * len(tasks)
        skill = self.team.agent.skill
        handles = await self.orc.submit_many(
            [
                Submission(skill, {"number": number, "seconds": task.seconds, "kill_after_s": task.kill_after_s})
                for number, task in enumerate(tasks, first)
            ]
        )
        for number, handle in enumerate(handles, first):
            self._waits.add(asyncio.create_task(self._watch(number, handle)))

    async def _watch(self, number: int, handle: TaskHandle[object]) -> None:
        dead = False
        try:
            await handle.result()
        except TaskFailed:
            dead = True
        self.ends[number] = End(time.monotonic(), dead)

    @property
    def attempts(self) -> list[Attempt]:
        """All attempts so far, in the order of their starts."""
        return read_attempts(self.file)

    def busiest(self) -> int:
        """Return the process that runs the most tasks."""
        running = [one.pid for one in self.attempts if not one.ended_ns]
        return max(set(running), key=running.count)

    def kill(self, pids: Collection[int]) -> None:
        """Kill processes with SIGKILL, in this order."""
        self.killed_s, self.killed_pids = time.monotonic(), frozenset(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_hosts(self, count: int) -> None:
        """Kill the hosts that run the most tasks, each before its workers, as when their machines fail."""
        running = [one.pid for one in self.attempts if not one.ended_ns]
        trees = [host.pids() for host in self.workers.workers]
        trees.sort(key=lambda pids: -sum(pid in pids for pid in running))
        self.kill([pid for pids in trees[:count] for pid in pids])

    @property
    def lost(self) -> set[int]:
        """Numbers of the tasks whose attempts ended with the killed processes."""
        return {one.number for one in self.attempts if one.pid in self.killed_pids and not one.ended_ns}

    def ran_again_s(self) -> float:
        """Return the time from the kill until the last lost task ran again."""
        lost = self.lost
        starts: dict[int, int] = {}
        for one in self.attempts:
            if one.number in lost and one.pid not in self.killed_pids:
                starts.setdefault(one.number, one.started_ns)
        if len(starts) != len(lost):
            raise ChildFailedError(f"{len(lost) - len(starts)} of {len(lost)} lost tasks did not run again")
        return max(starts.values()) / 1e9 - self.killed_s

    def ended_s(self, numbers: Collection[int]) -> float:
        """Return the time of the last end; every task must have run as long as it takes, whatever attempt it was."""
        for number in numbers:
            ran_s = (
                max((one.ended_ns - one.started_ns for one in self.attempts if one.number == number), default=0) / 1e9
            )
            if not self.ends[number].dead and ran_s < self.tasks[number].seconds - _TIMER_S:
                raise ChildFailedError(f"task {number} ended after {ran_s:.2f} s of {self.tasks[number].seconds:g} s")
        return max(self.ends[number].at_s for number in numbers)

    async def until_running(self, count: int) -> None:
        """Wait until `count` attempts run at the same time."""
        await self.until(
            lambda: sum(not one.ended_ns for one in self.attempts) == count, f"{count} running tasks", timeout_s=30
        )

    async def until_ended(self, timeout_s: float) -> None:
        """Wait for the ends of all tasks."""
        await self.until(lambda: len(self.ends) == len(self.tasks), "the ends of all tasks", timeout_s=timeout_s)

    async def until(self, condition: Callable[[], bool], what: str, *, timeout_s: float) -> None:
        """Wait for a condition; fail early when the supervisor or a host that was not killed has ended."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            for child in (*self.workers.workers, *self.workers.helpers):
                if child.process.pid not in self.killed_pids:
                    child.check()
            if time.monotonic() > deadline:
                raise ChildFailedError(f"waited {timeout_s:g} s in vain for {what}; {self._state()}")
            await asyncio.sleep(_POLL_S)

    def _state(self) -> str:
        again = {one.number for one in self.attempts if one.pid not in self.killed_pids} & self.lost
        return f"{len(self.ends)} of {len(self.tasks)} ended, {len(again)} of {len(self.lost)} lost ones run again"

    def close(self) -> None:
        """Stop watching."""
        for one in self._waits:
            one.cancel()


@contextlib.asynccontextmanager
async def crash(team: OurTeam, file: Path, *, processes: int, hosts: int = 1) -> AsyncIterator[Crash]:
    """Start hosts with worker processes and a supervisor; the handlers of the team write their attempts to the file."""
    with team.worker_processes(processes, hosts=hosts) as workers:
        workers.start()
        async with team.orchestrator() as orc:
            run = Crash(team, workers, orc, file)
            try:
                yield run
            finally:
                run.close()
