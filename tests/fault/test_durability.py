"""What submits of each level survive: a loss of power, a kill of Redis, and a failover; and a slow disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import NotDurable
from orchestrator.testing.waiting import wait_for
from tests.faultkit.disks import WatchedDisk
from tests.faultkit.proxy import FaultProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import local_settings
from tests.helpers.server_matrix import NEWEST, VALKEY, binary_of

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from orchestrator.client.handle import TaskHandle
    from orchestrator.embedded.server_binary import ServerBinary

FILE = {"appendonly": "yes", "appendfsync": "always"}
QUICK = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


def stored(direct: redis.Redis, prefix: str, ids: list[str]) -> int:
    """How many of these tasks the server has."""
    return sum(bool(direct.exists(f"{prefix}:{{pool:default}}:task:{id_}")) for id_ in ids)


def confirms_flushes(binary: ServerBinary) -> bool:
    """Whether `fsync` works without `appendfsync always`: neither on Redis 7.0 nor on Valkey 9.1."""
    return not binary.version.startswith(("7.0", "9."))


@pytest.mark.blocks_loop  # a server starts
async def test_waitaof_of_valkey(tmp_path: Path) -> None:
    """WAITAOF of Valkey confirms a write that came during a flush at the end of that flush; that of Redis waits on.

    When this fails, Valkey has repaired it, and `ServerInfo.has_waitaof` may be true for newer versions.
    """
    early = [await anyio.to_thread.run_sync(confirmed_early, binary_of(which), tmp_path) for which in (VALKEY, NEWEST)]
    assert early == [True, False]


def confirmed_early(binary: ServerBinary, directory: Path) -> bool:
    """Whether a server confirms a write that the finished flushes do not have."""
    disk = WatchedDisk(directory)
    options = FILE | {"appendfsync": "everysec"}
    with RedisServer(binary, options=options, env=disk.env) as server, server.client() as direct:
        direct.set("first", 1)
        direct.waitaof(1, 0, 5000)
        disk.slow_down(1)
        time.sleep(1.1)  # the next write begins a flush
        for number in range(2):
            direct.set(f"during:{number}", 1)
            direct.waitaof(1, 0, 5000)
        return disk.lose_power(server) > 0


@pytest.mark.slow
async def test_a_slow_disk_is_waited_for_or_reported(binary: ServerBinary, prefix: str, tmp_path: Path) -> None:
    """A flush that takes 0.5 s more delays the submit by as much; one that takes too long is reported."""
    if not confirms_flushes(binary):
        pytest.skip("the server stops as a whole while it flushes before each reply")
    disk = WatchedDisk(tmp_path)
    with RedisServer(binary, options=FILE, env=disk.env) as server:
        async with Orchestrator(settings=local_settings(server.url, prefix)) as orc:
            assert (await orc.submit("work", durability="fsync")).durability is not None
        with server.client() as direct:
            direct.config_set("appendfsync", "everysec")
        async with Orchestrator(settings=local_settings(server.url, prefix, queue__durable_within_s=0.2)) as orc:
            disk.slow_down(0.5)
            with pytest.raises(NotDurable, match=r"the server did not write it to its disk within 0\.2 s") as missed:
                await orc.submit("work", durability="fsync")
            assert missed.value.handle.durability.fsyncs == 0
        async with Orchestrator(settings=local_settings(server.url, prefix, queue__durable_within_s=10)) as orc:
            began_s = time.monotonic()
            await orc.submit("work", durability="fsync")
            assert time.monotonic() - began_s > 0.4, "the disk is not slow"


@pytest.mark.blocks_loop  # a server starts
@pytest.mark.parametrize("flush", ["always", pytest.param("everysec", marks=pytest.mark.slow)])
async def test_a_loss_of_power(binary: ServerBinary, prefix: str, tmp_path: Path, flush: str) -> None:
    """All that was not flushed is gone: each task with a confirmed fsync is there, and the twins without are not."""
    if flush == "everysec" and not confirms_flushes(binary):
        pytest.skip("the server confirms nothing with everysec")
    disk = WatchedDisk(tmp_path)
    with RedisServer(binary, options=FILE | {"appendfsync": flush}, env=disk.env) as server:
        async with Orchestrator(settings=local_settings(server.url, prefix)) as orc:
            safe: list[str] = []

            async def submit() -> None:
                safe.append((await orc.submit("work", durability="fsync")).id)

            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(submit)
            with server.client() as direct:
                direct.config_set("appendfsync", "everysec")
            disk.slow_down(30)
            risky = [(await orc.submit("work")).id for _ in range(20)]
            lost_bytes = await anyio.to_thread.run_sync(disk.lose_power, server)
        assert lost_bytes, "nothing was lost"
        await anyio.to_thread.run_sync(server.start)
        with server.client() as direct:
            assert stored(direct, prefix, safe) == 20
            assert stored(direct, prefix, risky) < 20, "the loss is not felt"


async def test_redis_is_killed_after_the_fsync(binary: ServerBinary, prefix: str) -> None:
    """`kill -9` right after the answer loses no confirmed task, and the client goes on with the next server process."""
    with RedisServer(binary, options=FILE) as server:
        async with Orchestrator(settings=local_settings(server.url, prefix)) as orc:
            ids = [(await orc.submit("work", durability="fsync")).id]
            await anyio.to_thread.run_sync(server.restart)
            ids.append((await orc.submit("work", durability="fsync")).id)
        with server.client() as direct:
            assert stored(direct, prefix, ids) == 2


async def test_a_failover(binary: ServerBinary, prefix: str) -> None:
    """The replica that takes over has every replicated task, and a submit under way is confirmed by the new master.

    The twins of the default level, which the replica had not received, are lost.
    """
    with (
        RedisServer(binary, port=0, options=QUICK) as master,
        RedisServer(binary, port=0, options=QUICK) as replica,
        RedisServer(binary, port=0, options=QUICK) as second,
        master.client() as direct,
        replica.client() as successor,
        second.client() as follower,
    ):
        successor.replicaof("127.0.0.1", str(master.port))
        await wait_for(lambda: successor.info("replication").get("master_link_status") == "up", "the replica in step")
        async with FaultProxy(master.url) as proxy:
            settings = local_settings(proxy.url, prefix, queue__durable_within_s=10)
            async with Orchestrator(settings=settings) as orc, anyio.create_task_group() as group:
                safe = [(await orc.submit("work", durability="replicated")).id for _ in range(20)]
                successor.replicaof("127.0.0.1", "1")  # cut off: it keeps what it has
                risky = [(await orc.submit("work")).id for _ in range(20)]
                under_way: list[TaskHandle[Any]] = []

                async def submit() -> None:
                    under_way.append(await orc.submit("work", durability="replicated"))

                group.start_soon(submit)
                await wait_for(lambda: direct.info("clients")["blocked_clients"], "the client to wait")
                successor.replicaof("NO", "ONE")
                follower.replicaof("127.0.0.1", str(replica.port))
                proxy.redirect(replica.url)
                await anyio.to_thread.run_sync(master.kill)
                await wait_for(lambda: under_way, "the submit to be confirmed by the new master")
        (repeated,) = under_way
        assert repeated.durability is not None
        assert repeated.durability.replicas == 1
        assert stored(follower, prefix, [*safe, repeated.id]) == 21
        assert stored(successor, prefix, risky) == 0, "the loss is not felt"
