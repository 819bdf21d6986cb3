"""Compares a vector with those of some records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.memory.exact_search import check_dims
from orchestrator.memory.searcher import Candidates, Hit
from orchestrator.store.keys import VECTORS
from orchestrator.vectors.encoding import split_stored
from orchestrator.vectors.ranking import rank_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.memory.conditions import Conditions
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.rungs import Rung

_AT_ONCE: Final = 1000
"""Vectors in one command: other clients wait while the server copies them."""


class ListedSearch:
    """Reads the stored vectors of listed records once, and ranks them."""

    rung: Rung = "exact"

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids
        self._values: list[tuple[str, bytes]] | None = None
        self.most = max(len(ids), 1)

    async def nearest(self, scope: ScopedStore, vector: bytes, count: int, conditions: Conditions) -> Candidates:
        """Return the nearest vectors of the listed records."""
        del conditions
        if self._values is None:
            self._values = await self._rank(scope, vector)
        hits = [Hit(id_, split_stored(value).number) for id_, value in self._values[:count]]
        return Candidates(hits, more=count < len(self._values), complete=True)

    async def _rank(self, scope: ScopedStore, vector: bytes) -> list[tuple[str, bytes]]:
        """Return ids and stored vectors, the most similar first."""
        key, pairs = scope.keys.key(VECTORS), list[tuple[str, bytes]]()
        parts = [self._ids[first : first + _AT_ONCE] for first in range(0, len(self._ids), _AT_ONCE)]
        replies = await scope.read_many([("HMGET", key, *part) for part in parts], aside=True)
        for part, stored in zip(parts, replies, strict=True):
            pairs += [pair for pair in zip(part, stored, strict=True) if pair[1] is not None]
        for value in {len(value): value for _, value in pairs}.values():
            check_dims(vector, split_stored(value).floats)
        return [pairs[place] for place in rank_stored(vector, [value for _, value in pairs])]

    async def discard(self, scope: ScopedStore, stale: Sequence[Hit]) -> None:
        """Do nothing: this is no index."""
