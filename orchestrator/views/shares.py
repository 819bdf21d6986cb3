"""Reads the shares of keys: weights, caps, and how many tasks of each key wait and run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.ids import decode_foreign
from orchestrator.core.reading import read_text, read_whole
from orchestrator.core.slots import parse_slot, share_slot
from orchestrator.views.active_commands import of_slots, read_desired
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.views.active_commands import ActiveCommandView


CHUNK: Final = 500
"""Keys whose running tasks are counted at once."""


@dataclass(frozen=True, slots=True)
class ShareView:
    """A key whose tasks wait or run, or that has a share.

    Attributes:
        key: as `fair=` of a submit has it.
        weight: 1 without a share.
        at_most: how many of its tasks may run at a time, or None for any number.
        waiting: number of its ready tasks that no agent has.
        running: number of its tasks that agents have, without those that wait for their children.
    """

    key: str
    weight: float
    at_most: int | None
    waiting: int
    running: int
    active_commands: tuple[ActiveCommandView, ...]


@dataclass(frozen=True, slots=True)
class ShareList:
    """Keys with tasks, the most tasks first, then those that only have a share.

    Attributes:
        total: how many there are, including those beyond the limit.
    """

    shares: tuple[ShareView, ...]
    total: int


async def list_shares(services: Services, *, limit: int = LIMIT) -> ShareList:
    """Read the shares of at most `limit` keys."""
    from orchestrator.control.commands import SetShare

    now = await read_desired(services)
    store, keys = services.store, services.store.keys
    busy = await store.execute("ZRANGE", keys.share_keys, 0, limit - 1, "REV", "WITHSCORES")
    number = await store.execute("ZCARD", keys.share_keys)
    sums = {read_text(key): read_whole(count) for key, count in zip(busy[::2], busy[1::2], strict=True)}
    defined = sorted(slot.name for slot in map(parse_slot, now.active) if slot.verb == "share")
    scores = await store.pipeline([("ZSCORE", keys.share_keys, key) for key in defined]) if defined else []
    idle = [key for key, score in zip(defined, scores, strict=True) if score is None]
    shown = [*sums, *idle][:limit]
    running: dict[str, int] = {}
    for first in range(0, len(shown), CHUNK):
        part = shown[first : first + CHUNK]
        counts = await store.pipeline([("SCARD", keys.share_taken(decode_foreign(key))) for key in part])
        running.update(zip(part, counts, strict=True))

    def view(key: str) -> ShareView:
        slot = share_slot(key)
        found = now.active.get(slot)
        command = found.command if found is not None else None
        weight, at_most = (command.weight, command.at_most) if isinstance(command, SetShare) else (1.0, None)
        waiting = max(0, sums.get(key, 0) - running[key])
        return ShareView(decode_foreign(key), weight, at_most, waiting, running[key], of_slots(now, slot))

    return ShareList(tuple(map(view, shown)), number + len(idle))
