"""Keeps a memory in order: removes what has expired or is damaged, moves what is due, and counts what is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput, MemoryFull, Occupied
from orchestrator.core.reading import read_score, read_whole
from orchestrator.locks.waiter import LockWaiter
from orchestrator.memory import scripts
from orchestrator.memory.encoding import is_whole
from orchestrator.memory.headers import decode_header
from orchestrator.memory.listings import follow
from orchestrator.memory.model import MAX_LIMIT, TIERS
from orchestrator.memory.tiers import move_due
from orchestrator.memory.vector_rebuild import tend_vectors
from orchestrator.memory.writer import MemoryWriter
from orchestrator.store.keys import OUTBOX, PENDING
from orchestrator.store.scoped import ScopedStore
from orchestrator.tasks.scripts import wake

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.core.settings import Settings
    from orchestrator.memory.model import Tier
    from orchestrator.store.calls import Argument
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.store import Store

MAX_BUDGET: Final = 100_000
_AT_ONCE: Final = 200
_ROUNDS: Final = 50
_HOUR_MS: Final = 3_600_000
_STEPS: Final = [(tier, part) for tier in TIERS for part in ("exp", "hdr", "time", "imp", "rec", "acc")]
_HASHES: Final = frozenset({"hdr", "rec", "acc"})


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Result of `Memory.sweep`.

    Attributes:
        cursor: value for the next call; 0 if the sweep has reached the end.
        checked: number of entries that were looked at.
        expired: number of expired records that were removed.
        orphans: number of index entries and contents without a header that were removed.
        damaged: number of records without content that were removed.
        restored: number of records that got back index entries.
        followed: number of changes of indices of simulations that were made.
        contents: number of contents without a header among the orphans.
    """

    cursor: int
    checked: int = 0
    expired: int = 0
    orphans: int = 0
    damaged: int = 0
    restored: int = 0
    followed: int = 0
    contents: int = 0


@dataclass(frozen=True, slots=True)
class TierStats:
    """Size of one tier.

    Attributes:
        records: number of records, with those that have expired and are not removed yet.
        bytes: bytes of their ids, contents and metadata.
        oldest_step: lowest step of a record, or None.
        newest_step: highest step of a record, or None.
        next_expiry: time at which the next record expires, or None.
        expiring: number of records that expire within an hour.
    """

    records: int
    bytes: int
    oldest_step: int | None
    newest_step: int | None
    next_expiry: datetime | None
    expiring: int


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Size of a memory.

    Attributes:
        stm: the short-term tier.
        im: the intermediate tier.
        outbox: number of records that wait for long-term storage.
        pending: number of changes of indices of simulations that are still to be made.
    """

    stm: TierStats
    im: TierStats
    outbox: int
    pending: int

    @property
    def records(self) -> int:
        """Number of records in both tiers."""
        return self.stm.records + self.im.records

    @property
    def bytes(self) -> int:
        """Bytes of the records in both tiers."""
        return self.stm.bytes + self.im.bytes


async def sweep(writer: MemoryWriter, *, cursor: int, budget: int) -> SweepReport:
    """Check entries from a cursor on, and remove or restore what is wrong.

    Raises:
        InvalidInput: not a cursor or a budget.
    """
    if not is_whole(cursor) or cursor < 0 or (cursor and (cursor - 1) % 16 >= len(_STEPS)):
        raise InvalidInput(f"{cursor!r:.80} is no cursor of a sweep; begin with 0")
    if not is_whole(budget) or not 1 <= budget <= MAX_BUDGET:
        raise InvalidInput(f"budget must be a whole number from 1 to {MAX_BUDGET}, not {budget!r:.80}")
    counts, checked, contents = [0, 0, 0, 0], 0, 0
    position, step = divmod(cursor - 1, 16) if cursor else (0, 0)
    followed = await follow(writer.scope)
    while step < len(_STEPS) and checked < budget:
        tier, part = _STEPS[step]
        ids, following = await _members(writer.scope, tier, part, position, min(_AT_ONCE, budget - checked))
        removed = 0
        for first in range(0, len(ids), _AT_ONCE):
            found = await check_entries(writer, tier, part, ids[first : first + _AT_ONCE])
            counts = [count + more for count, more in zip(counts, found, strict=True)]
            removed += sum(found[:3])
            contents += found[1] if part == "rec" else 0
        checked += len(ids)
        # Members of a sorted set move up when others are removed.
        position = following if part in _HASHES else max(following - removed, 0) if following else 0
        if not following:
            position, step = 0, step + 1
    followed += await follow(writer.scope)
    expired, orphans, damaged, restored = counts
    return SweepReport(
        cursor=0 if step == len(_STEPS) else position * 16 + step + 1,
        checked=checked,
        expired=expired,
        orphans=orphans,
        damaged=damaged,
        restored=restored,
        followed=followed,
        contents=contents,
    )


async def recover(writer: MemoryWriter, subject: str) -> int:
    """Give the records about a person the index entries that they lack, and remove contents that have no header.

    A lost key leaves such records and contents, which `lua/memory/erase.lua` does not find.

    Args:
        writer: of the memory.
        subject: the person, encoded.

    Returns:
        Number of removed contents; of whom they were is not known.
    """
    scope, torn = writer.scope, False
    for tier in TIERS:
        hdr, rec, exp = (scope.keys.key(scope.keys.tier_part(tier, part)) for part in ("hdr", "rec", "exp"))
        position = 0
        while True:
            following, flat = await scope.read("HSCAN", hdr, position, "COUNT", _AT_ONCE)
            pairs = zip(flat[::2], flat[1::2], strict=True)
            ids = [id_ for id_, packed in pairs if decode_header(packed).subject == subject]
            for first in range(0, len(ids), _AT_ONCE):
                await check_entries(writer, tier, "hdr", ids[first : first + _AT_ONCE])
            position = read_whole(following)
            if not position:
                break
        headers, *others = await scope.read_many([("HLEN", hdr), ("HLEN", rec), ("ZCARD", exp)])
        torn = torn or any(other != headers for other in others)
    removed, cursor = 0, 0
    while torn:
        report = await sweep(writer, cursor=cursor, budget=MAX_BUDGET)
        removed, cursor = removed + report.contents, report.cursor
        torn = cursor != 0
    return removed


async def check_entries(writer: MemoryWriter, tier: Tier, part: str, ids: Sequence[bytes]) -> list[int]:
    """Check up to 200 members of one key of a tier: expired, orphan, damaged and restored ones.

    Args:
        writer: of the memory.
        tier: tier of the key.
        part: the key, as `time` or `kind:K`.
        ids: some of its members.
    """
    if not ids:
        return [0, 0, 0, 0]
    reply = await writer.change(lambda change: scripts.sweep(change, tier=tier, part=part, ids=ids), None)
    return list(reply.rest)


async def _members(scope: ScopedStore, tier: Tier, part: str, position: int, count: int) -> tuple[list[bytes], int]:
    """Return some members of a key, and the position of the next ones, 0 at the end."""
    key = scope.keys.key(scope.keys.tier_part(tier, part))
    if part in _HASHES:
        following, flat = await scope.read("HSCAN", key, position, "COUNT", count)
        return flat[::2], read_whole(following)
    ids = await scope.read("ZRANGE", key, position, position + count - 1)
    return ids, position + count if len(ids) == count else 0


async def measure(scope: ScopedStore) -> MemoryStats:
    """Count the records of a memory."""
    keys = scope.keys

    def key(tier: str, part: str) -> str:
        return keys.key(keys.tier_part(tier, part))

    commands: list[Sequence[Argument]] = [("MULTI",), ("TIME",)]
    for tier in TIERS:
        commands += [
            ("HLEN", key(tier, "hdr")),
            ("HGET", key(tier, "meta"), "bytes"),
            ("ZRANGE", key(tier, "time"), 0, 0, "WITHSCORES"),
            ("ZRANGE", key(tier, "time"), -1, -1, "WITHSCORES"),
            ("ZRANGE", key(tier, "exp"), 0, 0, "WITHSCORES"),
        ]
    commands += [("XLEN", keys.key(OUTBOX)), ("HLEN", keys.key(PENDING)), ("EXEC",)]
    (seconds, micros), *sizes, outbox, pending = (await scope.read_many(commands))[-1]
    soon_ms = read_whole(seconds) * 1000 + read_whole(micros) // 1000 + _HOUR_MS
    expiring = await scope.read_many([("ZCOUNT", key(tier, "exp"), "-inf", soon_ms) for tier in TIERS])
    stm, im = (_tier_stats(sizes[5 * i : 5 * i + 5], expiring[i]) for i in range(2))
    return MemoryStats(stm, im, outbox, max(pending - 1, 0))


def _tier_stats(sizes: Sequence[Any], expiring: int) -> TierStats:
    records, bytes_, oldest, newest, first = sizes
    return TierStats(
        records,
        read_whole(bytes_),
        int(read_score(oldest[1]) // 1) if oldest else None,
        int(read_score(newest[1]) // 1) if newest else None,
        from_instant_ms(read_whole(first[1])) if first else None,
        expiring,
    )


async def tend_memory(store: Store, settings: Settings, keys: ScopeKeys) -> int:
    """Do the work that is due for an idle memory, and return the number of changes.

    Makes pending changes of indices of simulations, removes expired records, and moves records that are due. A memory
    that another owner holds alone is left for the next scan.
    """
    scope = ScopedStore(store, keys, settings)
    writer = MemoryWriter(scope, waiter=LockWaiter(store, wake), wait_s=0)
    changes = await follow(scope) + await tend_vectors(scope)
    try:
        for tier in TIERS:
            for _ in range(_ROUNDS):
                found = await check_entries(writer, tier, "exp", await _expired(scope, tier))
                changes += found[0]
                if not any(found):
                    break
        changes += (await move_due(writer, MAX_LIMIT)).moved
    except (Occupied, MemoryFull):
        pass
    return changes


async def _expired(scope: ScopedStore, tier: Tier) -> list[bytes]:
    """Return up to 200 records that have expired."""
    seconds, micros = await scope.read("TIME")
    now_ms = read_whole(seconds) * 1000 + read_whole(micros) // 1000
    key = scope.keys.key(scope.keys.tier_part(tier, "exp"))
    found: list[bytes] = await scope.read("ZRANGE", key, "-inf", now_ms, "BYSCORE", "LIMIT", 0, _AT_ONCE)
    return found
