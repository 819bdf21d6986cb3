"""Reads of schedules; nothing here changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import InvalidInput, NotFound, ServerRefused, StoreError
from orchestrator.schedules.model import FireOutcome, Stored, to_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.schedules.model import Schedule
    from orchestrator.store.store import Store

_TEXTS: Final = ("digest", "next", "task", "last", "at", "error", "error_at")
_FIELDS: Final = ("plan", "anchor", "paused", *_TEXTS, *[outcome.value for outcome in FireOutcome])
_AT_ONCE: Final = 50
"""A definition holds up to 256 KiB of arguments."""


async def names(store: Store) -> list[str]:
    """All schedules, that which fires first in front; those that are paused last."""
    return [name.decode() for name in await store.execute("ZRANGE", store.keys.schedules, 0, -1)]


async def stored(store: Store, name: str) -> Stored | None:
    """The record of one schedule."""
    return (await _records(store, [name]))[0]


async def schedule(store: Store, name: str) -> Schedule:
    """One schedule.

    Raises:
        NotFound: there is none of this name.
        InvalidInput: its definition cannot be read.
    """
    found = await stored(store, name)
    if found is None:
        raise await unknown(store, name)
    return to_schedule(found)


async def schedules(store: Store) -> list[Schedule]:
    """All schedules, by next fire time; one that cannot be read is left out (`orc keys check` finds it)."""
    known = await names(store)
    found: list[Schedule] = []
    for first in range(0, len(known), _AT_ONCE):
        for record in await _records(store, known[first : first + _AT_ONCE]):
            if record is not None:
                try:
                    found.append(to_schedule(record))
                except InvalidInput:
                    continue
    return found


async def unknown(store: Store, name: str) -> NotFound:
    """The error for a name that no schedule has."""
    known = sorted(await names(store))
    listed = ", ".join(known[:10]) + (" and more" if len(known) > 10 else "")
    return NotFound(f"schedule {name!r} is not known in pool {store.keys.pool!r}; known are: {listed or 'none'}")


async def server_ms(store: Store) -> int:
    """The time of the server."""
    seconds, micros = await store.execute("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def _records(store: Store, wanted: Sequence[str]) -> list[Stored | None]:
    replies = await store.pipeline([("HMGET", store.keys.schedule(name), *_FIELDS) for name in wanted])
    for reply in replies:
        if isinstance(reply, StoreError) and not isinstance(reply, ServerRefused):
            raise reply
    # What is no hash is no schedule, and keeps nobody from seeing the others; `orc keys check` names it.
    return [
        None if isinstance(reply, StoreError) else _record(name, reply)
        for name, reply in zip(wanted, replies, strict=True)
    ]


def _record(name: str, reply: Any) -> Stored | None:
    found = dict(zip(_FIELDS, reply, strict=True))
    if found["plan"] is None:
        return None
    texts = {field: (found[field] or b"").decode("utf-8", "replace") for field in _TEXTS}
    return Stored(
        name=name,
        plan=found["plan"],
        anchor_ms=int(found["anchor"] or 0),
        paused=found["paused"] is not None,
        counts={outcome.value: int(found[outcome.value] or 0) for outcome in FireOutcome},
        **texts,
    )
