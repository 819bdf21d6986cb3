"""Tells which levels of durability a server can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.store.server_info import REDIS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.core.durability import Level
    from orchestrator.store.server_info import ServerInfo

ENOUGH: Final = 1
"""Replicas that must have a write."""


def fsync_refusal(info: ServerInfo, *, appendfsync: str | None) -> str:
    """Return why a server cannot reach the level fsync, with what to do; empty if it can.

    Args:
        info: of the server.
        appendfsync: its setting; None if the user may not read it.
    """
    if not info.append_only:
        return "durability 'fsync' needs an append-only file; set appendonly yes at the server, or use another level"
    if not info.has_waitaof and appendfsync != "always":
        found = f"{info.name} has none" if info.product == REDIS else f"that of {info.name} confirms writes too early"
        if appendfsync is None:
            return (
                f"durability 'fsync' needs WAITAOF, and {found}, or appendfsync always, and "
                "this user may not read appendfsync (CONFIG GET); install Redis 7.2 or newer"
            )
        return f"durability 'fsync' needs WAITAOF, and {found}; install Redis 7.2 or newer, or set appendfsync always"
    if appendfsync == "no":
        return "durability 'fsync' is not reached with appendfsync no; set appendfsync everysec or always"
    return ""


def level_problem(level: Level, info: ServerInfo, config: Mapping[str, str]) -> str:
    """Return why a server cannot reach a level now, with what to do; empty if it can.

    Args:
        level: as in `queue.durability`.
        info: of the server.
        config: reply of CONFIG GET with `appendfsync`; may be empty.
    """
    if level == "fsync":
        return fsync_refusal(info, appendfsync=config.get("appendfsync"))
    if level == "replicated" and info.replicas < ENOUGH:
        return "durability 'replicated' is not reached without a connected replica; connect one (REPLICAOF)"
    return ""
