"""The servers and guards that all other tests rely on do what they say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import anyio.lowlevel
import pytest
import redis

from tests.faultkit.servers import RedisServer
from tests.helpers.guards import LoopWatch, describe_tasks, keys_of, keys_without_ttl, running_tasks
from tests.helpers.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """A server on a port, which these tests may kill."""
    with RedisServer(port=0, options={"maxmemory": "64mb"}) as server:
        yield server


def test_a_server_answers_at_its_address(own_server: RedisServer) -> None:
    """It listens where its URL says, with the options that were given, and persists nothing."""
    with own_server.client() as client:
        assert client.config_get("maxmemory", "save", "appendonly") == {
            "maxmemory": str(64 * 1024 * 1024),
            "save": "",
            "appendonly": "no",
        }
        assert client.info("server")["redis_version"] == own_server.version


def test_a_restarted_server_is_empty_at_the_same_address(own_server: RedisServer) -> None:
    """What was in memory is gone; clients need no new address."""
    before = own_server.url
    with own_server.client() as client:
        client.set("key", 1)
    own_server.restart()
    assert own_server.url == before
    with own_server.client() as client:
        assert client.dbsize() == 0


def test_a_killed_server_does_not_answer(own_server: RedisServer) -> None:
    """After `kill` connections are refused until it is started again."""
    own_server.kill()
    with own_server.client() as client, pytest.raises(redis.ConnectionError):
        client.ping()
    own_server.start()


def test_a_closed_server_leaves_nothing() -> None:
    """Process and directory are gone."""
    with RedisServer() as server:
        directory, pid = server.directory, server.process.pid
        assert server.url.startswith("unix://")
    assert not directory.exists()
    assert subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode == 1


def test_a_server_that_cannot_start_says_why() -> None:
    """The error carries the server's own words."""
    with (
        pytest.raises(RuntimeError, match="argument must be a memory value"),
        RedisServer(options={"maxmemory": "lots"}),
    ):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_server_ends_with_a_test_process_that_is_killed() -> None:
    """A test run that is killed leaves no server behind."""
    code = (
        "import redis; from orchestrator.testing.temporary_server import temporary_server\n"
        "with temporary_server() as url:\n"
        "    print(redis.Redis.from_url(url).info('server')['process_id'], flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        child.kill()
    gone = ["ps", "-p", str(pid)]
    wait_until(lambda: subprocess.run(gone, capture_output=True, check=False).returncode == 1, "the server to end")


def test_keys_without_a_lifetime_are_found(redis_client: redis.Redis, prefix: str) -> None:
    """Only keys that are neither mortal nor listed as permanent are reported."""
    redis_client.set(f"{prefix}:{{pool:p}}:idem:a", 1)
    redis_client.set(f"{prefix}:{{pool:p}}:idem:b", 1, ex=60)
    redis_client.set(f"{prefix}:{{pool:p}}:format", 1)
    redis_client.set(f"{prefix}:elsewhere", 1)
    redis_client.set(f"{prefix}x:other", 1, ex=60)
    assert keys_without_ttl(redis_client, keys_of(redis_client, prefix)) == [
        f"{prefix}:elsewhere",
        f"{prefix}:{{pool:p}}:idem:a",
    ]
    redis_client.delete(f"{prefix}:{{pool:p}}:idem:a", f"{prefix}:elsewhere")


@pytest.mark.every_server
def test_namespaces_are_empty_at_first(redis_client: redis.Redis, prefix: str) -> None:
    """Every test begins in a namespace of its own."""
    assert not list(redis_client.scan_iter(match=f"{prefix}*"))


async def test_forgotten_tasks_are_found() -> None:
    """A task that is still running is named together with where it waits."""
    before = running_tasks()
    forgotten = asyncio.get_running_loop().create_task(anyio.sleep_forever(), name="forgotten")
    await anyio.lowlevel.checkpoint()
    assert running_tasks() - before == {forgotten}
    assert "forgotten" in describe_tasks({forgotten})
    forgotten.cancel()


@pytest.mark.blocks_loop
async def test_blocked_loops_are_found() -> None:
    """A loop that does not turn is reported with the line that holds it; one that waits is not."""
    watch = LoopWatch()
    loop = asyncio.get_running_loop()
    try:
        watch.start(loop)
        await anyio.sleep(0.7)  # the time is what is tested
        assert watch.stop() == ""
        watch.start(loop)
        time.sleep(0.9)  # noqa: ASYNC251 - the sin itself
        assert "the sin itself" in watch.stop()
    finally:
        watch.close()
