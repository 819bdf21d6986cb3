"""Reads memories, without a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import encode_foreign
from orchestrator.core.reading import read_as, read_text, read_whole
from orchestrator.memory import scripts
from orchestrator.memory.encoding import (
    check_number,
    check_position,
    decode_found,
    decode_records,
    is_whole,
)
from orchestrator.memory.model import MAX_LIMIT, MAX_STEP, TIERS, MemoryQuery, Recall, RecordAccess, StoredRecord
from orchestrator.simulations.simulation import cell_index

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

    from orchestrator.memory.model import Tier
    from orchestrator.store.calls import Argument
    from orchestrator.store.scoped import ScopedStore

MAX_SCANNED: Final = 10_000
"""Index entries that one query looks at: the server runs nothing else meanwhile."""
_MAX_CALLS: Final = 100
MAX_CELLS: Final = 400
MAX_IDS: Final = 500


async def read_records(scope: ScopedStore, ids: Sequence[str], tier: Tier | None) -> list[StoredRecord | None]:
    """Return the records with these ids, None for each that is missing, has expired, or of several is damaged.

    Raises:
        DamagedData: the only one cannot be read.
    """
    if not ids:
        return []
    check_ids(ids)
    stored, now = await _read_stored(scope, ids, TIERS if tier is None else check_tiers((tier,)))
    records = decode_records(stored) if len(ids) > 1 else [read_as("a record", decode_found, one) for one in stored]
    live = {record.id: record for record in records if record.expires > now}
    return [live.get(id_) for id_ in ids]


async def _read_stored(
    scope: ScopedStore, ids: Sequence[str], tiers: Sequence[Tier]
) -> tuple[list[tuple[Tier, str, bytes, bytes]], datetime]:
    """Return tier, id, header and content of each record that is there, and the time of the server."""
    commands: list[Sequence[Argument]] = [("MULTI",), ("TIME",)]
    for name in tiers:
        commands += [("HMGET", scope.keys.key(scope.keys.tier_part(name, part)), *ids) for part in ("hdr", "rec")]
    (seconds, micros), *replies = (await scope.read_many([*commands, ("EXEC",)]))[-1]
    stored = [
        (name, id_, header, content)
        for name, headers, contents in zip(tiers, replies[::2], replies[1::2], strict=True)
        for id_, header, content in zip(ids, headers, contents, strict=True)
        if header is not None and content is not None
    ]
    return stored, from_instant_ms(read_whole(seconds) * 1000 + read_whole(micros) // 1000)


async def read_accesses(scope: ScopedStore, ids: Sequence[str]) -> dict[str, RecordAccess]:
    """Return the accesses to those of these records that were touched."""
    if not ids:
        return {}
    check_ids(ids)
    keys = scope.keys
    commands: list[Sequence[Argument]] = [("HMGET", keys.key(keys.tier_part(tier, "acc")), *ids) for tier in TIERS]
    found: dict[str, RecordAccess] = {}
    for reply in await scope.read_many(commands):
        for id_, stored in zip(ids, reply, strict=True):
            if stored is not None:
                count, _, last_ms = stored.partition(b" ")
                found[id_] = RecordAccess(read_whole(count), from_instant_ms(read_whole(last_ms)))
    return found


async def read_pages(scope: ScopedStore) -> AsyncGenerator[list[StoredRecord]]:
    """Yield all records with superseded ones: by tier, those that end first in front, up to 500 at a time.

    Damaged ones are left out, and logged.
    """
    keys = scope.keys
    for tier in TIERS:
        last, seen = "-inf", 0
        while True:
            # Continues behind a deadline, not a rank, because ranks shift when records end.
            deadlines_key = keys.key(keys.tier_part(tier, "exp"))
            flat = await scope.read(
                "ZRANGE", deadlines_key, last, "+inf", "BYSCORE", "LIMIT", seen, MAX_IDS, "WITHSCORES"
            )
            if not flat:
                break
            ends = [read_text(end) for end in flat[1::2]]
            seen = ends.count(ends[-1]) + (seen if ends[-1] == last else 0)
            last = ends[-1]
            stored, now = await _read_stored(scope, [read_text(id_) for id_ in flat[::2]], (tier,))
            yield [record for record in decode_records(stored) if record.expires > now]


async def count_records(scopes: Sequence[ScopedStore]) -> list[dict[str, int]]:
    """Return the number of records of up to 500 agents by tier; expired ones count until they are removed."""
    if not scopes:
        return []
    commands = [("HLEN", each.keys.key(each.keys.tier_part(tier, "hdr"))) for each in scopes for tier in TIERS]
    counts = iter(await scopes[0].read_many(commands))
    return [{tier: next(counts) for tier in TIERS} for _ in scopes]


async def recall(
    scope: ScopedStore, query: MemoryQuery, *, offset: int = 0, every: int = 1, to_end: bool = False
) -> Recall:
    """Return the records that meet all conditions of a query: after `offset` of them, each `every`-th one.

    A search that stops at its bound goes on with `to_end`: expired records that no call has removed yet hide none.

    Raises:
        InvalidInput: an invalid condition.
    """
    row = encode_query(query)._replace(offset=offset, every=every)
    found = await scope.call(scripts.query(scope.keys, row=row))
    records, scanned, calls = {each.id: each for each in found.records}, found.scanned, 1
    while to_end and found.resume and len(records) < row.limit and calls < _MAX_CALLS:
        row_left = row._replace(limit=row.limit - len(records), resume=found.resume)
        found = await scope.call(scripts.query(scope.keys, row=row_left))
        records |= {each.id: each for each in found.records}
        scanned, calls = scanned + found.scanned, calls + 1
    return _as_recall(scripts.FoundRecords(found.complete, scanned, b"", list(records.values())))


async def recall_part(scope: ScopedStore, query: MemoryQuery, *, offset: int, most_bytes: int) -> tuple[Recall, bool]:
    """Return the first records after `offset` that meet all conditions, and whether more may follow.

    Their contents have at most `most_bytes` together, or there is one record.

    Raises:
        InvalidInput: an invalid condition.
    """
    found = await scope.call(scripts.query(scope.keys, row=encode_query(query)._replace(offset=offset)))
    count, size = 0, 0
    for record in found.records:
        size += len(record.content)
        if count and size > most_bytes:
            break
        count += 1
    more = len(found.records) == query.limit or count < len(found.records)
    return _as_recall(found._replace(records=found.records[:count])), more


def encode_query(query: Any) -> scripts.QueryRow:
    """Convert a query to a row of the script.

    Raises:
        InvalidInput: an invalid condition.
    """
    if not isinstance(query, MemoryQuery):
        raise InvalidInput(f"give a MemoryQuery, as MemoryQuery(kinds=('plan',)), not a {type(query).__name__}")
    lo = "-inf" if query.since is None else str(_check_step("since", query.since))
    hi = "+inf" if query.until is None else f"({_check_step('until', query.until) + 1}"
    if query.order not in {"new", "old", "important"}:
        raise InvalidInput(f"order {query.order!r:.80} is unknown; use new, old or important")
    return scripts.QueryRow(
        tiers=check_tiers(query.tiers),
        kinds=encode_names("kind", query.kinds),
        actions=encode_names("action", query.actions),
        subject="" if query.subject is None else encode_foreign("subject", query.subject),
        lo=lo,
        hi=hi,
        importance="" if query.min_importance is None else repr(check_number("min_importance", query.min_importance)),
        order=query.order,
        offset=0,
        every=1,
        limit=check_limit(query.limit),
        most=MAX_SCANNED,
    )


async def recall_near(
    scope: ScopedStore, position: tuple[float, float], radius: float, *, tiers: Sequence[Tier], limit: int
) -> Recall:
    """Return the records inside a circle, the nearest first.

    Raises:
        InvalidInput: an invalid position or radius.
    """
    (x, y), size = check_position(position), scope.settings.memory.cell_size
    radius = check_number("radius", radius)
    if radius < 0:
        raise InvalidInput(f"radius must not be negative: {radius:g}")
    columns = range(cell_index(x - radius, size), cell_index(x + radius, size) + 1)
    rows = range(cell_index(y - radius, size), cell_index(y + radius, size) + 1)
    few = len(columns) * len(rows) <= MAX_CELLS
    cells = [f"{column}_{row}" for column in columns for row in rows] if few else []
    circle = scripts.CircleRow(check_tiers(tiers), cells, x, y, radius, check_limit(limit), MAX_SCANNED)
    return _as_recall(await scope.call(scripts.near(scope.keys, row=circle)))


def check_limit(limit: Any) -> int:
    """Return a valid limit.

    Raises:
        InvalidInput: not a whole number from 1 to 1000.
    """
    if not is_whole(limit) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"a recall returns 1 to {MAX_LIMIT} records, not {limit!r:.80}")
    return int(limit)


def check_tiers(tiers: Sequence[Any]) -> tuple[Tier, ...]:
    """Return valid tiers, each once.

    Raises:
        InvalidInput: none, or not a tier.
    """
    if not tiers or isinstance(tiers, str) or not set(tiers) <= set(TIERS):
        raise InvalidInput(f"tiers {tiers!r:.80} are refused; there are {' and '.join(TIERS)}")
    return tuple(tier for tier in TIERS if tier in tiers)


def check_ids(ids: Sequence[str]) -> None:
    """Limit the ids of one call.

    Raises:
        InvalidInput: more than 500, or not texts.
    """
    if len(ids) > MAX_IDS:
        raise InvalidInput(f"{len(ids)} ids are too many for one call; give {MAX_IDS} at a time")
    for id_ in ids:
        if not isinstance(id_, str):
            raise InvalidInput(f"a record id is a text, not {id_!r:.80}")


def check_names(what: str, names: Sequence[str]) -> None:
    """Refuse a text in place of a tuple: its letters would be read as names.

    Raises:
        InvalidInput: a text.
    """
    if isinstance(names, str):
        raise InvalidInput(f"give {what}s as a tuple, not {names!r:.80}")


def encode_names(what: str, names: Sequence[str]) -> list[str]:
    """Encode the names of a condition as in keys, each once.

    Raises:
        InvalidInput: more than 20, or a text.
    """
    check_names(what, names)
    if len(names) > 20:
        raise InvalidInput(f"give up to 20 {what}s, not {len(names)}")
    return list(dict.fromkeys(encode_foreign(what, name) for name in names))


def _check_step(what: str, step: Any) -> int:
    if not is_whole(step) or abs(step) > MAX_STEP:
        raise InvalidInput(f"{what} must be a whole number up to 2^40, not {step!r:.80}")
    return int(step)


def _as_recall(found: scripts.FoundRecords) -> Recall:
    return Recall(decode_records(found.records), found.complete, found.scanned)
