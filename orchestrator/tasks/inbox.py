"""Reads inboxes of agents: one blocking XREADGROUP, without writes or read-ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core.log import get_logger
from orchestrator.store.failures import GroupMissing
from orchestrator.tasks.model import Delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.router import Router

__all__ = ["GROUP", "GroupMissing", "parse_entries", "read_inbox", "read_inboxes"]

GROUP = "workers"
_log = get_logger(__name__)


async def read_inboxes(
    link: Router, keys: Sequence[str], *, worker: str, count: int, block_ms: int | None
) -> list[tuple[bytes, list[Any]]]:
    """Read up to `count` new entries of each inbox, waiting up to `block_ms` for the first; None does not wait.

    Returns:
        Key and entries of each inbox that has some; see `parse_entries`.

    Raises:
        GroupMissing: a stream or its group does not exist, and nothing was read.
        ServerUnavailable: no reply; entries may have been delivered (`adopt` with `own` returns them).
    """
    block = () if block_ms is None else ("BLOCK", block_ms)
    reply = await link.execute(
        "XREADGROUP", "GROUP", GROUP, worker, "COUNT", count, *block, "STREAMS", *keys, *(">",) * len(keys)
    )
    return [(key, entries) for key, entries in reply] if reply else []


async def read_inbox(
    link: Router, *, inbox_key: str, agent: str, worker: str, count: int, block_ms: int
) -> list[Delivery]:
    """Read up to `count` new entries of one inbox; see `read_inboxes`."""
    found = await read_inboxes(link, [inbox_key], worker=worker, count=count, block_ms=block_ms)
    return parse_entries(agent, found[0][1]) if found else []


def parse_entries(agent: str, entries: list[Any]) -> list[Delivery]:
    """Decode stream entries; `lua/tasks/assign.lua` has the order of the fields.

    An entry that no script wrote is left out; the worker's next `check_inbox` removes it.
    """
    try:
        return [
            # A first attempt has task, generation and envelope. A later one has attempt and deaths in front of the
            # envelope and, if the task was requeued, the failures that no longer count behind it.
            Delivery(agent, entry.decode(), f[1].decode(), f[3].decode(), 1, 0, f[5])
            if len(f) == 6
            else Delivery(
                agent,
                entry.decode(),
                f[1].decode(),
                f[3].decode(),
                int(f[5]),
                int(f[7]),
                f[9],
                int(f[11]) if len(f) > 10 else 0,
            )
            for entry, f in entries
        ]
    except (IndexError, ValueError):
        if len(entries) > 1:
            return [delivery for entry in entries for delivery in parse_entries(agent, [entry])]
        entry = entries[0][0].decode()
        _log.warning("entry_unreadable", agent=agent, entry=entry)
        return []
