"""What `orc doctor` says of servers in real trouble; what it says to type is typed, and ends the trouble."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
import redis

from orchestrator.doctor import machine, server
from orchestrator.doctor.context import CheckContext
from orchestrator.doctor.findings import DoctorFinding, Severity
from orchestrator.doctor.runner import run_server_checks
from orchestrator.embedded.server_binary import ServerBinary, find_server_binary
from orchestrator.services import pool_keys
from orchestrator.store.server_info import read_info
from orchestrator.store.store import Endpoint, Store
from orchestrator.testing.waiting import wait_for
from tests.faultkit.proxy import FaultProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import local_settings
from tests.integration.doctor.doctor_runs import find_problems, run_doctor, run_fix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orchestrator.core.settings import Settings

PREFIX = "doctor:test:t"


def looked_at(running: RedisServer) -> Settings:
    """Settings that name this server, and a pool that nobody uses."""
    return local_settings(running.url, PREFIX)


@pytest.mark.every_server(alone=True)
async def test_a_plain_server_is_well_and_is_not_changed(redis_server: RedisServer, settings: Settings) -> None:
    """No problem on either version; not a byte of the data, no script and no setting is another one afterwards."""
    with redis_server.client() as client:
        client.set(f"{settings.prefix}:mark", "1", ex=60)
        before = client.execute_command("DEBUG", "DIGEST"), client.config_get("*")
        assert await find_problems(settings) == {"supervisor": "warning"}
        assert (client.execute_command("DEBUG", "DIGEST"), client.config_get("*")) == before


@pytest.mark.parametrize(
    ("options", "code", "severity"),
    [
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "redis-eviction", "problem"),
        ({"appendonly": "yes", "appendfsync": "no"}, "redis-fsync", "warning"),
        ({"timeout": "60"}, "redis-timeout", "warning"),
        ({"tcp-keepalive": "0"}, "redis-keepalive", "warning"),
    ],
    ids=["eviction", "fsync", "timeout", "keepalive"],
)
async def test_a_setting_of_the_server(options: dict[str, str], code: str, severity: str) -> None:
    """A server that was started with this option is found, and what the fix says ends it."""
    with RedisServer(options=options) as running, running.client() as client:
        assert (await find_problems(looked_at(running)))[code] == severity
        run_fix(client, (await run_doctor(looked_at(running)))[code])
        assert code not in await find_problems(looked_at(running))


async def test_no_append_only_file() -> None:
    """Without one there is a warning; the fix switches it on."""
    with RedisServer() as running, running.client() as client:
        found = (await run_doctor(looked_at(running)))["redis-aof"]
        assert found.severity is Severity.WARNING
        run_fix(client, found)
        await wait_for(lambda: client.info("persistence")["aof_enabled"], "an append-only file")
        assert (await run_doctor(looked_at(running)))["redis-aof"].severity is Severity.OK


async def test_durability_of_the_pool() -> None:
    """What `queue.durability` asks is compared with what the server has; a fix that is a command ends its finding."""
    quick = {"repl-diskless-sync-delay": "0"}
    with (
        RedisServer(port=0, options=quick | {"appendfsync": "no"}) as running,
        RedisServer(port=0, options=quick) as replica,
        running.client() as client,
        replica.client() as follower,
    ):

        async def read(level: str) -> DoctorFinding:
            return (await run_doctor(local_settings(running.url, PREFIX, queue__durability=level)))["durability"]

        assert (await read("default")).severity is Severity.OK
        for what in ("needs an append-only file", "is not reached with appendfsync no"):
            found = await read("fsync")
            assert found.severity is Severity.PROBLEM
            assert what in found.found
            run_fix(client, found)
        assert (await read("fsync")).severity is Severity.OK
        client.config_set("appendfsync", "everysec")
        assert "gets one task per second" in (await read("fsync")).found
        assert "without a connected replica" in (await read("replicated")).found
        follower.replicaof("127.0.0.1", str(running.port))
        await wait_for(lambda: client.info("replication")["connected_slaves"], "a replica")
        found = await read("replicated")
        assert found.severity is Severity.WARNING
        run_fix(client, found)
        assert (await read("replicated")).severity is Severity.OK


async def test_permitted_eviction_is_a_warning_and_real_loss_a_problem() -> None:
    """`redis.allow_eviction` turns the problem into a warning, until keys have been evicted."""
    with RedisServer(options={"maxmemory": "8mb", "maxmemory-policy": "allkeys-lru"}) as running:
        permitted = local_settings(running.url, PREFIX, redis__url=running.url, redis__allow_eviction=True)
        assert (await find_problems(permitted))["redis-eviction"] == "warning"
        with running.client() as client:
            for number in range(600):
                client.set(f"other:{number}", "x" * 20_000, ex=60)
        found = (await run_doctor(permitted))["redis-eviction"]
        assert found.severity is Severity.PROBLEM
        assert "keys were evicted" in found.found


@pytest.mark.blocks_loop
@pytest.mark.parametrize(("used", "severity"), [(0.8, "warning"), (0.95, "problem")])
async def test_memory_runs_out(used: float, severity: str) -> None:
    """The nearer the limit, the worse; the fix raises it."""
    with RedisServer() as running, running.client() as client:
        # Made by the server, so that no buffer of a client grows and shrinks; scripts of a few MB are small beside it.
        client.setrange("ballast", 60_000_000, "x")
        client.config_set("maxmemory", round(client.info("memory")["used_memory"] / used))
        assert (await find_problems(looked_at(running)))["redis-memory"] == severity
        run_fix(client, (await run_doctor(looked_at(running)))["redis-memory"])
        assert "redis-memory" not in await find_problems(looked_at(running))


@pytest.mark.every_server
async def test_short_listpacks() -> None:
    """Redis' own default makes a hash table of the record of a usual task; the fix ends that."""
    with RedisServer() as running, running.client() as client:
        finding = (await run_doctor(looked_at(running)))["redis-listpack"]
        assert (finding.severity, "hash-max-listpack-value 64: " in finding.found) == (Severity.WARNING, True)
        run_fix(client, finding)
        assert (await run_doctor(looked_at(running)))["redis-listpack"].severity is Severity.OK


async def test_connections_run_out() -> None:
    """Four fifths of `maxclients` are a warning; the fix raises it."""
    with ExitStack() as stack:
        running = stack.enter_context(RedisServer(options={"maxclients": "6"}))
        clients = [stack.enter_context(running.client()) for _ in range(4)]
        assert all(client.ping() for client in clients)
        assert (await find_problems(looked_at(running)))["redis-clients"] == "warning"
        run_fix(clients[0], (await run_doctor(looked_at(running)))["redis-clients"])
        assert "redis-clients" not in await find_problems(looked_at(running))


@pytest.mark.parametrize(("workers", "severity"), [(20, Severity.OK), (40, Severity.WARNING)])
async def test_connections_of_the_registered_workers(workers: int, severity: Severity) -> None:
    """Workers that may still open more connections than there is room for are a warning; the fix makes room."""
    with RedisServer(options={"maxclients": "100"}) as running, running.client() as client:
        registry = pool_keys(looked_at(running)).workers
        client.zadd(registry, {f"w{number}": time.time() * 1000 for number in range(workers)})
        finding = (await run_doctor(looked_at(running)))["redis-clients"]
        assert (finding.severity, f"each of {workers} workers has 3" in finding.found) == (severity, True)
        if finding.fix:
            run_fix(client, finding)
            assert (await run_doctor(looked_at(running)))["redis-clients"].severity is Severity.OK


async def test_a_failed_snapshot() -> None:
    """A snapshot that could not be written is a problem; with the directory back, the fix ends it."""
    with RedisServer(options={"enable-protected-configs": "local"}) as running, running.client() as client:
        gone = running.directory / "gone"
        gone.mkdir()
        client.config_set("dir", str(gone))
        gone.rmdir()
        client.bgsave()
        await wait_for(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "a failed snapshot")
        found = (await run_doctor(looked_at(running)))["redis-disk"]
        assert found.severity is Severity.PROBLEM
        assert "the last snapshot failed" in found.found
        client.config_set("dir", str(running.directory))
        run_fix(client, found)
        await wait_for(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok", "a good snapshot")
        assert "redis-disk" not in await find_problems(looked_at(running))


async def test_a_failed_write_to_the_append_only_file(tmp_path: Path) -> None:
    """A file that may not grow any more is a problem."""
    resource = pytest.importorskip("resource")
    if not hasattr(resource, "prlimit"):
        pytest.skip("limits of another process can be set on Linux only")
    newest = find_server_binary()
    # With the signal ignored, which the server inherits, a write beyond the limit is an error.
    wrapper = tmp_path / "redis-server"
    wrapper.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {newest.path} \"$@\"\n")
    wrapper.chmod(0o755)
    with (
        RedisServer(ServerBinary(wrapper, newest.version), options={"appendonly": "yes"}) as running,
        running.client() as client,
    ):
        resource.prlimit(client.info("server")["process_id"], resource.RLIMIT_FSIZE, (4096, 4096))
        with suppress(redis.RedisError):  # once it has noticed, it refuses writes
            client.set("big", "x" * 10_000, ex=60)
        await wait_for(lambda: client.info("persistence")["aof_last_write_status"] == "err", "a failed write")
        found = (await run_doctor(looked_at(running)))["redis-disk"]
        assert found.severity is Severity.PROBLEM
        assert "the last write to the append-only file failed" in found.found
        assert "free some space" in found.fix


async def test_a_replica() -> None:
    """A server that follows another one takes no writes; the fix says whom to ask."""
    with RedisServer() as running, running.client() as client:
        client.replicaof("127.0.0.1", "1")
        found = (await run_doctor(looked_at(running)))["redis-role"]
        assert found.severity is Severity.PROBLEM
        assert "master" in found.fix


async def test_a_cluster_without_the_slot_of_the_pool() -> None:
    """Nobody has the slot: a problem. Another node has it: a warning that names the node, and the pool is looked at."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer(port=0, options=_cluster_options())) for _ in range(2)]
        one, other = [stack.enter_context(node.client()) for node in nodes]
        settings = local_settings(nodes[0].url, PREFIX)
        found = (await run_doctor(settings))["redis-cluster"]
        assert found.severity is Severity.PROBLEM
        assert "no complete cluster" in found.found
        one.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, _bus_port(other))
        other.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

        async def moved() -> bool:
            return "is at" in (await run_doctor(settings))["redis-cluster"].found

        await wait_for(moved, "the nodes to know each other", 15.0, poll_s=0.1)
        findings = await run_doctor(settings)
        assert f"is at 127.0.0.1:{nodes[1].port}" in findings["redis-cluster"].found
        assert f"redis+cluster://127.0.0.1:{nodes[1].port}," in findings["redis-cluster"].fix
        assert "supervisor" in findings

        async def served() -> bool:
            return "redis-cluster" not in await find_problems(local_settings(nodes[1].url, PREFIX))

        await wait_for(served, "the other node to count itself as whole", 10.0, poll_s=0.1)


def _cluster_options() -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        bus = str(probe.getsockname()[1])
    return {"cluster-enabled": "yes", "cluster-port": bus, "cluster-require-full-coverage": "no"}


def _bus_port(client: redis.Redis) -> str:
    return str(client.config_get("cluster-port")["cluster-port"])


async def test_an_old_server(context: CheckContext) -> None:
    """One before 7.0 is a problem; one before 8.2 works, and hears of the newer one."""

    async def check(version: str) -> DoctorFinding:
        info = read_info(f"redis_version:{version}\n")
        (found,) = await server.check_version(CheckContext(context.settings, context.store, info, {}))
        return found

    for version in ("2.8.24", "6.2.14"):
        found = await check(version)
        assert (found.severity, found.fix) == (Severity.PROBLEM, "install Redis 7.0 or newer, best 8.2")
    for version, advised in (("7.0.0", True), ("8.0.4", True), ("8.2.0", False), ("10.0.0", False)):
        found = await check(version)
        assert (found.severity, "8.2 or newer" in found.found) == (Severity.OK, advised)


@pytest.fixture
async def context(settings: Settings) -> AsyncIterator[CheckContext]:
    """A server that is well."""
    assert settings.redis.url is not None
    async with Store(Endpoint.at(settings.redis.url.get_secret_value()), pool_keys(settings)) as store:
        yield CheckContext(settings, store, await store.server_info(), {})


# --------------------------------------------------------------------------------------------------------------- reach


async def test_nobody_answers() -> None:
    """A server that is not there is one finding, and nothing else is looked at."""
    examination = await run_server_checks(local_settings("redis://127.0.0.1:1/0", PREFIX))
    assert not examination.answered
    (found,) = examination.findings
    assert (found.code, found.severity) == ("redis-reach", Severity.PROBLEM)
    assert "ORC_REDIS__URL" in found.fix


async def test_a_refused_login() -> None:
    """A wrong password is an answer: the fix says where to look."""
    with RedisServer(port=0) as running, running.client() as client:
        client.config_set("requirepass", "right")
        url = running.url.replace("redis://", "redis://:wrong@")
        examination = await run_server_checks(local_settings(url, PREFIX))
    assert examination.answered
    (found,) = examination.findings
    assert "refused the login" in found.found
    assert "redis.url" in found.fix
    assert "wrong@" not in found.found


async def test_a_server_that_is_far_away(redis_server: RedisServer, settings: Settings) -> None:
    """Round trips of more than 50 ms are a warning; the same server near by is not."""
    async with FaultProxy(redis_server.url) as far, Store(Endpoint.at(far.url), pool_keys(settings)) as store:
        far.latency(26)
        (found,) = await server.check_connection(store)
        assert found.severity is Severity.WARNING
        assert "near the server" in found.fix
        far.heal()
        (found,) = await server.check_connection(store)
        assert found.severity is Severity.OK


async def test_a_server_that_falls_silent_on_the_way(redis_server: RedisServer, settings: Settings) -> None:
    """What was found until then is kept, and the examination says that it got no answer."""
    async with FaultProxy(redis_server.url) as proxy:
        fault = proxy.fail_command("CONFIG")
        examination = await run_server_checks(local_settings(proxy.url, settings.prefix))
        assert fault.fired
    assert not examination.answered
    assert [(finding.code, finding.severity.value) for finding in examination.findings] == [
        ("redis-reach", "ok"),
        ("redis-reach", "problem"),
    ]


# --------------------------------------------------------------------------------------------------------------- clock


@pytest.mark.parametrize(
    ("ahead_s", "severity"), [(0.0, "ok"), (5.0, "warning"), (-5.0, "warning"), (60.0, "problem"), (-60.0, "problem")]
)
async def test_a_clock_that_is_wrong(context: CheckContext, ahead_s: float, severity: str) -> None:
    """The difference is measured to a few milliseconds, with its direction; the fix names the service."""
    (found,) = await machine.check_clock(context, now_s=lambda: time.time() + ahead_s)
    assert found.severity.value == severity
    if ahead_s:
        assert f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'}" in found.found
        assert "chrony" in found.fix


async def test_the_clock_is_measured_through_delay(redis_server: RedisServer, settings: Settings) -> None:
    """A slow way to the server is not taken for a wrong clock."""
    async with FaultProxy(redis_server.url) as far:
        far.latency(20)
        async with Store(Endpoint.at(far.url), pool_keys(settings)) as store:
            (found,) = await machine.check_clock(CheckContext(settings, store, read_info(""), {}))
    assert found.severity is Severity.OK
    assert " ms " in found.found
    assert float(found.found.split()[3]) < 20
