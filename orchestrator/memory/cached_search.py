"""Compares a vector with the vectors of a memory that the process keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.reading import read_text
from orchestrator.memory.searcher import Candidates, Hit
from orchestrator.vectors.ranking import HAS_NUMPY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.memory.conditions import Conditions
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.cache import VectorCache
    from orchestrator.vectors.rungs import Rung

KEPT_VECTORS: Final = 20_000
"""Vectors that are compared with all others rather than searched in buckets, where both can be.

A comparison with 20,000 of 384 dimensions takes 3 ms and 36 MB, less than the three round trips of a search of buckets;
the first search of a process reads them in up to 0.4 s.
"""


class CachedSearch:
    """Compares a vector with all vectors of a memory, in one search.

    The first call takes what the process keeps as the vectors of now. The caller reads their revision with the headers,
    in one round trip, and calls again if it is another. That call asks the server first what has changed.

    Args:
        cache: of the process.
        up_to: number of vectors from which on the search answers nothing.
    """

    rung: Rung = "exact"
    most: int = 10_000

    def __init__(self, cache: VectorCache, up_to: int | None = None) -> None:
        self._cache, self._up_to = cache, up_to
        self._asked = False

    async def nearest(self, scope: ScopedStore, vector: bytes, count: int, conditions: Conditions) -> Candidates | None:
        """Return the nearest vectors; None without numpy, or if there are more than the process may keep."""
        del conditions
        if not HAS_NUMPY:
            return None
        ranked = await self._cache.nearest(scope, vector, count, renew=self._asked, most=self._up_to)
        if ranked is None:
            return None
        self._asked = True
        hits = [Hit(read_text(id_), number) for id_, number in ranked.found]
        return Candidates(
            hits, len(hits) < ranked.revision.size, complete=True, revision=ranked.revision if hits else None
        )

    async def discard(self, scope: ScopedStore, stale: Sequence[Hit]) -> None:
        """Do nothing: what is stale is read again with the next search."""
