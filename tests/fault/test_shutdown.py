"""Ending in order where it is hard: while a lifespan starts, and while Redis is away."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread

from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import RedisServer
from tests.helpers import subprocesses
from tests.helpers.end_state import find_violations
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.attempt_log import AttemptLog

SLOW = "tests.fault.slow_agents"


@pytest.mark.parametrize("how", ["host", "script"])
async def test_told_to_stop_while_a_lifespan_starts(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, how: str
) -> None:
    """The start is broken off at once, and what had started is left again, last first; the end is an orderly one."""
    settings = make_settings(redis_server.url, prefix, drain_s=60.0)
    if how == "host":
        actor = subprocesses.host(settings, attempt_log, processes=1, agents=f"{SLOW}:agents")
    else:
        variables = subprocesses.environment(settings) | {ATTEMPT_LOG_VARIABLE: str(attempt_log.path)}
        actor = ActorProcess([sys.executable, "-m", SLOW], name="script", env=variables, cwd=subprocesses.ROOT)
    with actor:
        await wait_for(lambda: len(attempt_log.notes("entered")) == 2, lambda: actor.describe("its lifespans"), 15)
        told_s = time.monotonic()
        actor.terminate()
        assert await to_thread.run_sync(actor.wait_exit) == 0, actor.output
        assert time.monotonic() - told_s < 3, "it waited for the lifespan"
    assert [note.task for note in attempt_log.notes("left")] == ["second", "first"]


@pytest.mark.slow
async def test_told_to_stop_while_redis_is_away(
    prefix: str, attempt_log: AttemptLog, gate: Path, tmp_path: Path
) -> None:
    """Worker, host and supervisor end in bounded time; what ran is done once when everybody is back."""
    options = {"appendonly": "yes", "appendfsync": "always"}
    with RedisServer(options=options) as server, ExitStack() as stack:
        settings = make_settings(server.url, prefix, drain_s=0.3, command_timeout_s=0.5, leader_lease_s=1.0)
        keys = pool_keys(settings)
        supervisor = stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, lease_s=1.5, slots=3))
        async with Orchestrator(settings=settings) as orc:
            handles = [await orc.submit("hold", {"gate": str(gate)}) for _ in range(6)]
            await wait_for(lambda: len(attempt_log.notes("begun")) == 3, lambda: host.describe("three to run"), 15)
            server.kill()
            told_s = time.monotonic()
            supervisor.terminate()
            host.terminate()
            assert await to_thread.run_sync(supervisor.wait_exit) == 0, supervisor.output
            await to_thread.run_sync(lambda: host.wait_exit(40))
            took_s = time.monotonic() - told_s
            assert took_s < 12, host.output
            assert "worker_stopped" in host.output, "it did not come to its end by itself"
            assert len(attempt_log.notes("cancelled")) == 3, "the running ones were not told"
            for event in ("redis_lost", "worker_stopped"):
                lines = [line for line in host.output.splitlines() if event in line]
                assert lines, event
                assert all('"worker":' in line for line in lines), lines
            server.start()
            await anyio.Path(gate).touch()
            stack.enter_context(subprocesses.supervisor(settings, name="next-supervisor"))
            stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, lease_s=1.5, slots=3))
            assert [await handle.result(timeout=20) for handle in handles] == ["held"] * 6
        assert attempt_log.attempts_run_twice() == []
        with server.client() as direct:
            assert find_violations(direct, keys) == []
