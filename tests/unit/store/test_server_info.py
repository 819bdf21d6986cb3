"""What a server says of itself, read once for everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.embedded.probe import info
from orchestrator.store.server_info import CommandStats, read_command_stats, read_info

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer


@pytest.mark.every_server(alone=True)
def test_a_real_server(redis_server: RedisServer) -> None:
    """Every fact that we know by name is there on each version."""
    found = info(redis_server.directory / "redis.sock")
    assert found.version == redis_server.version
    said = redis_server.version if found.product == "Redis" else "7.2.4"
    assert found.line == tuple(int(part) for part in said.split(".")[:2])
    assert found.memory_bytes > 0
    assert found.clients > 0
    assert found.max_clients > 0
    assert (found.eviction, found.append_only, found.role, found.cluster) == ("noeviction", False, "master", False)
    assert found.aof_write == found.aof_rewrite == found.snapshot == "ok"


def test_valkey_is_named() -> None:
    """Valkey says the version of the Redis that it is like; people see its own."""
    found = read_info("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n")
    assert (found.name, found.line) == ("Valkey 9.1.2", (7, 2))
    assert read_info("redis_version:8.2.3\r\n").name == "Redis 8.2.3"


def test_what_a_server_does_not_say_is_not_invented() -> None:
    """Nothing, half a line and foreign values are no error."""
    found = read_info("# Server\r\nredis_version:9\r\nused_memory:much\r\nnonsense\r\n")
    assert (found.version, found.line, found.memory_bytes, found.eviction) == ("9", (9, 0), 0, "?")
    assert read_info("").line == (0, 0)


def test_what_a_server_counts_of_commands() -> None:
    """Calls, time and percentiles of each command; a server that keeps no percentiles is read, too."""
    found = read_command_stats(
        "# Commandstats\r\ncmdstat_hset:calls=4,usec=20,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n"
        "cmdstat_xgroup|create:calls=1,usec=7,usec_per_call=7.00,rejected_calls=0,failed_calls=0\r\n"
        "# Latencystats\r\nlatency_percentiles_usec_hset:p50=4.015,p99=9.023,p99.9=9.023\r\n"
    )
    assert found == {
        "hset": CommandStats(4, 20e-6, 4.015e-6, 9.023e-6),
        "xgroup|create": CommandStats(1, 7e-6),
    }
    assert read_command_stats("") == {}
