"""What a host owes to workers that died or stand still: all of it is gone, and all that it held goes back."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Orchestrator
from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.core.errors import ConfigError
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.settings import Settings
from orchestrator.core.settings_sources import SettingsSources
from orchestrator.services import SyncStore, pool_keys, reach_server
from orchestrator.store.keys import PoolKeys
from orchestrator.tasks import scripts
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.host import STUCK_MARGIN_S, DeadWorker, Host, WorkerProcess
from orchestrator.workers.runtime.process_groups import ProcessGroups
from orchestrator.workers.runtime.settings_feed import SettingsFeed
from orchestrator.workers.runtime.watchdog import LoopWatchdog
from tests.faultkit.servers import RedisServer
from tests.helpers import subprocesses
from tests.helpers.cases import each_case
from tests.helpers.subprocesses import alive, parent_of
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    import redis

    from tests.faultkit.processes import ActorProcess
    from tests.helpers.attempt_log import AttemptLog

AGENTS = "tests.fault.parent_agents:parent"
NO_PROCESS = 2**30
"""Above every id of a process."""


async def test_what_a_worker_started_ends_with_it(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """A worker is killed; the process that its handler had started is killed too, before anything goes back."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS))
        async with Orchestrator(settings=settings) as orc:
            worker, child = await (await orc.submit("spawn")).result(timeout=15)
            assert alive(child)
            os.kill(worker, signal.SIGKILL)
            await wait_for(lambda: not alive(child), "the grandchild to be killed", 5)
            other, child = await (await orc.submit("spawn")).result(timeout=15)
            assert other != worker
            os.kill(child, signal.SIGKILL)


async def test_a_replacement_inherits_no_connection_of_its_host(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """The entries of a dead worker go back over a connection that no later worker of the host keeps open."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS))
        async with Orchestrator(settings=settings) as orc:
            worker, child = await (await orc.submit("spawn")).result(timeout=15)
            for deaths in (1, 2):  # the second replacement is forked after the first death was settled
                os.kill(worker, signal.SIGKILL)
                await wait_for(partial(_settled, host, deaths), "the host to settle a death", 15)
                worker, child = await (await orc.submit("spawn")).result(timeout=15)
            assert not _sockets(host.pid) & _sockets(worker)
            os.kill(child, signal.SIGKILL)


def _settled(host: ActorProcess, deaths: int) -> bool:
    return host.output.count("entries_abandoned") >= deaths


def _sockets(pid: int) -> set[str]:
    opened = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            opened.add(str(file.readlink()))
    return {target for target in opened if target.startswith("socket:")}


@pytest.mark.parametrize("death", ["killed", pytest.param("frozen", marks=pytest.mark.slow)])
async def test_what_a_handler_process_started_ends_with_the_worker(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, tmp_path: Path, death: str
) -> None:
    """The process of a handler has a group of its own; the host kills it and the handler's programs with the worker.

    The fork server, which has forked that process, ends too.
    """
    timings = {"stuck_after_s": 1.0, "heartbeat_s": 0.2} if death == "frozen" else {}
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, **timings)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS))
        async with Orchestrator(settings=settings) as orc:
            file = tmp_path / "pids"
            await orc.submit("spawn_apart", {"pid_file": str(file)})
            await wait_for(file.exists, "the program", 20)
            server, process, program = map(int, file.read_text().split())
            worker = parent_of(server)
            groups = [os.getpgid(pid) for pid in (worker, server, process, program)]
            assert groups == [worker, server, process, process]
            os.kill(worker, signal.SIGKILL if death == "killed" else signal.SIGSTOP)
            await wait_for(lambda: not any(map(alive, (server, process, program))), "all three to end", 20)


@pytest.mark.slow
async def test_a_frozen_worker_is_killed_and_replaced(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """A worker process that stands still, its watchdog included, is ended by its host; another one comes."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, stuck_after_s=1.0, heartbeat_s=0.2)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS))
        async with Orchestrator(settings=settings) as orc:
            worker, _ = await (await orc.submit("spawn")).result(timeout=15)
            os.kill(worker, signal.SIGSTOP)
            await wait_for(lambda: "worker_stuck" in host.output, lambda: host.describe("a word about it"), 15)
            await wait_for(lambda: not alive(worker), "the frozen worker to be gone", 5)
            assert host.output.count("worker_stuck") == 1
            other, child = await (await orc.submit("spawn")).result(timeout=15)
            assert other != worker
            os.kill(child, signal.SIGKILL)


@pytest.mark.slow
async def test_workers_outlive_a_freeze_of_all(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """Host and worker stand still for longer than the limits of both, and go on: no worker is stuck."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, stuck_after_s=1.5, heartbeat_s=0.2)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS))
        async with Orchestrator(settings=settings) as orc:
            worker, child = await (await orc.submit("spawn")).result(timeout=15)
            os.kill(child, signal.SIGKILL)
            for pid in (host.pid, worker):
                os.kill(pid, signal.SIGSTOP)
            await anyio.sleep(1.5 + 0.2 + STUCK_MARGIN_S + 0.5)
            for pid in (host.pid, worker):
                os.kill(pid, signal.SIGCONT)
            other, child = await (await orc.submit("spawn")).result(timeout=15)
            os.kill(child, signal.SIGKILL)
            assert other == worker, host.describe("the same worker")
            assert "worker_stuck" not in host.output


def assign(direct: redis.Redis, settings: Settings, keys: PoolKeys) -> None:
    """Put one task into the inbox of the agent; slots are those that it has, or had."""
    with reach_server(settings) as where:
        store = SyncStore(where, keys, name="test")
        spec = AgentSpec("ed", frozenset({"work"}), lease_ms=15_000)
        store.call(registry.register(keys, worker="w1", spec=spec, slots=5, backlog=0, about={}, alive_s=60))
        store.call(scripts.assign(keys, agents=["ed"], limit=10))
        store.close()
    assert direct.xlen(keys.inbox("ed"))


def read(direct: redis.Redis, keys: PoolKeys, worker: str) -> None:
    """What the blocked read of a worker does in the eyes of Redis, though nobody hears the answer."""
    assert direct.xreadgroup("workers", worker, {keys.inbox("ed"): ">"}, count=1)


def abandon_all(host: Host) -> list[DeadWorker]:
    """Do what the loop of the host does for dead workers, once; the dead workers that are left."""
    host._abandon_due()
    host._poll_abandoning()
    return host._dead_workers


@pytest.fixture
def agent() -> Agent:
    """An agent of a host that the test drives itself."""
    agent = Agent("ed", lease=1)

    @agent.skill
    async def work() -> None:
        """Do nothing."""

    return agent


async def test_what_the_last_read_of_a_dead_worker_took_goes_back(
    redis_server: RedisServer, redis_client: redis.Redis, prefix: str, agent: Agent
) -> None:
    """Its connection outlives it for a moment and takes another entry: the host asks once more."""
    settings = make_settings(redis_server.url, prefix)
    keys, host = pool_keys(settings), Host(settings, [agent], processes=1)
    async with Orchestrator(settings=settings) as orc:
        first, second = await orc.submit("work"), await orc.submit("work")
        assign(redis_client, settings, keys)
        host._dead_workers.append(DeadWorker("w1", settings.pool, "signal SIGKILL", due_s=0.0))
        read(redis_client, keys, "w1")
        host._abandon_due()
        await wait_for(lambda: not host._poll_abandoning(), "the first answer")
        assert redis_client.xpending(keys.inbox("ed"), "workers")["pending"] == 0
        read(redis_client, keys, "w1")
        await wait_for(lambda: not abandon_all(host), "the last answer", host._last_read_s + 5)
        for handle in (first, second):
            assert redis_client.hget(keys.task(handle.id), "deaths") == b"1"
            assert redis_client.hget(keys.task(handle.id), "state") == b"ready"


async def test_a_host_asks_until_it_is_answered(prefix: str, agent: Agent) -> None:
    """Redis is away when a worker dies; what it held goes back when Redis is there again."""
    with RedisServer(options={"appendonly": "yes", "appendfsync": "always"}) as server:
        settings = make_settings(server.url, prefix)
        keys, host = pool_keys(settings), Host(settings, [agent], processes=1)
        async with Orchestrator(settings=settings) as orc:
            handle = await orc.submit("work")
            with server.client() as direct:
                assign(direct, settings, keys)
                read(direct, keys, "w1")
            await anyio.to_thread.run_sync(server.kill)
            host._dead_workers.append(DeadWorker("w1", settings.pool, "signal SIGKILL", due_s=0.0))
            host._abandon_due()
            await wait_for(lambda: not host._poll_abandoning(), "the end of the first try")
            assert [each.answered for each in host._dead_workers] == [False]
            await anyio.to_thread.run_sync(server.start)
            await wait_for(lambda: abandon_all(host) and host._dead_workers[0].answered, "an answer", 10)
            host._abandon_last()
            with server.client() as direct:
                assert direct.hget(keys.task(handle.id), "deaths") == b"1"


async def test_a_worker_that_never_registered_has_nothing_to_abandon(prefix: str, attempt_log: AttemptLog) -> None:
    """Workers die while they wait for Redis at their start: the host asks Redis for none of them."""
    settings = make_settings("redis://127.0.0.1:1/0", prefix)
    with subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS) as host:
        for deaths in range(1, 4):
            await wait_for(partial(_waiting, host, deaths), lambda: host.describe("a worker that waits"), 20)
            (worker,) = subprocesses.children_of(host.pid)
            os.kill(worker, signal.SIGKILL)
        await wait_for(lambda: host.output.count("worker_died") == 3, lambda: host.describe("deaths"), 20)
        host.terminate()
        await wait_for(lambda: host.returncode is not None, lambda: host.describe("its end"), 20)
        assert "abandon" not in host.output


def _waiting(host: ActorProcess, starts: int) -> bool:
    return host.output.count("worker_waits_for_redis") >= starts


async def test_a_lost_limit_does_not_end_the_host(
    redis_server: RedisServer, redis_client: redis.Redis, prefix: str, attempt_log: AttemptLog
) -> None:
    """A replacement that the registry refuses is started again until the limit is defined."""
    settings = make_settings(redis_server.url, prefix)
    keys = pool_keys(settings)
    redis_client.hset(keys.limits, "shared", "100 1000000")
    agents = "tests.fault.limited_agents:crawler"
    with subprocesses.host(settings, attempt_log, processes=1, agents=agents) as host:
        (pid,) = await wait_for(
            lambda: list(subprocesses.workers_of(redis_client, keys, "crawler").values()), "a worker", 15
        )
        redis_client.delete(keys.limits)
        os.kill(pid, signal.SIGKILL)
        await wait_for(lambda: "exit status 78" in host.output, lambda: host.describe("a refused replacement"), 15)
        redis_client.hset(keys.limits, "shared", "100 1000000")
        await wait_for(lambda: subprocesses.workers_of(redis_client, keys, "crawler"), "another worker", 15)
        assert host.returncode is None


async def test_dead_workers_of_two_pools(
    redis_server: RedisServer, redis_client: redis.Redis, prefix: str, agent: Agent
) -> None:
    """A worker dies in each pool: the entries of both go back, each in its own pool."""
    settings = make_settings(redis_server.url, prefix)
    host = Host(settings, [agent], processes=1, pools=["default", "other"])
    ids = dict[str, str]()
    for pool in ("default", "other"):
        of_pool = settings.model_copy(update={"pool": pool})
        async with Orchestrator(settings=of_pool) as orc:
            ids[pool] = (await orc.submit("work")).id
        assign(redis_client, of_pool, pool_keys(of_pool))
        read(redis_client, pool_keys(of_pool), "w1")
        host._dead_workers.append(DeadWorker("w1", pool, "signal SIGKILL", due_s=0.0))
    await wait_for(lambda: all(dead.answered for dead in abandon_all(host)), "both answers", 10)
    for pool, id_ in ids.items():
        keys = PoolKeys(prefix, pool)
        assert redis_client.hget(keys.task(id_), "deaths") == b"1", pool
        assert redis_client.xpending(keys.inbox("ed"), "workers")["pending"] == 0
    host._abandon_last()


def test_a_reload_sends_each_worker_the_settings_of_its_pool(agent: Agent, tmp_path: Path) -> None:
    """The host reads the sources once; what it sends has the changed setting, and the pool of the worker."""
    (file := tmp_path / "orchestrator.toml").write_text("[queue]\nmax_tasks = 6\n")
    sources = SettingsSources.of(file)
    host = Host(sources.load().settings, [agent], processes=1, pools=["default", "other"], sources=sources)
    feeds = {pool: SettingsFeed() for pool in ("default", "other")}
    for number, (pool, feed) in enumerate(feeds.items()):
        watchdog, groups = LoopWatchdog(1.0), ProcessGroups()
        host._children[-number] = WorkerProcess(-number, f"w{number}", pool, 0.0, 0, watchdog, groups, feed)
    file.write_text("[queue]\nmax_tasks = 7\n")
    host._reload()
    for pool, feed in feeds.items():
        received = LiveSettings(Settings())
        feed._receive(received)
        assert (received.current.pool, received.current.queue.max_tasks, received.generation) == (pool, 7, 2)
        feed.close()


@each_case(
    ("code", "pool_ends"),
    [(0, True), (-signal.SIGTERM, True), (-signal.SIGKILL, True), (0, False), (-signal.SIGTERM, False)],
)
def test_a_worker_of_a_pool_that_ends(
    agent: Agent, code: int, caplog: pytest.LogCaptureFixture, *, pool_ends: bool
) -> None:
    """An orderly end is no death, and no worker of the pool is replaced. Twin: of a pool that goes on."""
    host = Host(Settings(), [agent], processes=2, pools=["default", "other"])
    if pool_ends:
        host._end_pool("other", ConfigError.exit_code)
    with ExitStack() as stack:
        groups, feed = stack.enter_context(closing(ProcessGroups())), stack.enter_context(closing(SettingsFeed()))
        child = WorkerProcess(NO_PROCESS, "w", "other", time.monotonic(), 0, LoopWatchdog(1.0), groups, feed)
        host._handle_end(child, code, silent_s=0.0, retired=False, registered=False)
    died = [record for record in caplog.records if "worker_died" in str(record.msg)]
    assert bool(died) == (not pool_ends or code == -signal.SIGKILL)
    assert bool(host._due) == (not pool_ends)
