"""Looks at how the server treats connections that are idle or dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.doctor.findings import ok, warning

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding


async def check_timeout(context: CheckContext) -> list[DoctorFinding]:
    """Whether idle connections are closed."""
    timeout_s = context.config.get("timeout")
    if timeout_s is None:
        return [ok("redis-timeout", "unknown: CONFIG GET is not allowed")]
    if timeout_s != "0":
        found = f"connections that are idle for {timeout_s} s are closed; processes at rest connect again and again"
        return [warning("redis-timeout", found, "`redis-cli CONFIG SET timeout 0`, and the same line in redis.conf")]
    return [ok("redis-timeout", "idle connections are left alone")]


async def check_keepalive(context: CheckContext) -> list[DoctorFinding]:
    """Whether the server notices clients that vanished."""
    keepalive_s = context.config.get("tcp-keepalive")
    if keepalive_s is None:
        return [ok("redis-keepalive", "unknown: CONFIG GET is not allowed")]
    if keepalive_s == "0":
        found = "tcp-keepalive 0: a client that vanished from the network keeps its connection for ever"
        fix = "`redis-cli CONFIG SET tcp-keepalive 300`, and the same line in redis.conf"
        return [warning("redis-keepalive", found, fix)]
    return [ok("redis-keepalive", f"vanished clients are noticed after {keepalive_s} s")]
