"""`orc bench`: figures from a server of its own, or in a pool of its own that is removed whichever way it ends."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli.commands.bench import Figures, show
from orchestrator.cli.terminal.options import Globals
from orchestrator.testing.waiting import wait_until
from tests.faultkit.servers import RedisServer
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"), pytest.mark.timeout(120)]

OTHERS = {
    b"orc:dev:default:{pool:default}:format",
    b"orc:dev:default:{pool:benches}:format",
    b"orc:prod:default:{pool:bench-1}:task:1",
    b"cache:1",
}
"""Keys of other pools, other prefixes and other programs."""
RAW_FIGURES = ("raw_submit_one_by_one", "raw_submit_many", "raw_drain", "raw_server_us_per_task")
FIGURES = (
    "submit_one_by_one",
    "submit_100_at_once",
    "submit_many",
    "drain",
    "drain_5_ms",
    "latency_p50_ms",
    "latency_p99_ms",
)


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A terminal in a folder where nothing runs."""
    return Terminal(tmp_path)


@pytest.fixture
def shared() -> Iterator[RedisServer]:
    """A server on which others have keys."""
    with RedisServer() as server, server.client() as client:
        for name in OTHERS:
            client.set(name, "1")
        yield server


@pytest.fixture
def client(shared: RedisServer) -> Iterator[redis.Redis]:
    """A look at the keys of that server."""
    with shared.client() as client:
        yield client


@pytest.mark.slow
def test_on_a_server_of_its_own(terminal: Terminal) -> None:
    """Without a URL it starts a server that is gone afterwards, with all processes; every figure is there."""
    done = terminal.process(
        "bench", "--tasks", "200", "--processes", "1", "--payload", "10kB", "-o", "json", timeout_s=90
    )
    assert done.code == 0, done
    assert "warning" not in done.err.lower()
    found = done.json()
    assert all(found[name] > 0 for name in FIGURES)
    assert found["latency_p50_ms"] <= found["latency_p99_ms"]
    assert all(found[name] > 0 for name in RAW_FIGURES)
    assert found["bytes_per_queued_task"] > found["payload_bytes"] == 10_000
    assert found["redis"].endswith("embedded, over a socket")
    assert not terminal.processes()
    assert not (terminal.folder / "data").exists()


def test_a_pool_in_use_is_refused(terminal: Terminal, shared: RedisServer, client: redis.Redis) -> None:
    """A pool that is named and not empty is skipped: exit code 4, and what to do."""
    done = terminal.orc("bench", "--pool", "default", ORC_REDIS__URL=shared.url)
    assert (done.code, done.out) == (4, "")
    assert "pool 'default' of orc:dev:default is in use" in done.err
    assert set(client.keys()) == OTHERS


@pytest.mark.slow
def test_ctrl_c(terminal: Terminal, shared: RedisServer, client: redis.Redis) -> None:
    """Given up in the middle, it ends its processes and removes its pool, though the keys are many."""
    terminal.environ["ORC_REDIS__URL"] = shared.url
    with terminal.start("bench", "--tasks", "100000", "--processes", "1", "--pool", "mine") as bench:
        wait_until(lambda: client.dbsize() > 1000, "tasks to pile up", 60.0)
        assert client.exists("orc:dev:default:{pool:mine}:format")
        bench.signal(signal.SIGINT)
        assert bench.wait_exit(30) == 130, bench.output
        assert "stopped; the temporary data is removed" in bench.output
    assert set(client.keys()) == OTHERS
    assert not terminal.processes()


def test_a_server_that_is_no_good(terminal: Terminal, shared: RedisServer, client: redis.Redis) -> None:
    """When the supervisor refuses the server, its words are shown, with its exit code; the pool is removed."""
    client.config_set("maxmemory-policy", "allkeys-lru")
    done = terminal.process("bench", "--tasks", "200", ORC_REDIS__URL=shared.url, timeout_s=60)
    assert done.code == 78, done
    assert "set maxmemory-policy noeviction" in done.err
    assert set(client.keys()) == OTHERS
    assert not terminal.processes()


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    """People get one figure a line, with its unit, and hear what the figures are."""
    show(
        Figures(
            "a machine",
            "8.2.3 embedded",
            2,
            7055,
            37678,
            52815,
            37325,
            21000,
            0.71,
            0.9,
            0,
            25.1,
            420,
            300,
            9000,
            99000,
            None,
            8.1,
        ),
        Globals(),
    )
    printed, told = capsys.readouterr()
    assert "submit, 100 at once  37,678 tasks/s\n" in printed
    assert "submit_many          52,815 tasks/s (99,000)\n" in printed
    assert "drain                37,325 tasks/s\n" in printed
    assert (
        "drain, 5 ms          21,000 tasks/s with handlers that wait for 5 ms, 200 at once in each process\n" in printed
    )
    assert "server, per task     25.1 µs of CPU (8.1)\n" in printed
    assert "memory, per task     420 bytes queued, 300 ended\n" in printed
    assert "submit to result     p50 0.71 ms, p99 0.90 ms, at rest\n" in printed
    assert "\nThe tasks do nothing" in told


def test_usage(terminal: Terminal) -> None:
    """Numbers that cannot be meant are refused."""
    assert terminal.orc("bench", "--tasks", "5").code == 2
    assert terminal.orc("bench", "--processes", "0").code == 2
    for size in ("10mB", "201kB", "-1"):
        assert terminal.orc("bench", f"--payload={size}").code == 2
