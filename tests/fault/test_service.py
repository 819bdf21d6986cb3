"""Supervisor and worker host under a service manager: READY, STATUS, pings, the stop."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator.core.notify import Notifier
from orchestrator.services import open_services, pool_keys
from orchestrator.supervisor.daemon import supervise
from orchestrator.supervisor.promoter import Promoter
from orchestrator.supervisor.service_state import StatusReporter
from orchestrator.testing.waiting import wait_for, wait_until
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import RedisServer
from tests.helpers import subprocesses
from tests.helpers.local_team import local_settings
from tests.helpers.service_manager import ServiceManager
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings
    from orchestrator.core.turns import LoopTurn
    from tests.helpers.attempt_log import AttemptLog

WATCHDOG_S = 0.6


def supervisor(settings: Settings, manager: ServiceManager) -> ActorProcess:
    """A supervisor with a watchdog."""
    environ = subprocesses.environment(settings) | manager.environment(watchdog_s=WATCHDOG_S)
    return ActorProcess.python("-m", "orchestrator", "supervisor", "run", name="supervisor", env=environ)


def test_supervisor_waits_for_redis_and_says_what_it_does(prefix: str) -> None:
    """READY comes when Redis answers, not before; pings come while Redis is away; another supervisor stands by."""
    with RedisServer() as server, ServiceManager() as manager, ServiceManager() as second:
        settings = local_settings(server.url, prefix, supervisor__leader_lease_s=1.0, supervisor__sweep_s=0.2)
        server.kill()
        with supervisor(settings, manager) as leader:
            manager.wait_status("waits for Redis")
            assert manager.has("EXTEND_TIMEOUT_USEC"), "the service manager ends the start"
            assert not manager.has("READY")
            server.start()
            manager.wait_status("leads")
            assert manager.count("READY") == 1

            with supervisor(settings, second) as other:
                second.wait_status("stands by")
                other.terminate()
                assert other.wait_exit() == 0

            server.kill()
            manager.wait_status("waits for Redis")
            pings = manager.count("WATCHDOG")
            wait_until(lambda: manager.count("WATCHDOG") >= pings + 3, "pings while Redis is away")
            server.start()
            manager.wait_status("leads")

            leader.signal(signal.SIGTERM)
            manager.wait_status("stops on SIGTERM")
            assert leader.wait_exit() == 0, leader.output
        assert manager.messages[-1].fields.keys() == {"STOPPING", "STATUS"}
        assert {message.pid for message in manager.messages} == {manager.messages[0].pid}


def test_supervisor_without_redis_obeys_sigterm(prefix: str) -> None:
    """A supervisor that waits for Redis ends in order."""
    settings = local_settings("redis://127.0.0.1:1/0", prefix)
    with ServiceManager() as manager, supervisor(settings, manager) as waiting:
        manager.wait_status("waits for Redis")
        waiting.terminate()
        assert waiting.wait_exit() == 0
        assert manager.has("STOPPING")


@pytest.mark.slow
def test_host_waits_for_redis_and_guards_its_workers(prefix: str, attempt_log: AttemptLog) -> None:
    """READY comes with the first worker in the registry. A frozen worker is replaced; a frozen host sends no ping."""
    with RedisServer() as server, ServiceManager() as manager:
        settings = make_settings(server.url, prefix, stuck_after_s=1.0, heartbeat_s=0.2)
        keys = pool_keys(settings)
        server.kill()
        with subprocesses.host(
            settings, attempt_log, processes=2, env=manager.environment(watchdog_s=WATCHDOG_S)
        ) as host:
            manager.wait_status("waits for Redis")
            assert manager.has("EXTEND_TIMEOUT_USEC"), "the service manager ends the start"
            assert not manager.has("READY")
            server.start()
            manager.wait_status("runs 0 tasks in 2 workers")
            assert manager.count("READY") == 1

            with server.client() as direct:
                frozen = next(iter(subprocesses.workers_of(direct, keys).values()))
                os.kill(frozen, signal.SIGSTOP)
                pings = manager.count("WATCHDOG")
                wait_until(lambda: not subprocesses.alive(frozen), "the host to kill the frozen worker", 15)
                manager.wait_status("runs 0 tasks in 2 workers")
                assert manager.count("WATCHDOG") > pings + 3, "the host did not go on"

            host.freeze()
            pings = manager.count("WATCHDOG")
            time.sleep(WATCHDOG_S)  # the limit of the watchdog
            assert manager.count("WATCHDOG") == pings
            host.thaw()
            wait_until(lambda: manager.count("WATCHDOG") > pings, "pings of the host that goes on")

            host.terminate()
            assert host.wait_exit(20) == 0, host.output
        stops = [message.fields for message in manager.messages if "STOPPING" in message.fields]
        assert stops == [{"STOPPING": "1", "STATUS": "drains 0 tasks in 2 workers"}]
        assert {message.pid for message in manager.messages} == {manager.messages[0].pid}


async def test_hung_loop_of_the_supervisor_ends_the_pings(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop runs, but the promoter hangs: no ping, and a status that names it. Pings go on when it goes on."""
    hangs, goes_on = anyio.Event(), anyio.Event()
    promote = Promoter._promote

    async def hang(self: Promoter, turn: LoopTurn) -> None:
        turn.silent_after_s = 0.3
        hangs.set()
        await goes_on.wait()
        turn.silent_after_s = 30.0
        await promote(self, turn)

    monkeypatch.setattr(Promoter, "_promote", hang)
    settings = local_settings(redis_server.url, prefix, supervisor__leader_lease_s=0.9, supervisor__sweep_s=0.1)
    with ServiceManager() as manager:
        notifier = Notifier(manager.address, watchdog_s=WATCHDOG_S)
        async with open_services(settings, name="supervisor") as services, anyio.create_task_group() as group:
            state = StatusReporter(notifier, services.turns)
            group.start_soon(partial(supervise, services, on_state=state.does))
            group.start_soon(state.watch)
            await hangs.wait()
            await wait_for(lambda: any("no turn of promoter" in text for text in manager.statuses), "the status")
            pings, hung = manager.count("WATCHDOG"), len(manager.statuses)
            await anyio.sleep(WATCHDOG_S)  # the limit of the watchdog; the leader renews its lease in that time
            assert manager.count("WATCHDOG") == pings
            assert "leads" not in manager.statuses[hung:], "the leader hides the silent loop"
            goes_on.set()
            await wait_for(lambda: manager.count("WATCHDOG") > pings + 1, "pings of a supervisor that goes on")
            await wait_for(lambda: manager.statuses[-1] == "leads", "the status of before")
            group.cancel_scope.cancel()


def test_watchdog_leaves_the_stacks(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """SIGABRT, by which systemd ends a silent service, writes the stacks of supervisor and host to standard error."""
    settings = local_settings(redis_server.url, prefix)
    with ServiceManager() as manager, supervisor(settings, manager) as process:
        manager.wait_status("leads")
        process.signal(signal.SIGABRT)
        assert process.wait_exit() == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in process.output
    with (
        ServiceManager() as manager,
        subprocesses.host(settings, attempt_log, processes=1, env=manager.environment()) as host,
    ):
        manager.wait_status("in 1 worker")
        host.signal(signal.SIGABRT)
        assert host.wait_exit() == -signal.SIGABRT
        assert "workers/runtime/host.py" in host.output.partition("Fatal Python error: Aborted")[2]


def test_refused_login_is_visible_at_once(redis_server: RedisServer, prefix: str) -> None:
    """A supervisor with a wrong password ends, and says why in its status and in its log; without the password."""
    url = redis_server.url.replace("://", "://stranger:hunter22@", 1)
    with ServiceManager() as manager, supervisor(local_settings(url, prefix), manager) as process:
        assert process.wait_exit() == 1
        assert manager.statuses[-1].startswith("ended: Redis at "), manager.statuses
        assert "refused the login" in manager.statuses[-1]
        assert "supervisor_failed" in process.output
        assert "hunter22" not in process.output + manager.statuses[-1]


FROZEN = """
import sys
import anyio
from orchestrator.core import turns as module
from orchestrator.core.notify import Notifier
from orchestrator.supervisor.service_state import StatusReporter

module.LATE_AFTER_S = 0.1
turns = module.LoopTurns()

async def turn_slowly():
    turn = turns.loop("slow", silent_after_s=0.6)
    while True:
        for _ in range(10):
            await anyio.sleep(0.02)
        turn.record()

async def run():
    async with anyio.create_task_group() as group:
        group.start_soon(turn_slowly)
        group.start_soon(StatusReporter(Notifier.take(), turns).watch)
        if "hang" in sys.argv:
            turns.loop("hung", silent_after_s=1.0)

anyio.run(run)
"""


@pytest.mark.parametrize("hangs", [False, True], ids=["", "hang"])
def test_frozen_process_reports_no_loops(*, hangs: bool) -> None:
    """A process that was stopped for longer than the limits of its loops reports none. Twin: one that hangs."""
    with (
        ServiceManager() as manager,
        ActorProcess.python(
            "-c",
            FROZEN,
            *(["hang"] if hangs else []),
            name="frozen",
            env={**os.environ, **manager.environment(watchdog_s=0.3)},
        ) as process,
    ):
        wait_until(lambda: manager.count("WATCHDOG") >= 2, "the first pings")
        process.freeze()
        time.sleep(0.9)  # longer than the limit of a loop
        pings = manager.count("WATCHDOG")
        process.thaw()
        wait_until(lambda: manager.count("WATCHDOG") >= pings + 2, "pings after the pause")
        assert manager.statuses == []
        if hangs:
            manager.wait_status("hung: no turn of hung")
