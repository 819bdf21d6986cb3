"""Reads inboxes of agents: one blocking XREADGROUP, without writes or read-ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import ServerRefused
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text
from orchestrator.store.failures import GroupMissing
from orchestrator.tasks.model import Delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.router import Router
    from orchestrator.store.store import Store

__all__ = ["GROUP", "GroupMissing", "find_filled", "parse_entries", "read_inbox", "read_inboxes"]

GROUP = "workers"
SEARCHED_AT_ONCE: Final = 500
"""Inboxes of one command. It takes Redis 0.1 ms, and more for inboxes with entries: it returns one of up to 16 KiB."""
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


async def find_filled(store: Store, keys: Sequence[str]) -> tuple[set[str], bool]:
    """Search inboxes for entries, read or not.

    Returns:
        The keys of those that hold entries, or that Redis cannot search, and whether suspects wait in the pool.

    Raises:
        ServerUnavailable: no reply.
    """
    batches = [keys[first : first + SEARCHED_AT_ONCE] for first in range(0, len(keys), SEARCHED_AT_ONCE)]
    # There is no command for the lengths of several streams. This one reads the first entry of each.
    reads: list[tuple[str | int, ...]] = [
        ("XREAD", "COUNT", 1, "STREAMS", *batch, *("0-0",) * len(batch)) for batch in batches
    ]
    *found, suspects = await store.pipeline([*reads, ("EXISTS", store.keys.suspected_queues)])
    filled: set[str] = set()
    for batch, reply in zip(batches, found, strict=True):
        if isinstance(reply, ServerRefused):
            filled.update(batch)
        elif isinstance(reply, Exception):
            raise reply
        elif reply:
            filled.update(read_text(key) for key, _ in reply)
    if isinstance(suspects, Exception):
        raise suspects
    return filled, bool(suspects)


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
        entry = read_text(entries[0][0])
        _log.warning("entry_unreadable", agent=agent, entry=entry)
        return []
