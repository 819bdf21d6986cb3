"""Parses the reply of INFO. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OLDEST: Final = (7, 0)
"""Major and minor version of the oldest supported server."""
WAITAOF_SINCE: Final = (7, 2)
"""The first line whose servers can wait until a write is on their disk."""
REDIS: Final = "Redis"
VALKEY: Final = "Valkey"
SECTIONS: Final = ("server", "clients", "memory", "persistence", "stats", "replication", "cluster")

COMMAND_SECTIONS: Final = ("commandstats", "latencystats")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Facts about a server. Texts are Redis' own words; `?` stands for a missing field.

    Attributes:
        product: `Redis` or `Valkey`.
        version: of the product.
        line: major and minor version of the Redis that it says it is like, which tells the commands that it has.
        run_id: changes with every start of the server.
        memory_limit_bytes: `maxmemory`; 0: unlimited.
        eviction: `maxmemory-policy`.
        append_only: whether the append-only file is on.
        aof_write, aof_rewrite, snapshot: outcome of the last one, `ok` or `err`.
        role: `master` or `slave`, in Redis' words.
        replicas: number of connected replicas.
    """

    product: str
    version: str
    line: tuple[int, int]
    run_id: str
    uptime_s: int
    clients: int
    max_clients: int
    memory_bytes: int
    memory_limit_bytes: int
    eviction: str
    evicted_keys: int
    append_only: bool
    aof_bytes: int
    aof_write: str
    aof_rewrite: str
    snapshot: str
    role: str
    replicas: int
    cluster: bool

    @property
    def name(self) -> str:
        """Product and version, as `Valkey 9.1.2`."""
        return f"{self.product} {self.version}"

    @property
    def has_waitaof(self) -> bool:
        """True if WAITAOF tells that a write is on the disk; Valkey 9.1 confirms writes that come during a flush."""
        return self.product == REDIS and self.line >= WAITAOF_SINCE


@dataclass(frozen=True, slots=True)
class CommandStats:
    """Counters of one command at a server, with its calls inside scripts.

    Attributes:
        calls: calls since the server's start.
        seconds: time that they took on the server, without waiting and network.
        p50_s, p99_s: percentiles of that time, or None if the server keeps none.
    """

    calls: int
    seconds: float
    p50_s: float | None = None
    p99_s: float | None = None


def read_command_stats(text: str) -> dict[str, CommandStats]:
    """Parse the sections `commandstats` and `latencystats` of INFO, by the name of the command, as `xgroup|create`."""
    facts = dict(line.split(":", 1) for line in text.splitlines() if line.startswith(("cmdstat_", "latency_percent")))
    found = {}
    for name, value in facts.items():
        if name.startswith("cmdstat_"):
            command, fields = name.removeprefix("cmdstat_"), _fields(value)
            times = _fields(facts.get(f"latency_percentiles_usec_{command}", ""))
            p50, p99 = (float(times[key]) / 1e6 if key in times else None for key in ("p50", "p99"))
            found[command] = CommandStats(int(fields["calls"]), int(fields["usec"]) / 1e6, p50, p99)
    return found


def _fields(value: str) -> dict[str, str]:
    return dict(field.split("=", 1) for field in value.split(",") if "=" in field)


def read_info(text: str) -> ServerInfo:
    """Parse one INFO reply, or several that are joined."""
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))

    def number(name: str) -> int:
        value = facts.get(name, "0")
        return int(value) if value.isdigit() else 0

    like = facts.get("redis_version", "?")
    major, minor, *_ = [*(int(part) for part in like.split(".") if part.isdigit()), 0, 0]
    return ServerInfo(
        product=VALKEY if "valkey_version" in facts else REDIS,
        version=facts.get("valkey_version", like),
        line=(major, minor),
        run_id=facts.get("run_id", "?"),
        uptime_s=number("uptime_in_seconds"),
        clients=number("connected_clients"),
        max_clients=number("maxclients"),
        memory_bytes=number("used_memory"),
        memory_limit_bytes=number("maxmemory"),
        eviction=facts.get("maxmemory_policy", "?"),
        evicted_keys=number("evicted_keys"),
        append_only=facts.get("aof_enabled") == "1",
        aof_bytes=number("aof_current_size"),
        aof_write=facts.get("aof_last_write_status", "?"),
        aof_rewrite=facts.get("aof_last_bgrewrite_status", "?"),
        snapshot=facts.get("rdb_last_bgsave_status", "?"),
        role=facts.get("role", "?"),
        replicas=number("connected_slaves"),
        cluster=facts.get("cluster_enabled") == "1",
    )
