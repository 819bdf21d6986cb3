"""Looks at what a crash of the server would cost: append-only file, flushing, the last writes to the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.doctor.findings import ok, problem, warning

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding


async def check_aof(context: CheckContext) -> list[DoctorFinding]:
    """Whether what was accepted outlives the server."""
    if context.info.version == "?":
        return [ok("redis-aof", "unknown: INFO is not allowed")]
    if not context.info.append_only:
        found = "no append-only file: what was accepted is lost when Redis stops"
        return [warning("redis-aof", found, "`redis-cli CONFIG SET appendonly yes`, and the same line in redis.conf")]
    return [ok("redis-aof", f"append-only file, {context.info.aof_bytes / 2**20:.1f} MiB")]


async def check_fsync(context: CheckContext) -> list[DoctorFinding]:
    """How much a loss of power costs."""
    match context.config.get("appendfsync"):
        case None:
            return [ok("redis-fsync", "unknown: CONFIG GET is not allowed")]
        case "no" if context.info.append_only:
            found = "appendfsync no: a loss of power costs up to half a minute of accepted tasks"
            fix = "`redis-cli CONFIG SET appendfsync everysec`, and the same line in redis.conf"
            return [warning("redis-fsync", found, fix)]
        case "always":
            return [ok("redis-fsync", "appendfsync always: a loss of power costs nothing that was answered")]
        case other if context.info.append_only:
            return [ok("redis-fsync", f"appendfsync {other}: a loss of power costs about a second")]
    return [ok("redis-fsync", "nothing is appended")]


async def check_disk(context: CheckContext) -> list[DoctorFinding]:
    """Whether the last writes to the disk went well."""
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
