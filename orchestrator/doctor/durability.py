"""Looks at what a crash of the server would cost: append-only file, flushing, the last writes to the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.doctor.findings import ok, problem, warning

if TYPE_CHECKING:
    from orchestrator.doctor.findings import Finding
    from orchestrator.doctor.subject import Subject


async def check_aof(subject: Subject) -> list[Finding]:
    """Whether what was accepted outlives the server."""
    if subject.info.version == "?":
        return [ok("redis-aof", "unknown: INFO is not allowed")]
    if not subject.info.append_only:
        found = "no append-only file: what was accepted is lost when Redis stops"
        return [warning("redis-aof", found, "`redis-cli CONFIG SET appendonly yes`, and the same line in redis.conf")]
    return [ok("redis-aof", f"append-only file, {subject.info.aof_bytes / 2**20:.1f} MiB")]


async def check_fsync(subject: Subject) -> list[Finding]:
    """How much a loss of power costs."""
    match subject.config.get("appendfsync"):
        case None:
            return [ok("redis-fsync", "unknown: CONFIG GET is not allowed")]
        case "no" if subject.info.append_only:
            found = "appendfsync no: a loss of power costs up to half a minute of accepted tasks"
            fix = "`redis-cli CONFIG SET appendfsync everysec`, and the same line in redis.conf"
            return [warning("redis-fsync", found, fix)]
        case "always":
            return [ok("redis-fsync", "appendfsync always: a loss of power costs nothing that was answered")]
        case other if subject.info.append_only:
            return [ok("redis-fsync", f"appendfsync {other}: a loss of power costs about a second")]
    return [ok("redis-fsync", "nothing is appended")]


async def check_disk(subject: Subject) -> list[Finding]:
    """Whether the last writes to the disk went well."""
    info = subject.info
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
