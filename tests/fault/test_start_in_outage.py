"""Worker hosts while Redis is down or silent: they start, wait, restart what dies, and obey signals all the same."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from anyio import to_thread

from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer
from tests.helpers import subprocesses
from tests.helpers.subprocesses import alive
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from orchestrator.embedded.server_binary import ServerBinary
    from tests.faultkit.processes import ActorProcess
    from tests.helpers.attempt_log import AttemptLog

WHOLE_AGAIN_S = 10.0
OBEYED_S = 14.0  # the host kills its workers after 15.2 s


def workers_of(host: ActorProcess) -> set[int]:
    """The living children of a host."""
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text()
    return {int(pid) for pid in children.split() if alive(int(pid))}


@pytest.mark.parametrize("how", ["down", pytest.param("silent", marks=pytest.mark.slow)])
async def test_workers_wait_for_redis(binary: ServerBinary, prefix: str, attempt_log: AttemptLog, how: str) -> None:
    """A host starts before Redis answers: no worker dies of that, and all register soon after Redis is there."""
    with RedisServer(binary, options={"appendonly": "yes"}) as server:
        settings = make_settings(server.url, prefix)
        keys = pool_keys(settings)
        if how == "down":
            await to_thread.run_sync(server.kill)
        else:
            server.process.freeze()
        with subprocesses.host(settings, attempt_log, processes=2) as host:
            await wait_for(
                lambda: host.output.count("worker_waits_for_redis") == 2, lambda: host.describe("two to wait"), 20
            )
            waiting = workers_of(host)
            if how == "down":
                await to_thread.run_sync(server.start)
            else:
                server.process.thaw()
            answered_s = time.monotonic()
            with server.client() as direct:
                await wait_for(
                    lambda: len(subprocesses.workers_of(direct, keys)) == 2,
                    lambda: host.describe("both"),
                    WHOLE_AGAIN_S,
                )
                assert time.monotonic() - answered_s < WHOLE_AGAIN_S
                assert set(subprocesses.workers_of(direct, keys).values()) == waiting
            assert "worker_died" not in host.output
            host.terminate()
            assert await to_thread.run_sync(host.wait_exit) == 0


async def test_a_worker_that_waits_for_redis_obeys(binary: ServerBinary, prefix: str, attempt_log: AttemptLog) -> None:
    """It holds nothing yet, so it ends at once."""
    with RedisServer(binary) as server:
        settings = make_settings(server.url, prefix, drain_s=60.0)
        await to_thread.run_sync(server.kill)
        with subprocesses.host(settings, attempt_log, processes=2) as host:
            await wait_for(
                lambda: host.output.count("worker_waits_for_redis") == 2, lambda: host.describe("two to wait"), 20
            )
            host.terminate()
            assert await to_thread.run_sync(host.wait_exit, 3.0) == 0, host.output


@pytest.mark.slow
@pytest.mark.parametrize("running", [0, 4])
async def test_a_silent_redis_blocks_no_host(
    binary: ServerBinary, prefix: str, attempt_log: AttemptLog, gate: Path, running: int
) -> None:
    """Redis stands still, and a worker dies: the host replaces it meanwhile, and obeys a signal in bounded time."""
    with RedisServer(binary) as server, ExitStack() as stack:
        settings = make_settings(server.url, prefix, drain_s=0.2, command_timeout_s=10.0, leader_lease_s=1.0)
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=2))
        async with Orchestrator(settings=settings) as orc:
            for _ in range(running):
                await orc.submit("hold", {"gate": str(gate)})
            await wait_for(lambda: len(attempt_log.notes("begun")) == running, "all to run", 15)
            # A worker registers agent by agent, and the host abandons only what has registered with all.
            await wait_for(lambda: host.output.count("worker_started") == 2, lambda: host.describe("both"), 15)
            server.process.freeze()
            try:
                dead, other = workers_of(host)
                os.kill(dead, signal.SIGKILL)
                await wait_for(lambda: "worker_died" in host.output, lambda: host.describe("the death"), 5)
                await wait_for(lambda: len(workers_of(host) - {dead, other}) >= 2, "a replacement and who abandons", 5)
                told_s = time.monotonic()
                host.terminate()
                await to_thread.run_sync(host.wait_exit, OBEYED_S + 10)
                assert time.monotonic() - told_s < OBEYED_S
                assert "worker_shutdown_timed_out" not in host.output
            finally:
                server.process.thaw()
