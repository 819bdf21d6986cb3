"""Checks the server: latency, version, role, eviction, memory, persistence and connections."""

from __future__ import annotations

import math
import time
from statistics import median
from typing import TYPE_CHECKING, Final

from orchestrator.agents.queries import count_workers
from orchestrator.core.errors import ServerRefused, ServerUnavailable
from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.store.levels import level_problem
from orchestrator.store.server_info import OLDEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.core.durability import Level
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.store.server_info import ServerInfo
    from orchestrator.store.store import Store

ROUND_TRIPS: Final = 9
WORKER_CONNECTIONS_AT_REST: Final = 3
"""For short commands, for its inboxes, and for operator commands."""
WORKER_CONNECTIONS: Final = 6
"""Further ones: for results of children, for hints, and for heartbeats while a handler blocks the event loop."""
SLOW_S: Final = 0.05
RECOMMENDED: Final = (8, 2)
LISTPACK_VALUE: Final = "hash-max-listpack-value"
LISTPACK_BYTES: Final = 1024
"""The value in the shipped redis.conf."""


async def check_connection(store: Store) -> list[DoctorFinding]:
    """Measure the latency of the server.

    Raises:
        StoreError: it does not answer.
    """
    # Not PING, which a server with a full disk refuses. The first call opens the connection.
    await store.execute("TIME")
    trips_s = []
    for _ in range(ROUND_TRIPS):
        sent_s = time.perf_counter()
        await store.execute("TIME")
        trips_s.append(time.perf_counter() - sent_s)
    typical_s = median(trips_s)
    found = f"answers in {typical_s * 1000:.2f} ms (median of {ROUND_TRIPS})"
    if typical_s > SLOW_S:
        return [warning("redis-reach", found, "run supervisor and workers near the server; check its load")]
    return [ok("redis-reach", found)]


def connection_failed(failure: Exception) -> list[DoctorFinding]:
    """Report a server that does not answer or refuses the login."""
    what, _, fix = str(failure).partition("; ")
    return [problem("redis-reach", what, fix or "check that Redis runs and that ORC_REDIS__URL names it")]


async def check_version(context: CheckContext) -> list[DoctorFinding]:
    """Check the version."""
    info = context.info
    if info.version == "?":
        return [warning("redis-version", "unknown: INFO is not allowed", "`ACL SETUSER …` with +info for our user")]
    if info.line < OLDEST:
        return [problem("redis-version", f"{info.name} is too old", "install Redis 7.0 or newer, best 8.2")]
    if info.line < RECOMMENDED:
        return [ok("redis-version", f"{info.name}; Redis 8.2 or newer saves a command per finished batch (XACKDEL)")]
    return [ok("redis-version", info.name)]


async def check_role(context: CheckContext) -> list[DoctorFinding]:
    """Check that the server is no replica."""
    if context.info.role == "slave":
        return [
            problem("redis-role", "the server is a replica and refuses writes", "name its master in ORC_REDIS__URL")
        ]
    return [ok("redis-role", "accepts writes" if context.info.role == "master" else "unknown: INFO is not allowed")]


async def check_cluster(context: CheckContext) -> list[DoctorFinding]:
    """Check that the configured server has the slot of the pool."""
    if not context.info.cluster:
        return [ok("redis-cluster", "no cluster")]
    try:
        await context.store.execute("EXISTS", context.store.keys.format)
    except ServerUnavailable as gap:
        return [problem("redis-cluster", str(gap), _ADD_SLOTS)]
    except ServerRefused as refused:
        return [problem("redis-cluster", str(refused), _ADD_SLOTS)]
    store = context.store
    if store.has_slot_map:
        others = ", ".join(str(address) for address in store.others) or "none"
        return [ok("redis-cluster", f"the pool is at {store.place}; the other masters: {others}")]
    if place := store.redirected_to:
        found = (
            f"the slot of the pool is at {place}; a process that starts finds it only while the configured node lives"
        )
        return [warning("redis-cluster", found, f"name some nodes: ORC_REDIS__URL=redis+cluster://{place},HOST:PORT")]
    return [ok("redis-cluster", "cluster mode; this node has the slot of the pool")]


_ADD_SLOTS: Final = "give every slot to a node: `redis-cli --cluster fix HOST:PORT`"


async def check_eviction(context: CheckContext) -> list[DoctorFinding]:
    """Check that the server never evicts keys."""
    info = context.info
    fix = "`redis-cli CONFIG SET maxmemory-policy noeviction`, and the same line in redis.conf"
    if info.eviction == "?":
        return [ok("redis-eviction", "unknown: INFO is not allowed")]
    if info.evicted_keys:
        lost = f"{info.evicted_keys} keys were evicted since the server started (policy {info.eviction})"
        return [problem("redis-eviction", lost, f"{fix}; raise maxmemory; submit lost tasks again")]
    if info.eviction != "noeviction":
        found = f"maxmemory-policy {info.eviction}: tasks may be evicted when memory is short"
        if context.settings.redis.allow_eviction:
            return [warning("redis-eviction", f"{found}; redis.allow_eviction permits it", fix)]
        return [problem("redis-eviction", f"{found}; the supervisor does not start", fix)]
    return [ok("redis-eviction", "maxmemory-policy noeviction")]


async def check_memory(context: CheckContext) -> list[DoctorFinding]:
    """Check the used share of `maxmemory`."""
    used, limit = context.info.memory_bytes, context.info.memory_limit_bytes
    if not limit:
        return [ok("redis-memory", f"{used / 2**20:.0f} MiB used, no maxmemory")]
    found = f"{used / 2**20:.0f} of {limit / 2**20:.0f} MiB used ({used / limit:.0%})"
    fix = f"`redis-cli CONFIG SET maxmemory {round(limit * 1.5 / 2**20)}mb`, or lower results.ttl_s"
    if used > 0.9 * limit:
        return [problem("redis-memory", f"{found}; a full server refuses submits", fix)]
    if used > 0.75 * limit:
        return [warning("redis-memory", found, fix)]
    return [ok("redis-memory", found)]


async def check_listpack(context: CheckContext) -> list[DoctorFinding]:
    """Name the setting that keeps the records of tasks small."""
    stored = context.config.get(LISTPACK_VALUE, "")
    if not stored.isdigit():
        return [ok("redis-listpack", "unknown: CONFIG GET is not allowed")]
    if int(stored) < LISTPACK_BYTES:
        found = f"{LISTPACK_VALUE} {stored}: a task with longer arguments takes about 200 bytes more"
        fix = f"`redis-cli CONFIG SET {LISTPACK_VALUE} {LISTPACK_BYTES}`, and the same line in redis.conf"
        return [warning("redis-listpack", found, fix)]
    return [ok("redis-listpack", f"{LISTPACK_VALUE} {stored} keeps the records of tasks small")]


async def check_clients(context: CheckContext) -> list[DoctorFinding]:
    """Compare the connections in use, and those that the registered workers may still open, with `maxclients`."""
    connected, most = context.info.clients, context.info.max_clients
    workers = await count_workers(context.store)
    needed = connected + workers * (WORKER_CONNECTIONS - WORKER_CONNECTIONS_AT_REST)
    found = f"{connected} of {most} connections in use" if most else f"{connected} connections in use"
    if workers:
        found += (
            f"; each of {workers} workers has {WORKER_CONNECTIONS_AT_REST}, and up to {WORKER_CONNECTIONS} while its "
            f"handlers wait for tasks and locks: {needed} in all"
        )
    if most and needed > 0.8 * most:
        enough = max(most * 2, math.ceil(needed / 0.8 / 1000) * 1000)
        return [
            warning("redis-clients", found, f"`redis-cli CONFIG SET maxclients {enough}`, and `ulimit -n` above it")
        ]
    return [ok("redis-clients", found)]


async def check_aof(context: CheckContext) -> list[DoctorFinding]:
    """Check for an append-only file."""
    if context.info.version == "?":
        return [ok("redis-aof", "unknown: INFO is not allowed")]
    if not context.info.append_only:
        found = "no append-only file: accepted tasks are lost when Redis stops"
        return [warning("redis-aof", found, "`redis-cli CONFIG SET appendonly yes`, and the same line in redis.conf")]
    return [ok("redis-aof", f"append-only file, {context.info.aof_bytes / 2**20:.1f} MiB")]


async def check_fsync(context: CheckContext) -> list[DoctorFinding]:
    """Check how often the append-only file is flushed."""
    match context.config.get("appendfsync"):
        case None:
            return [ok("redis-fsync", "unknown: CONFIG GET is not allowed")]
        case "no" if context.info.append_only:
            found = "appendfsync no: a power failure loses up to 30 s of accepted tasks"
            fix = "`redis-cli CONFIG SET appendfsync everysec`, and the same line in redis.conf"
            return [warning("redis-fsync", found, fix)]
        case "always":
            return [ok("redis-fsync", "appendfsync always: a power failure loses nothing that was acknowledged")]
        case other if context.info.append_only:
            return [ok("redis-fsync", f"appendfsync {other}: a power failure loses about 1 s")]
    return [ok("redis-fsync", "no append-only file")]


async def check_durability(context: CheckContext) -> list[DoctorFinding]:
    """Check that the server can give what `queue.durability` asks."""
    level, info, config = context.settings.queue.durability, context.info, context.config
    if level == "default":
        return [ok("durability", "queue.durability default: submits wait for no disk and no replica")]
    if info.version == "?":
        return [ok("durability", "unknown: INFO is not allowed")]
    if found := level_problem(level, info, config):
        what, _, _ = found.partition("; ")
        fix = _DURABILITY_FIXES[level, info.append_only]
        if level == "fsync" and info.append_only and "appendfsync" not in config:
            fix = "install Redis 7.2 or newer"
        return [problem("durability", f"queue.durability: {what}", fix)]
    if level == "replicated" and config.get("min-replicas-to-write") == "0":
        loses = "the server accepts writes without a replica; after a failover the writes of the old master are lost"
        fix = "`redis-cli CONFIG SET min-replicas-to-write 1`, and the same line in redis.conf"
        return [warning("durability", loses, fix)]
    return [ok("durability", f"queue.durability {level}: {_reach(level, info, config)}")]


def _reach(level: Level, info: ServerInfo, config: Mapping[str, str]) -> str:
    if level == "replicated":
        return f"{info.replicas} connected replicas"
    if not info.has_waitaof:
        return "the server flushes before each reply; a user that may not run CONFIG GET needs Redis 7.2 or newer"
    if config.get("appendfsync") == "everysec":
        return (
            "the server flushes once per second, so a program that submits one task after the other gets one task per "
            "second; submit many at once, or set appendfsync always"
        )
    return "the server confirms each flush"


_DURABILITY_FIXES: Final = {
    ("fsync", False): "`redis-cli CONFIG SET appendonly yes`, and the same line in redis.conf",
    ("fsync", True): "`redis-cli CONFIG SET appendfsync always` (Redis 7.2 or newer: everysec), and the same line in "
    "redis.conf",
    ("replicated", False): "start a replica with `replicaof HOST PORT`, or set queue.durability = default",
    ("replicated", True): "start a replica with `replicaof HOST PORT`, or set queue.durability = default",
}


async def check_disk(context: CheckContext) -> list[DoctorFinding]:
    """Check the last writes to the disk."""
    info = context.info
    failed = [
        name
        for name, status in (
            ("the last write to the append-only file", info.aof_write),
            ("the last rewrite of the append-only file", info.aof_rewrite),
            ("the last snapshot", info.snapshot),
        )
        if status == "err"
    ]
    if failed:
        again = "`redis-cli BGSAVE`" if info.snapshot == "err" else "`redis-cli BGREWRITEAOF`"
        fix = f"see the log of Redis, free some space on its disk, then {again}"
        return [problem("redis-disk", f"{' and '.join(failed)} failed; Redis may refuse all writes", fix)]
    return [ok("redis-disk", "the last writes to the disk went well")]


async def check_timeout(context: CheckContext) -> list[DoctorFinding]:
    """Check that the server keeps idle connections."""
    timeout_s = context.config.get("timeout")
    if timeout_s is None:
        return [ok("redis-timeout", "unknown: CONFIG GET is not allowed")]
    if timeout_s != "0":
        found = f"connections that are idle for {timeout_s} s are closed; idle processes reconnect again and again"
        return [warning("redis-timeout", found, "`redis-cli CONFIG SET timeout 0`, and the same line in redis.conf")]
    return [ok("redis-timeout", "idle connections stay open")]


async def check_keepalive(context: CheckContext) -> list[DoctorFinding]:
    """Check that the server detects vanished clients."""
    keepalive_s = context.config.get("tcp-keepalive")
    if keepalive_s is None:
        return [ok("redis-keepalive", "unknown: CONFIG GET is not allowed")]
    if keepalive_s == "0":
        found = "tcp-keepalive 0: a client that vanished from the network keeps its connection permanently"
        fix = "`redis-cli CONFIG SET tcp-keepalive 300`, and the same line in redis.conf"
        return [warning("redis-keepalive", found, fix)]
    return [ok("redis-keepalive", f"vanished clients are detected after {keepalive_s} s")]
