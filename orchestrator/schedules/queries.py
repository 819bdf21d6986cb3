"""Reads schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import InvalidInput, NotFound, ServerRefused, StoreError
from orchestrator.core.reading import read_text, read_whole
from orchestrator.schedules.model import FireOutcome, ScheduleRecord, to_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.schedules.model import Schedule
    from orchestrator.store.store import Store

_TEXTS: Final = ("digest", "next", "task", "last", "at", "error", "error_at")
_FIELDS: Final = ("plan", "anchor", "paused", *_TEXTS, *[outcome.value for outcome in FireOutcome])
_AT_ONCE: Final = 50
"""Records read at once, because a plan may hold 256 KiB of arguments."""


async def names(store: Store) -> list[str]:
    """Return the names of all schedules, the next to fire first, paused ones last."""
    return [read_text(name) for name in await store.execute("ZRANGE", store.keys.schedules, 0, -1)]


async def record(store: Store, name: str) -> ScheduleRecord | None:
    """Return the record of one schedule."""
    return (await records(store, [name]))[0]


async def schedule(store: Store, name: str) -> Schedule:
    """Return one schedule.

    Raises:
        NotFound: no schedule has this name.
        InvalidInput: its plan cannot be decoded.
    """
    found = await record(store, name)
    if found is None:
        raise await unknown(store, name)
    return to_schedule(found)


async def schedules(store: Store, known: Sequence[str] | None = None) -> list[Schedule]:
    """Return these schedules, by default all by next fire time, without damaged ones (see `orc keys check`)."""
    if known is None:
        known = await names(store)
    found: list[Schedule] = []
    for first in range(0, len(known), _AT_ONCE):
        for each in await records(store, known[first : first + _AT_ONCE]):
            if each is not None:
                try:
                    found.append(to_schedule(each))
                except InvalidInput:
                    continue
    return found


async def unknown(store: Store, name: str) -> NotFound:
    """Return the error for an unknown name."""
    known = sorted(await names(store))
    listed = ", ".join(known[:10]) + (" and more" if len(known) > 10 else "")
    return NotFound(f"schedule {name!r} is not known in pool {store.keys.pool!r}; known are: {listed or 'none'}")


async def server_ms(store: Store) -> int:
    """Return the server's time."""
    seconds, micros = await store.execute("TIME")
    return read_whole(seconds) * 1000 + read_whole(micros) // 1000


async def records(store: Store, wanted: Sequence[str]) -> list[ScheduleRecord | None]:
    """Return the records of schedules by their names; None for one that is gone or damaged."""
    replies = await store.pipeline([("HMGET", store.keys.schedule(name), *_FIELDS) for name in wanted])
    for reply in replies:
        if isinstance(reply, StoreError) and not isinstance(reply, ServerRefused):
            raise reply
    # Leave out a key of another type, so that the other schedules can be read; `orc keys check` reports it.
    return [
        None if isinstance(reply, StoreError) else _parse_record(name, reply)
        for name, reply in zip(wanted, replies, strict=True)
    ]


def _parse_record(name: str, reply: Any) -> ScheduleRecord | None:
    found = dict(zip(_FIELDS, reply, strict=True))
    if found["plan"] is None:
        return None
    texts = {field: read_text(found[field] or b"") for field in _TEXTS}
    return ScheduleRecord(
        name=name,
        plan=found["plan"],
        anchor_ms=read_whole(found["anchor"]),
        paused=found["paused"] is not None,
        counts={outcome.value: read_whole(found[outcome.value]) for outcome in FireOutcome},
        **texts,
    )
