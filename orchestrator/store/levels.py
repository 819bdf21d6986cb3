"""Tells which levels of durability a server can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.store.server_info import WAITAOF_SINCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.core.durability import Level
    from orchestrator.store.server_info import ServerInfo

ENOUGH: Final = 1
"""Replicas that must have a write."""


def fsync_refusal(line: tuple[int, int], *, append_only: bool, appendfsync: str | None) -> str:
    """Return why a server cannot reach the level fsync, with what to do; empty if it can.

    Args:
        line: major and minor version of the server.
        append_only: it has an append-only file.
        appendfsync: its setting; None if the user may not read it.
    """
    if not append_only:
        return "durability 'fsync' needs an append-only file; set appendonly yes at the server, or use another level"
    if line < WAITAOF_SINCE and appendfsync is None:
        return (
            f"durability 'fsync' needs WAITAOF, and Redis {line[0]}.{line[1]} has none, or appendfsync always, and "
            "this user may not read appendfsync (CONFIG GET); install Redis 7.2 or newer"
        )
    if line < WAITAOF_SINCE and appendfsync != "always":
        return (
            f"durability 'fsync' needs WAITAOF, and Redis {line[0]}.{line[1]} has none; "
            "install Redis 7.2 or newer, or set appendfsync always"
        )
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
        return fsync_refusal(info.line, append_only=info.append_only, appendfsync=config.get("appendfsync"))
    if level == "replicated" and info.replicas < ENOUGH:
        return "durability 'replicated' is not reached without a connected replica; connect one (REPLICAOF)"
    return ""
