"""Several pools in one supervisor process and in one worker host: a fault of one pool leaves the others alone."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from orchestrator import Orchestrator
from orchestrator.agents import scripts as registry
from orchestrator.core.backoff import ExponentialBackoff
from orchestrator.core.errors import ConfigError, FormatMismatch
from orchestrator.core.formats import FORMAT
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.notify import WAITS_FOR_REDIS, Notifier
from orchestrator.core.rates import parse_rate
from orchestrator.monitoring.supervisor_health import SupervisorHealth
from orchestrator.services import open_services, pool_keys
from orchestrator.store.keys import PoolKeys
from orchestrator.supervisor import pool_runner
from orchestrator.supervisor.daemon import ServedPools
from orchestrator.supervisor.promoter import Promoter
from orchestrator.testing.waiting import wait_for, wait_until
from tests.fault.limited_agents import crawler
from tests.faultkit.clusters import Cluster, run_cluster
from tests.faultkit.processes import ActorProcess
from tests.helpers import subprocesses
from tests.helpers.local_team import local_settings
from tests.helpers.metrics import parse, value
from tests.helpers.service_manager import ServiceManager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    import redis

    from orchestrator.core.settings import Settings
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

POOLS = ("mail", "billing")
OTHER = "another-supervisor"
FAST = {"supervisor__leader_lease_s": 0.6, "supervisor__sweep_s": 0.1, "worker__heartbeat_s": 0.2}


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that failed is tried again at once."""
    monkeypatch.setattr(pool_runner, "_BACKOFF", ExponentialBackoff(base_s=0.02, cap_s=0.05))


def of_pool(settings: Settings, pool: str) -> Settings:
    """The same settings with another pool."""
    return settings.model_copy(update={"pool": pool})


class Served:
    """A supervisor of several pools in this process.

    Attributes:
        statuses: what it told the service manager last.
        health: of the process.
    """

    def __init__(self, settings: Settings, manager: ServiceManager, pools: Sequence[str]) -> None:
        self.settings, self._manager = settings, manager
        self.health = SupervisorHealth(settings, "unix:/unused", pools)
        self._pools = ServedPools(LiveSettings(settings), pools, Notifier(manager.address), self.health)
        self.failure: Exception | None = None
        self.ended = anyio.Event()

    async def run(self) -> None:
        """Run until cancelled, or until no pool can be served."""
        try:
            await self._pools.run()
        except Exception as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure
        self.ended.set()

    @property
    def status(self) -> str:
        """The last status."""
        return next(reversed(self._manager.statuses), "")

    async def is_served(self, pool: str, *, within_s: float = 15.0) -> bool:
        """Whether the loops of a pool run: a delayed task becomes ready."""
        settings = of_pool(self.settings, pool)
        async with Orchestrator(settings=settings) as orc:
            handle = await orc.submit("work", delay=0.01)
            with anyio.move_on_after(within_s):
                while (await handle.info()).state == "scheduled":  # noqa: ASYNC110 - another process changes it
                    await anyio.sleep(0.02)
                return True
        return False

    async def is_idle(self, pool: str) -> bool:
        """Whether no loop of a pool runs."""
        return not await self.is_served(pool, within_s=1.0)


@asynccontextmanager
async def serving(settings: Settings, pools: Sequence[str] = POOLS) -> AsyncIterator[Served]:
    """Serve pools in this process."""
    with ServiceManager() as manager:
        served = Served(settings, manager, pools)
        async with anyio.create_task_group() as group:
            group.start_soon(served.run)
            yield served
            group.cancel_scope.cancel()


@pytest.fixture
def settings(redis_server: RedisServer, prefix: str) -> Settings:
    """Short times; the first pool is the one of the settings."""
    return local_settings(redis_server.url, prefix, pool=POOLS[0], **FAST)


@pytest.fixture
def keys(settings: Settings) -> dict[str, PoolKeys]:
    """The keys of both pools."""
    return {pool: pool_keys(of_pool(settings, pool)) for pool in POOLS}


def failures(served: Served, checks: Sequence[object]) -> dict[str, str]:
    """The checks of a health server that fail."""
    return {check.name: check.failure for check in checks if check.failure}  # type: ignore[attr-defined]


def tracebacks(caplog: pytest.LogCaptureFixture) -> set[bool]:
    """Whether the lines about failed pools have a traceback."""
    return {record.exc_info is not None for record in caplog.records if "pool_failed" in str(record.msg)}


async def test_one_process_serves_both(settings: Settings) -> None:
    """Both pools are served; status, health and metrics name them, and the metrics are valid."""
    async with serving(settings) as served:
        assert all([await served.is_served(pool) for pool in POOLS])
        await wait_for(lambda: served.status == "leads (billing, mail)", lambda: f"a status; it is {served.status}")
        assert [check.name for check in await served.health.ready()] == [
            "loops of mail", "loops of billing", "redis of mail", "redis of billing", "lag",
        ]  # fmt: skip
        found = parse((await served.health.metrics()).decode(), pools=True)
        for pool in POOLS:
            assert value(found, "orc_supervisor_leads", pool=pool) == 1
        assert value(found, "orc_silent_loops", pool="") == 0


async def test_another_supervisor_takes_one_lease(
    settings: Settings, keys: dict[str, PoolKeys], redis_client: redis.Redis
) -> None:
    """The process stands by for the pool whose lease it lost, and serves the other one. Twin: it gets it back."""
    async with serving(settings) as served:
        assert await served.is_served("mail")
        redis_client.set(keys["mail"].leader, OTHER, px=60_000)
        await wait_for(lambda: "stands by" in served.status, "the end of the lease")
        assert served.status == "stands by: another supervisor leads (mail); leads (billing)"
        # It leads until the time has passed for which it trusts its last request.
        await wait_for(partial(served.is_idle, "mail"), "the end of its loops", 10)
        assert await served.is_served("billing")
        redis_client.delete(keys["mail"].leader)
        await wait_for(partial(served.is_served, "mail"), "the lease", 20)
        await wait_for(lambda: served.status == "leads (billing, mail)", "the lease")


@pytest.mark.parametrize("damaged", ["scheduled", "leader"])
async def test_one_pool_has_a_corrupt_key(
    settings: Settings, keys: dict[str, PoolKeys], redis_client: redis.Redis, damaged: str
) -> None:
    """A key of another type stops the loops that need it, in its pool alone, until it is renamed or deleted."""
    async with serving(settings) as served:
        assert await served.is_served("mail")
        key = getattr(keys["mail"], damaged)
        redis_client.delete(key)
        redis_client.hset(key, "a", "b")
        if damaged == "leader":
            await wait_for(lambda: "WRONGTYPE" in served.status, "the refusal")
        assert await served.is_served("billing")
        if damaged == "leader":
            redis_client.delete(key)
        else:
            await wait_for(lambda: redis_client.type(key) != b"hash", "the key to be renamed", 20)
        await wait_for(partial(served.is_served, "mail"), "the first pool", 20)


async def test_a_pool_that_shuts_the_program_out(
    settings: Settings, keys: dict[str, PoolKeys], redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Its refusal ends no other pool, the health names it, and the pool is tried again. Twin: both refuse."""
    redis_client.set(keys["mail"].format, FORMAT + 1)
    async with serving(settings) as served:
        assert await served.is_served("billing")
        await wait_for(lambda: "fails: " in served.status, "the refusal")
        assert "(mail); leads (billing)" in served.status
        found = failures(served, await served.health.ready())
        assert found.keys() == {"redis of mail"}
        assert f"format {FORMAT + 1}" in found["redis of mail"]
        assert not failures(served, served.health.live())
        assert tracebacks(caplog) == {False}
        redis_client.set(keys["mail"].format, FORMAT)
        await wait_for(partial(served.is_served, "mail"), "the first pool", 20)
        await wait_for(lambda: served.status == "leads (billing, mail)", "both")
    redis_client.set(keys["mail"].format, FORMAT + 1)
    redis_client.set(keys["billing"].format, FORMAT + 1)
    async with serving(settings) as served:
        with anyio.fail_after(5):
            await served.ended.wait()
        assert isinstance(served.failure, FormatMismatch)


async def test_an_unexpected_exception(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault in the loops of one pool ends neither the process nor the other pool. Twin: of the only pool it does."""
    run, broken = Promoter.run, set[str]()

    async def fail(self: Promoter) -> None:
        if (pool := self._services.settings.pool) in broken:
            raise RuntimeError(f"planted in {pool}")  # no loop survives one as damaged data
        await run(self)

    monkeypatch.setattr(Promoter, "run", fail)
    broken.add("mail")
    async with serving(settings) as served:
        assert await served.is_served("billing")
        await wait_for(lambda: "planted in mail" in served.status, "the failure")
        assert not served.ended.is_set()
        assert tracebacks(caplog) == {True}
        broken.clear()
        await wait_for(partial(served.is_served, "mail"), "the first pool", 20)
    broken.add("mail")
    async with serving(settings, ["mail"]) as served:
        with anyio.fail_after(5):
            await served.ended.wait()
        assert "planted in mail" in repr(served.failure)


def test_supervisor_process(settings: Settings, keys: dict[str, PoolKeys], redis_client: redis.Redis) -> None:
    """`orc supervisor run` with two pools names the pool in each line, reloads, and resigns both leases on SIGTERM."""
    command = [
        sys.executable, "-P", "-m", "orchestrator", "supervisor", "run", "--pool", "mail", "--pool", "billing",
    ]  # fmt: skip
    env = {**subprocesses.environment(settings), "ORC_LOGGING__FORMAT": "json"}
    with ActorProcess(command, name="supervisor", env=env, cwd=subprocesses.ROOT) as process:
        for pool in POOLS:
            process.wait_output(f'"pool":"{pool}"', timeout_s=20)
        for pool in POOLS:
            wait_until(lambda: redis_client.exists(keys[pool].leader), "the lease", 10)  # noqa: B023
        assert redis_client.get(keys["mail"].leader) == redis_client.get(keys["billing"].leader)
        process.signal(signal.SIGHUP)
        process.wait_output("settings_reloaded")
        process.terminate()
        assert process.wait_exit() == 0, process.output
        lines = [line for line in process.output.splitlines() if '"leadership_acquired"' in line]
        assert sorted("mail" if '"pool":"mail"' in line else "billing" for line in lines) == ["billing", "mail"]
    assert not redis_client.exists(keys["mail"].leader, keys["billing"].leader)


@asynccontextmanager
async def working(
    settings: Settings, attempt_log: AttemptLog, *, agents: str = "tests.helpers.logging_agents:agents"
) -> AsyncIterator[tuple[ActorProcess, dict[str, Orchestrator]]]:
    """A supervisor in this process and a host, for both pools, and a client of each."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(settings))
        host = subprocesses.host(settings, attempt_log, processes=1, lease_s=30.0, agents=agents)
        host._command += ["--pool", "mail", "--pool", "billing"]
        stack.enter_context(host)
        clients = {
            pool: await stack.enter_async_context(Orchestrator(settings=of_pool(settings, pool))) for pool in POOLS
        }
        yield host, clients


def pids(redis_client: redis.Redis, keys: PoolKeys, agent: str = "scribe") -> set[int]:
    """The registered workers of a pool."""
    return set(subprocesses.workers_of(redis_client, keys, agent).values())


async def test_a_host_of_two_pools(
    settings: Settings, keys: dict[str, PoolKeys], redis_client: redis.Redis, attempt_log: AttemptLog, tmp_path: Path
) -> None:
    """Each pool has workers of its own; one that dies is replaced in its pool, and its task runs there again."""
    async with working(settings, attempt_log) as (host, clients):
        for pool, orc in clients.items():
            assert await (await orc.submit("echo", {"n": 7})).result(timeout=20) == 7, (pool, host.output)
        mail, billing = (pids(redis_client, keys[pool]) for pool in POOLS)
        assert (len(mail), len(billing), mail & billing) == (1, 1, set())
        gate = tmp_path / "gate"
        handles = {pool: await orc.submit("hold", {"gate": str(gate)}) for pool, orc in clients.items()}
        await wait_for(lambda: len(attempt_log.notes("begun")) == 4, "both tasks to run", 20)
        os.kill(next(iter(mail)), signal.SIGKILL)
        # The lease of 30 s would give it back later.
        await wait_for(lambda: len(attempt_log.notes("begun")) == 5, "the first task to run again", 25)
        gate.touch()
        assert [await handle.result(timeout=20) for handle in handles.values()] == ["held", "held"]
        deaths = [redis_client.hget(keys[pool].task(handles[pool].id), "deaths") for pool in POOLS]
        assert deaths == [b"1", None]
        assert pids(redis_client, keys["billing"]) == billing
        host.terminate()
        await wait_for(lambda: host.returncode is not None, lambda: host.describe("the end"), 20)
        assert host.returncode == 0, host.output


async def test_a_stop_of_one_pool(
    settings: Settings, keys: dict[str, PoolKeys], redis_client: redis.Redis, attempt_log: AttemptLog
) -> None:
    """STOP of one pool holds its tasks; the other pool works. Workers that an operator drains leave the others."""
    async with working(settings, attempt_log) as (host, clients):
        for orc in clients.values():
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=20) == 1, host.output
        await (await clients["mail"].admin.stop()).receipts(timeout=10, until_done=True)
        held = await clients["mail"].submit("echo", {"n": 2})
        for n in range(3):
            assert await (await clients["billing"].submit("echo", {"n": n})).result(timeout=10) == n
        assert (await held.info()).state == "ready"
        await clients["mail"].admin.start()
        assert await held.result(timeout=10) == 2


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three masters without replicas that serve their slots while another one is away."""
    with run_cluster(options={"cluster-require-full-coverage": "no", "appendonly": "yes"}) as cluster:
        yield cluster


@pytest.fixture
def first_master(cluster: Cluster, prefix: str) -> RedisServer:
    """The master of the pool `p1`, which does not have `p3`."""
    masters = [cluster.owner(PoolKeys(prefix, pool).root) for pool in ("p1", "p3")]
    assert masters[0] is not masters[1]
    return masters[0]


@pytest.mark.slow
async def test_one_master_is_down(prefix: str, cluster: Cluster, first_master: RedisServer) -> None:
    """The pool of a dead master waits for it, and the one of another master is served. Twin: it comes back."""
    async with serving(local_settings(cluster.url, prefix, pool="p1", **FAST), ("p1", "p3")) as served:
        assert all([await served.is_served(pool) for pool in ("p1", "p3")])
        await anyio.to_thread.run_sync(first_master.kill)
        await wait_for(lambda: f"{WAITS_FOR_REDIS} (p1)" in served.status, lambda: served.status, 20)
        assert await served.is_served("p3")
        assert "leads (p3)" in served.status
        await anyio.to_thread.run_sync(first_master.start)
        await wait_for(lambda: "waits" not in served.status, lambda: served.status, 20)
        await wait_for(partial(served.is_served, "p1"), "the first pool", 20)


@pytest.mark.slow
async def test_a_pool_that_refuses_an_agent(
    settings: Settings, keys: dict[str, PoolKeys], redis_client: redis.Redis, attempt_log: AttemptLog
) -> None:
    """Only the first pool defines the limit of the agent: the host serves it, and exits with the code of the other."""
    spec = crawler.spec({"shared": parse_rate("60/min")})
    async with open_services(settings, name="test") as services:
        call = registry.register(keys["mail"], worker="w", spec=spec, slots=1, backlog=0, about={}, alive_s=60)
        await services.store.call(call)
        await services.store.call(registry.deregister(keys["mail"], worker="w"))
    async with working(settings, attempt_log, agents="tests.fault.limited_agents:crawler") as (host, clients):
        await wait_for(lambda: "host_pool_ended" in host.output, lambda: host.describe("the end of a pool"), 20)
        assert await (await clients["mail"].submit("fetch")).result(timeout=20) is None
        (worker,) = pids(redis_client, keys["mail"], "crawler")
        os.kill(worker, signal.SIGKILL)
        assert await (await clients["mail"].submit("fetch")).result(timeout=20) is None
        assert not pids(redis_client, keys["billing"], "crawler")
        host.terminate()
        await wait_for(lambda: host.returncode is not None, lambda: host.describe("the end"), 20)
        assert host.returncode == ConfigError.exit_code, host.output
