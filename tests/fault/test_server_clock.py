"""The wall clock of Redis steps, which leases, rate windows, due times and generations follow."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent
from orchestrator.testing.waiting import wait_for
from tests.fault.stepping_clock import SteppingClock
from tests.faultkit.servers import RedisServer
from tests.helpers.end_state import counters, find_violations
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.team import Team

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.embedded.server_binary import ServerBinary
    from tests.helpers.attempt_log import AttemptLog

HOUR_S = 3600.0
LEASE_S = 1.0


@pytest.fixture
def clock(tmp_path: Path) -> SteppingClock:
    """A clock for the server of this test."""
    return SteppingClock(tmp_path)


@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
async def test_the_clock_steps_an_hour(  # noqa: PLR0917 - fixtures
    seconds: float,
    binary: ServerBinary,
    clock: SteppingClock,
    prefix: str,
    attempt_log: AttemptLog,
    gate: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who holds a task keeps it, what comes then runs at once, what is due an hour later is due, and it is said."""
    with RedisServer(binary, env=clock.env) as server:
        async with Team(
            server, prefix, attempt_log, lease_s=LEASE_S, slots=10, sweep_s=0.3, leader_lease_s=1.0
        ) as team:
            await team.start_supervisor()
            for _ in range(2):
                await team.start_worker()
            async with team.open_client() as orc:
                held = [await orc.submit("hold", {"gate": str(gate)}) for _ in range(10)]
                later = await orc.submit("echo", {"n": 7}, delay=HOUR_S - 60)
                again = await orc.submit("flaky", {"fails": 1})
                assert await again.result(timeout=4) == 2
                await wait_for(lambda: len(attempt_log.notes("begun")) == 12, "all to run")
                before_s = float(team.direct.time()[0])
                clock.step(seconds)
                # Valkey reads the clock of the system once in a millisecond.
                await wait_for(
                    lambda: abs(float(team.direct.time()[0]) - before_s - seconds) < 5, "the step to be felt"
                )
                assert await (await orc.submit("echo", {"n": 1})).result(timeout=4) == 1
                assert await (await orc.submit("flaky", {"fails": 2})).result(timeout=8) == 3
                if seconds > 0:
                    assert await later.result(timeout=4) == 7
                else:
                    assert team.state(later.id) == "scheduled"
                    await later.cancel()
                await wait_for(lambda: "server_clock_stepped" in caplog.text, "a word about it")
                await anyio.sleep(2 * LEASE_S)  # whoever would take what is held does so now
                await anyio.Path(gate).touch()
                assert {await handle.result(timeout=10) for handle in held} == {"held"}
            assert max(attempt_log.runs()[handle.id] for handle in held) == 1, (
                "a task was taken from a worker that lived"
            )
            assert attempt_log.attempts_run_twice() == []
            assert find_violations(team.direct, team.keys) == []


@pytest.mark.slow
async def test_the_clock_goes_back_and_forth_under_load(
    binary: ServerBinary, clock: SteppingClock, prefix: str, attempt_log: AttemptLog
) -> None:
    """Two seconds back and forth again and again: every task ends once, generations of a task only rise."""
    with RedisServer(binary, env=clock.env) as server:
        async with Team(server, prefix, attempt_log, lease_s=LEASE_S, sweep_s=0.3, leader_lease_s=1.0) as team:
            await team.start_supervisor()
            workers = [await team.start_worker() for _ in range(2)]
            stepped = 0
            async with team.open_client() as orc, anyio.create_task_group() as background:

                async def step() -> None:
                    nonlocal stepped
                    for seconds in itertools.cycle((-2.0, 2.0, 2.0, -2.0)):
                        clock.step(seconds)
                        stepped += 1
                        await anyio.sleep(0.05)

                background.start_soon(step)
                handles = []
                for _ in range(100):
                    handles.append(await orc.submit("flaky", {"fails": 2}))
                    handles.append(await orc.submit("nap", delay=0.1))
                for handle in handles:
                    await handle.result(timeout=30)
                background.cancel_scope.cancel()
            assert stepped > 5
            for worker in workers:
                await worker.drain()
            for handle in handles:
                generations = [int(note.generation) for note in attempt_log.notes("begun", task=handle.id)]
                assert generations == sorted(set(generations)), "a generation came twice"
            assert counters(team.direct, team.keys)["succeeded"] == len(handles)
            assert find_violations(team.direct, team.keys) == []


async def test_limits_and_steps(clock: SteppingClock, prefix: str) -> None:
    """Back: the window stays closed, also when the clock has caught up. Forth: it opens early, by what was stepped."""
    agent, started = Agent("limited", rate="3/min"), []

    @agent.skill
    async def work() -> None:
        started.append(time.monotonic())

    with RedisServer(env=clock.env) as server:
        async with run_local_team(local_settings(server.url, prefix, supervisor__sweep_s=0.2)) as team:
            await team.work(agent)
            for _ in range(9):
                await team.orc.submit("work")
            await wait_for(lambda: len(started) == 3, "the first window to be used up")
            for seconds in (-HOUR_S, HOUR_S):
                clock.step(seconds)
                await anyio.sleep(0.6)  # three sweeps, which would start what is allowed
                assert len(started) == 3, "a step opened the window"
            clock.step(61)
            await wait_for(lambda: len(started) == 6, "the next window, which came early")
            await anyio.sleep(0.6)
            assert len(started) == 6, "the step opened more than one window"
