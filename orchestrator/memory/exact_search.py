"""Compares a vector with all vectors of a memory."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ConfigError, InvalidInput
from orchestrator.core.reading import read_text, read_whole
from orchestrator.memory.searcher import Candidates, Hit
from orchestrator.store.keys import VECTORS
from orchestrator.vectors.encoding import dims_of, split_stored
from orchestrator.vectors.ranking import HAS_NUMPY, cosines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.memory.conditions import Conditions
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.rungs import Rung

_AT_ONCE: Final = 500
MOST_WITHOUT_NUMPY: Final = 2000
"""Vectors of 384 dimensions that Python compares in less than 0.2 s; the event loop turns after each page."""


class ExactSearch:
    """Reads the stored vectors in pages, and keeps the nearest ones.

    It serves memories that a process does not keep: with more vectors than fit, or of a process without numpy.
    """

    rung: Rung = "exact"
    most: int = 10_000

    async def nearest(self, scope: ScopedStore, vector: bytes, count: int, conditions: Conditions) -> Candidates:
        """Return the nearest vectors."""
        del conditions
        key, cursor = scope.keys.key(VECTORS), 0
        if not HAS_NUMPY and await scope.read("HLEN", key) > MOST_WITHOUT_NUMPY:
            raise ConfigError(
                f"this process has no numpy, without which it compares at most {MOST_WITHOUT_NUMPY} vectors; run "
                "`pip install 'redis-orchestrator[vectors]'`, or use a server with vector sets (Redis 8.0)"
            )
        best: dict[Hit, float] = {}
        seen = 0
        while True:
            following, flat = await scope.read("HSCAN", key, cursor, "COUNT", _AT_ONCE)
            stored = [split_stored(value) for value in flat[1::2]]
            for each in stored:
                check_dims(vector, each.floats)
            hits = [Hit(read_text(id_), each.number) for id_, each in zip(flat[::2], stored, strict=True)]
            best |= zip(hits, cosines(vector, [each.floats for each in stored]), strict=True)
            seen += len(hits)
            best = dict(heapq.nlargest(count, best.items(), key=lambda pair: pair[1]))
            cursor = read_whole(following)
            if not cursor:
                return Candidates(list(best), more=seen > count, complete=True)

    async def discard(self, scope: ScopedStore, stale: Sequence[Hit]) -> None:
        """Do nothing: the scripts keep the stored vectors with their records."""


def check_dims(vector: bytes, stored: bytes) -> None:
    """Refuse a vector that a stored one cannot be compared with.

    Raises:
        InvalidInput: another number of dimensions.
    """
    if len(stored) != len(vector):
        raise InvalidInput(
            f"the vector has {dims_of(vector)} dimensions, and those of this memory have {dims_of(stored)}"
        )


def check_space(vector: bytes, space: bytes | None) -> None:
    """Refuse a vector of another space than that of a memory, as `emb:meta` names it.

    Raises:
        InvalidInput: another number of dimensions.
    """
    dims = read_whole(space.partition(b":")[0]) if space else dims_of(vector)
    if dims != dims_of(vector):
        raise InvalidInput(f"the vector has {dims_of(vector)} dimensions, and those of this memory have {dims}")
