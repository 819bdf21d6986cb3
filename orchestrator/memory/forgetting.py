"""Selects records by a filter and removes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import Duration, to_ms
from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.core.ids import encode_foreign, new_token
from orchestrator.core.reading import read_text, read_whole
from orchestrator.memory import queries, scripts
from orchestrator.memory.encoding import check_number, is_whole
from orchestrator.memory.headers import RecordHeader, decode_header
from orchestrator.memory.model import MAX_STEP, TIERS
from orchestrator.store.keys import OUTBOX
from orchestrator.store.paging import PAGE, zset_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.memory.model import StoredRecord, Tier
    from orchestrator.memory.writer import MemoryWriter
    from orchestrator.store.scoped import ScopedStore

MAX_FORGOTTEN: Final = 10_000
_MOST: Final = 100_000
_EXAMPLES: Final = 10
_BATCH: Final = 100
"""Records in one call: each one is about ten writes, and the server runs nothing else meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """A filter for records. All given conditions must hold; without any, all records match.

    Attributes:
        ids: ids, of which one must match.
        kinds: kinds, of which one must match.
        actions: actions, of which one must match.
        subject: person that the record is about.
        since: lowest step.
        until: highest step.
        below: importance below which records match.
        older_than: seconds or timedelta since the last `store`.
        tiers: tiers to search.
    """

    ids: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    subject: str | None = None
    since: int | None = None
    until: int | None = None
    below: float | None = None
    older_than: Duration | None = None
    tiers: tuple[Tier, ...] = TIERS

    @property
    def empty(self) -> bool:
        """True without any condition; a tier is none."""
        return not (self.ids or self.kinds or self.actions) and all(
            value is None for value in (self.subject, self.since, self.until, self.below, self.older_than)
        )


@dataclass(frozen=True, slots=True)
class ForgetPreview:
    """Records that `forget` removes.

    Attributes:
        id: id of the selection, which is kept for an hour.
        count: number of records.
        examples: up to ten of them.
        more: whether more records match than were selected.
    """

    id: str
    count: int
    examples: tuple[StoredRecord, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Result of `forget`.

    Attributes:
        count: number of removed records.
        missing: number of records that were removed or had expired before.
        changed: ids of records that have changed since the preview, and stay.
        more: whether more records match than were selected.
    """

    count: int
    missing: int
    changed: tuple[str, ...]
    more: bool


async def preview(scope: ScopedStore, wanted: RecordFilter, *, limit: int) -> ForgetPreview:
    """Select the records that match a filter.

    Raises:
        InvalidInput, StoreError: an invalid condition; no reply.
    """
    if not is_whole(limit) or not 1 <= limit <= _MOST:
        raise InvalidInput(f"a selection has 1 to {_MOST} records, not {limit!r:.80}")
    conditions = await _Conditions.of(scope, wanted)
    id_, count, first, more = new_token(), 0, list[str](), False
    async for page in _matching(scope, wanted, conditions):
        rows = page[: limit - count]
        more = len(rows) < len(page)
        first += [record for _, record in rows[: _EXAMPLES - len(first)]]
        for start in range(0, len(rows), PAGE):
            chunk = rows[start : start + PAGE]
            await scope.call(scripts.select(scope.keys, selection=id_, at=count, rows=chunk))
            count += len(chunk)
        if more:
            break
    examples = await queries.read_records(scope, first, None)
    return ForgetPreview(id_, count, tuple(record for record in examples if record is not None), more)


async def forget(writer: MemoryWriter, chosen: ForgetPreview) -> Forgotten:
    """Remove the records of a selection.

    Raises:
        NotFound: the selection has expired.
        Fenced, LockLost, Occupied, StoreError: another owner has the lock; no reply.
    """
    done, missing, changed, number = 0, 0, list[str](), 0
    while done + missing + len(changed) < chosen.count:
        reply = await writer.change(
            lambda change: scripts.forget(change, selection=chosen.id, most=_BATCH),
            f"{chosen.id}/{number}",
            "forget-memory",
        )
        left, removed, gone, *stayed = reply.rest
        done, missing, changed = done + removed, missing + gone, changed + [read_text(id_) for id_ in stayed]
        number += 1
        if not left:
            break
    if done + missing + len(changed) < chosen.count:
        raise NotFound(
            f"the selection was made more than an hour ago and has expired; {done} records were removed. Make a new one"
        )
    return Forgotten(done, missing, tuple(changed), chosen.more)


@dataclass(frozen=True, slots=True)
class _Conditions:
    """A checked filter, in the terms of headers."""

    kinds: frozenset[str]
    actions: frozenset[str]
    subject: str
    since: float
    until: float
    below: float
    stored_before_ms: float
    now_ms: int

    @classmethod
    async def of(cls, scope: ScopedStore, wanted: RecordFilter) -> _Conditions:
        for name, step in (("since", wanted.since), ("until", wanted.until)):
            if step is not None and (not is_whole(step) or abs(step) > MAX_STEP):
                raise InvalidInput(f"{name} must be a whole number up to 2^40, not {step!r:.80}")
        queries.check_names("id", wanted.ids)
        stored_before_ms = math.inf
        seconds, micros = await scope.read("TIME")
        now_ms = read_whole(seconds) * 1000 + read_whole(micros) // 1000
        if wanted.older_than is not None:
            stored_before_ms = now_ms - to_ms("older_than", wanted.older_than)
        return cls(
            kinds=frozenset(queries.encode_names("kind", wanted.kinds)),
            actions=frozenset(queries.encode_names("action", wanted.actions)),
            subject="" if wanted.subject is None else encode_foreign("subject", wanted.subject),
            since=-math.inf if wanted.since is None else wanted.since,
            until=math.inf if wanted.until is None else wanted.until,
            below=math.inf if wanted.below is None else check_number("below", wanted.below),
            stored_before_ms=stored_before_ms,
            now_ms=now_ms,
        )

    def match(self, header: RecordHeader) -> bool:
        """Return whether a record meets all conditions."""
        return (
            (not self.kinds or header.kind in self.kinds)
            and (not self.actions or header.action in self.actions)
            and (not self.subject or header.subject == self.subject)
            and self.since <= math.floor(header.score) <= self.until
            and header.importance < self.below
            and header.stored < self.stored_before_ms
            and header.deadline > self.now_ms
        )


async def _matching(
    scope: ScopedStore, wanted: RecordFilter, conditions: _Conditions
) -> AsyncIterator[list[tuple[int, str]]]:
    """Yield version and id of the records that match, in pages."""
    for tier in queries.check_tiers(wanted.tiers):
        hdr_key = scope.keys.key(scope.keys.tier_part(tier, "hdr"))
        async for ids in _candidates(scope, wanted, tier):
            headers = await scope.read("HMGET", hdr_key, *ids)
            pairs = [(id_, decode_header(packed)) for id_, packed in zip(ids, headers, strict=True) if packed]
            if page := [(header.version, id_) for id_, header in pairs if conditions.match(header)]:
                yield page
    # These records come from the intermediate tier.
    if "im" in wanted.tiers:
        async for page in _waiting(scope, wanted, conditions):
            yield page


async def _waiting(
    scope: ScopedStore, wanted: RecordFilter, conditions: _Conditions
) -> AsyncIterator[list[tuple[int, str]]]:
    """Yield version and id of the records that match in the outbox for long-term storage, in pages."""
    out_key, after = scope.keys.key(OUTBOX), b"0-0"
    while entries := await scope.read("XRANGE", out_key, b"(" + after, "+", "COUNT", _BATCH):
        page: list[tuple[int, str]] = []
        for _, flat in entries:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            id_, header = read_text(fields[b"i"]), decode_header(fields[b"h"])
            if (not wanted.ids or id_ in wanted.ids) and conditions.match(header):
                page.append((header.version, id_))
        if page:
            yield page
        after = entries[-1][0]


async def _candidates(scope: ScopedStore, wanted: RecordFilter, tier: Tier) -> AsyncIterator[Sequence[str]]:
    if wanted.ids:
        ids = list(dict.fromkeys(wanted.ids))
        for first in range(0, len(ids), PAGE):
            queries.check_ids(ids[first : first + PAGE])
            yield ids[first : first + PAGE]
        return
    keys = scope.keys
    # These two have replaced records too.
    part = keys.tier_part(tier, "exp") if wanted.subject is None else keys.subject_part(tier, wanted.subject)
    async for page in zset_pages(scope.store, keys.key(part)):
        yield page
