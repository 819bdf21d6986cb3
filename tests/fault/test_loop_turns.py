"""The loops of supervisor and worker record their turns, also while Redis is away; a hung one is found."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial

import anyio

from orchestrator import Agent, TaskContext
from orchestrator.core.ids import new_worker_id
from orchestrator.core.turns import SILENT_AFTER_S, LoopTurn, LoopTurns
from orchestrator.services import open_services
from orchestrator.supervisor.daemon import supervise
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.watchdog import LoopProbe, LoopWatchdog
from orchestrator.workers.runtime.worker import Worker
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import local_settings

SUPERVISOR_LOOPS = {
    "leader", "doorbell", "sweep", "assigner", "promoter", "scheduler", "recoverer", "reconciler", "controller",
    "control_sweep", "registry_cleanup", "event_trimmer", "older_workers", "registration_check", "clock_watch",
    "key_types",
}  # fmt: skip


class KeptTurns(LoopTurns):
    """Keeps the loops that it made, so that the test sees when each one turned."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, LoopTurn] = {}

    def loop(self, name: str, silent_after_s: float = SILENT_AFTER_S) -> LoopTurn:
        """Watch a loop."""
        self.made[name] = super().loop(name, silent_after_s)
        return self.made[name]

    def not_turned_since(self, since_s: float) -> set[str]:
        """Return the loops whose last turn is older."""
        return {name for name, turn in self.made.items() if turn.silent_s() > time.monotonic() - since_s}


async def test_loops_turn_with_and_without_redis(prefix: str) -> None:
    """Every loop of a leader and of a worker turns again after the start, while Redis is gone, and afterwards."""
    turns = KeptTurns()
    agent = Agent("scribe", lease=1)

    @agent.skill
    async def work(ctx: TaskContext) -> int:
        return ctx.attempt

    rare = {
        "leader",
        "reconciler",
        "controller",
        "event_trimmer",
        "older_workers",
    }  # without a fault they turn every 15 s or less often
    loops = {*SUPERVISOR_LOOPS, "fetcher", "heartbeat", "event_loop"}
    with RedisServer() as server:
        settings = local_settings(
            server.url, prefix, supervisor__sweep_s=0.1, supervisor__leader_lease_s=60, worker__heartbeat_s=0.1
        )
        async with open_services(settings, name="test") as opened, anyio.create_task_group() as group:
            services = replace(opened, turns=turns)
            group.start_soon(supervise, services)
            worker = Worker(services, [agent], worker=new_worker_id())
            group.start_soon(partial(worker.run, listen=False))
            await wait_for(lambda: turns.made.keys() >= loops, "all loops to start")
            # A leader renews its lease of 60 s every 20 s; the limits follow the waits.
            assert 50 <= turns.made["leader"].silent_after_s < 60

            async def all_turn(when: str, loops: set[str]) -> None:
                since_s = time.monotonic()
                await wait_for(
                    lambda: not turns.not_turned_since(since_s) & loops,
                    lambda: f"{turns.not_turned_since(since_s) & loops} to turn {when}",
                )
                assert turns.silent() == ()

            await all_turn("after the start", loops - rare)
            server.kill()
            await all_turn("while Redis is gone", loops - rare | {"controller"})
            server.start()
            await all_turn("when Redis is back", loops - rare)
            worker.stop()
            await wait_for(lambda: turns.made["heartbeat"] not in turns._loops, "the worker to end")
            group.cancel_scope.cancel()
    assert turns._loops == [], "an ended loop is watched"


async def test_worker_with_a_silent_loop_is_not_recorded_as_turning() -> None:
    """The event loop runs, but a fetcher hangs: the watchdog gets no turns. Twin: it gets them while that turns."""
    turns, watchdog = LoopTurns(), LoopWatchdog(60.0)
    probe = LoopProbe(asyncio.get_running_loop(), watchdog, turns, silent_after_s=30.0)
    fetcher = turns.loop("fetcher", silent_after_s=30.0)

    async def silent_s() -> float:
        """Ask the event loop, and return for how long the watchdog has had no turn."""
        probe.unanswered_s()
        await wait_for(lambda: probe._asked_s is None, "the event loop to answer")
        return watchdog.silent_s()

    try:
        asked_s = time.monotonic()
        assert await silent_s() < time.monotonic() - asked_s
        fetcher.silent_after_s = 0.0
        hung_s = time.monotonic()
        await wait_for(lambda: turns.silent() == (fetcher,), "the fetcher to be silent")
        assert await silent_s() > time.monotonic() - hung_s
        fetcher.silent_after_s = 30.0
        turns_s = time.monotonic()
        assert await silent_s() < time.monotonic() - turns_s
    finally:
        probe.close()
        watchdog.disarm()
