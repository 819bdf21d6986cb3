"""The health of a worker host: what its process answers while workers start, drain, freeze and die."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Orchestrator
from orchestrator.core.settings import Settings
from orchestrator.monitoring.catalogue import LAG_BUCKETS_S
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.host_health import HostHealth
from orchestrator.workers.runtime.host_memory import HostMemory
from orchestrator.workers.runtime.watchdog import LoopWatchdog
from tests.faultkit.processes import ActorProcess
from tests.helpers import subprocesses
from tests.helpers.http_client import Reply, request
from tests.helpers.metrics import Samples, parse, value
from tests.helpers.subprocesses import alive
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

AGENTS = "tests.fault.parent_agents:parent"


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A unix socket of the test's own, with a short path."""
    return f"unix:{tmp_path_factory.mktemp('h')}/s"


def healthy(settings: Settings, address: str) -> Settings:
    """Settings with a health server of the worker host."""
    return settings.model_copy(update={"worker": settings.worker.model_copy(update={"health": address})})


async def ask(address: str, path: str) -> Reply | None:
    """An answer, or None while no server listens."""
    try:
        return await request(address, path)
    except (OSError, anyio.BrokenResourceError):
        return None


async def has_status(address: str, path: str, status: int) -> bool:
    """Whether a request is answered with this status."""
    reply = await ask(address, path)
    return reply is not None and reply.status == status


async def scrape(address: str) -> Samples:
    """The metrics of a host."""
    return parse((await request(address, "/metrics")).body)


def servers_of(host: int, address: str) -> list[int]:
    """The children of a host that hold the listening socket of an address."""
    children = Path(f"/proc/{host}/task/{host}/children").read_text().split()
    lines = Path("/proc/net/unix").read_text().splitlines()
    path = address.removeprefix("unix:")
    sockets = {f"socket:[{line.split()[6]}]" for line in lines if line.endswith(path)}
    return [
        int(pid)
        for pid in children
        if sockets & {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    ]


@asynccontextmanager
async def running(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, address: str, *, processes: int = 1
) -> AsyncIterator[tuple[ActorProcess, Orchestrator]]:
    """A supervisor, and a host whose health is served."""
    settings = healthy(make_settings(redis_server.url, prefix, leader_lease_s=1.0, heartbeat_s=0.2), address)
    async with AsyncExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=processes, agents=AGENTS))
        orc = await stack.enter_async_context(Orchestrator(settings=settings))
        await wait_for(lambda: has_status(address, "/readyz", 200), lambda: host.describe("a host that is ready"), 20)
        yield host, orc


@pytest.mark.slow
async def test_a_host_with_workers(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, address: str
) -> None:
    """A worker that dies is counted; the end of the server touches no worker, and another server starts."""
    async with running(redis_server, prefix, attempt_log, address, processes=2) as (host, orc):
        live = await request(address, "/livez")
        assert (live.status, live.body) == (200, "host: ok\nworkers: ok\n")

        async def both() -> bool:
            return value(await scrape(address), "orc_host_workers", state="running") == 2

        await wait_for(both, "both workers to register", 20)
        found = await scrape(address)
        slots = value(found, "orc_host_slots")
        assert slots > 0
        assert value(found, "orc_host_restarts_total") == 0
        (server,) = servers_of(host.pid, address)
        os.kill(server, signal.SIGKILL)
        await wait_for(lambda: has_status(address, "/readyz", 200), "another server", 20)
        assert servers_of(host.pid, address) != [server]
        found = await scrape(address)
        assert (value(found, "orc_host_restarts_total"), value(found, "orc_host_slots")) == (0, slots)
        worker, child = await (await orc.submit("spawn")).result(timeout=15)
        os.kill(worker, signal.SIGKILL)

        async def replaced() -> bool:
            found = await scrape(address)
            return value(found, "orc_host_restarts_total") == 1 and value(found, "orc_host_slots") == slots

        await wait_for(replaced, "a replacement", 20)
        assert not alive(child)
        (server,) = servers_of(host.pid, address)
        os.kill(host.pid, signal.SIGTERM)
        await wait_for(lambda: not alive(server), "the server to end with its host", 20)
        await wait_for(lambda: host.returncode == 0, "the host to end", 20)
        assert not os.path.exists(address.removeprefix("unix:"))  # noqa: ASYNC240, PTH110


async def test_two_hosts_with_one_address(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, address: str
) -> None:
    """The end of a host that does not listen at the address leaves the socket of the host that does."""
    settings = healthy(make_settings(redis_server.url, prefix), address)
    with ExitStack() as stack:
        first = stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS))
        await wait_for(lambda: has_status(address, "/readyz", 200), lambda: first.describe("a ready host"), 20)
        second = stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS))
        await wait_for(
            lambda: "health_server_unavailable" in second.output, lambda: second.describe("its line about it"), 20
        )
        os.kill(second.pid, signal.SIGTERM)
        await wait_for(lambda: second.returncode == 0, "the second host to end", 20)
        assert await has_status(address, "/readyz", 200)


def test_a_server_that_dies_while_no_worker_runs(prefix: str, address: str) -> None:
    """The host notices the end of its server although it has no worker, and plans another one."""
    settings = healthy(make_settings("redis://127.0.0.1:1/0", prefix), address)
    program = """
import os, signal
from orchestrator.core.settings_sources import SettingsSources
from orchestrator.workers.runtime.host import Host
from tests.fault.parent_agents import parent

host = Host(SettingsSources.of().load().settings, [parent], processes=1)
host._turn()
server = host._health._pid
os.kill(server, signal.SIGKILL)
os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
host._reap()
assert host._health._pid is None
"""
    with ActorProcess.python("-c", program, name="host", env=subprocesses.environment(settings)) as host:
        assert host.wait_exit(20) == 0, host.output
        assert "health_process_ended" in host.output


async def test_a_host_that_is_gone(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, address: str
) -> None:
    """The server ends with a host that is killed; a host that stands still is not live."""
    settings = healthy(make_settings(redis_server.url, prefix), address)
    memory = HostMemory(1)
    health = HostHealth(settings, address, {settings.pool: memory}, watched=True)
    with ExitStack() as stack:
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS))
        await wait_for(lambda: has_status(address, "/livez", 200), lambda: host.describe("a live host"), 20)
        os.kill(host.pid, signal.SIGKILL)
        await wait_for(lambda: _is_gone(address), "the server to end with its host", 20)
    # The same with the time of a host that stood still for long.
    memory.host.turned_s = 1.0
    (check, _) = health.live()
    assert check.name == "host"
    assert check.failure is not None


async def _is_gone(address: str) -> bool:
    return await ask(address, "/livez") is None


class TestChecks:
    """The answers that follow from the shared memory."""

    async def test_states(self, address: str) -> None:
        """A host is ready while one of its workers takes tasks and reaches Redis."""
        memory = HostMemory(2)
        health = HostHealth(healthy(Settings(), address), address, {"default": memory}, watched=False)

        async def failures() -> dict[str, str]:
            return {check.name: check.failure for check in await health.ready() if check.failure}

        assert await failures() == {"registered": "no worker has registered", "redis": "no worker reaches it"}
        one, other = (LoopWatchdog(60.0, memory.take()) for _ in range(2))
        one.mark_registered(3)
        assert await failures() == {}
        one.share_load(2, reachable=False)
        assert await failures() == {"redis": "no worker reaches it"}
        other.mark_registered(3)
        assert await failures() == {}
        other.record_lag(4.0)
        assert await failures() == {}
        one.record_lag(2.0)
        assert await failures() == {"lag": "the event loops were blocked for 2.0 s"}
        for _ in range(10):
            one.record_lag(0.0)
        assert await failures() == {}
        one.mark_draining()
        assert "registered" not in await failures()
        other.mark_draining()
        assert (await failures())["registered"] == "drains"
        assert all(check.failure is None for check in health.live())
        one.cell.turned_s = 1.0
        assert "event loop" in str(health.live()[0].failure)

    def test_no_counter_falls(self) -> None:
        """A reader that copies the cells while the sums of a worker move to the host counts them, once."""
        memory, bucket = HostMemory(1), len(LAG_BUCKETS_S)
        process = os.fork()
        if process == 0:
            while True:
                memory.take().lag_counts[bucket] = 1
                time.sleep(0.0002)
                (cell,) = memory.workers()
                memory.release(cell)
        try:
            last, end_s = 0, time.monotonic() + 0.5
            while time.monotonic() < end_s:
                host, cells = memory.snapshot()
                now = host.lag_counts[bucket] + sum(cell.lag_counts[bucket] for cell in cells)
                assert now >= last
                last = now
            assert last > 10
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    async def test_counters_outlive_workers(self, address: str) -> None:
        """The sums of a host do not fall when a worker ends."""
        memory = HostMemory(1)
        health = HostHealth(healthy(Settings(), address), address, {"default": memory}, watched=True)
        for ended in range(3):
            cell = memory.take()
            watchdog = LoopWatchdog(60.0, cell)
            watchdog.record_lag(0.003)
            cell.reconnects = 2
            found = parse((await health.metrics()).decode())
            assert value(found, "orc_loop_lag_seconds_count") == ended + 1
            assert value(found, "orc_redis_reconnects_total") == 2 * (ended + 1)
            memory.release(cell)


async def test_a_worker_without_a_host(redis_server: RedisServer, prefix: str, address: str) -> None:
    """`orchestrator.run` serves the health in the process of the worker."""
    program = "from orchestrator import run; from tests.fault.parent_agents import parent; run(parent)"
    settings = healthy(make_settings(redis_server.url, prefix, heartbeat_s=0.2), address)
    command = [sys.executable, "-c", program]
    with ActorProcess(command, name="worker", env=subprocesses.environment(settings), cwd=subprocesses.ROOT) as worker:
        await wait_for(
            lambda: has_status(address, "/readyz", 200), lambda: worker.describe("a worker that is ready"), 20
        )
        found = await scrape(address)
        assert value(found, "orc_host_workers", state="running") == 1
        os.kill(worker.pid, signal.SIGTERM)
        await wait_for(lambda: worker.returncode == 0, "the worker to end", 20)
        assert not os.path.exists(address.removeprefix("unix:"))  # noqa: ASYNC240, PTH110


async def test_counters_go_on_over_a_failover(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of two supervisors both are ready and export the same counters; one that remains leads and has lost none."""
    folder = tmp_path_factory.mktemp("h")
    addresses = [f"unix:{folder}/{name}" for name in "ab"]
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    with ExitStack() as stack:
        supervisors = {}
        for address in addresses:
            own = settings.supervisor.model_copy(update={"health": address})
            described = subprocesses.supervisor(settings.model_copy(update={"supervisor": own}))
            supervisors[address] = stack.enter_context(described)
        for address in addresses:
            await wait_for(partial(has_status, address, "/readyz", 200), "a supervisor that is ready", 20)
        async with Orchestrator(settings=settings) as orc:
            for _ in range(3):
                await orc.submit("spawn")

        async def leaders() -> list[str]:
            return [one for one in addresses if value(await scrape(one), "orc_supervisor_leads") == 1]

        await wait_for(leaders, "a leader", 20)
        (leader,) = await leaders()
        (other,) = set(addresses) - {leader}
        before = await scrape(leader)
        assert value(before, "orc_tasks_submitted_total") == 3
        assert value(before, "orc_supervisors") == 2
        supervisors[leader].kill()

        async def leads() -> bool:
            return value(await scrape(other), "orc_supervisor_leads") == 1

        await wait_for(leads, "the other one to lead", 20)
        after = await scrape(other)
        totals = [key for key in before if key[0].startswith("orc_task") and key[0].endswith("_total")]
        assert all(after[key] >= before[key] for key in totals)
        assert value(after, "orc_tasks_submitted_total") == 3
