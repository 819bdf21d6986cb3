"""Searches the buckets of vectors of a memory."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from orchestrator.core.reading import read_text
from orchestrator.memory.exact_search import check_space
from orchestrator.memory.searcher import Candidates, Hit
from orchestrator.store.keys import CODES, VECTORS, VECTORS_META
from orchestrator.vectors.encoding import split_stored
from orchestrator.vectors.lsh import CODES_BYTES, nearest_buckets, probe_count, rank_codes
from orchestrator.vectors.ranking import HAS_NUMPY, rank_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.memory.conditions import Conditions
    from orchestrator.store.calls import Argument
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.rungs import Rung

RANKED: Final = 800
"""Candidates whose vectors are read: the most similar ones by their codes."""
MAX_CANDIDATES: Final = 20_000
"""Candidates whose codes are read."""
_PAGE: Final = 1000
_IN_LOOP: Final = 4000
"""Codes that are ranked in the event loop, in less than a millisecond; a thread ranks more."""


class LshSearch:
    """Reads the buckets around a vector, ranks their members by their codes, and the best of these by their vectors."""

    rung: Rung = "lsh"
    most: int = 2000

    async def nearest(self, scope: ScopedStore, vector: bytes, count: int, conditions: Conditions) -> Candidates | None:
        """Return the nearest vectors; None without numpy, or if buckets lack some of the vectors."""
        del conditions
        if not HAS_NUMPY:
            return None
        keys = scope.keys
        size, coded, space = await scope.read_many(
            [("HLEN", keys.key(VECTORS)), ("HLEN", keys.key(CODES)), ("HGET", keys.key(VECTORS_META), "space")]
        )
        check_space(vector, space)
        if coded < size:
            return None
        if size <= RANKED:
            # The vectors of all these candidates are read in any case.
            ids = await scope.read("HKEYS", keys.key(CODES))
        else:
            buckets = nearest_buckets(vector, probe_count(size))
            ids = await scope.read("SUNION", *[keys.key(keys.bucket_part(*bucket)) for bucket in buckets])
        # Redis returns the members of a union in no order, so that these are some of them by chance.
        among = ids[:MAX_CANDIDATES]
        ranked = await self._rank(scope, vector, among, max(RANKED, count))
        return Candidates(
            ranked[:count],
            more=len(ranked) > count,
            complete=len(ids) <= MAX_CANDIDATES and (len(ranked) >= count or len(among) >= size),
        )

    async def _rank(self, scope: ScopedStore, vector: bytes, ids: Sequence[bytes], most: int) -> list[Hit]:
        # Those that rank the same are in order of their ids.
        ids = sorted(ids)
        codes = await _read_fields(scope, CODES, ids)
        whole = [code is not None and len(code) == CODES_BYTES for code in codes]
        ids = list(compress(ids, whole))
        if len(ids) > most:
            known = [code for code in compress(codes, whole) if code is not None]
            if len(known) <= _IN_LOOP:
                places = rank_codes(vector, known)
            else:
                places = await to_thread.run_sync(rank_codes, vector, known)
            ids = [ids[place] for place in places[:most]]
        values = await _read_fields(scope, VECTORS, ids)
        there = [(id_, value) for id_, value in zip(ids, values, strict=True) if value is not None]
        stored = [value for _, value in there]
        return [
            Hit(read_text(there[place][0]), split_stored(stored[place]).number) for place in rank_stored(vector, stored)
        ]

    async def discard(self, scope: ScopedStore, stale: Sequence[Hit]) -> None:
        """Do nothing: the scripts keep the buckets with the records."""


async def _read_fields(scope: ScopedStore, part: str, ids: Sequence[bytes]) -> list[bytes | None]:
    """Read fields of a hash, in one round trip."""
    if not ids:
        return []
    key = scope.keys.key(part)
    pages: list[Sequence[Argument]] = [
        ("HMGET", key, *ids[first : first + _PAGE]) for first in range(0, len(ids), _PAGE)
    ]
    return [value for page in await scope.read_many(pages) for value in page]
