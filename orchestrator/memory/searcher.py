"""The interface of a way to search vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.memory.conditions import Conditions
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.cache import Revision
    from orchestrator.vectors.rungs import Rung


class Hit(NamedTuple):
    """A vector that a search has found; its record may have another one by now.

    Attributes:
        id: id of the record.
        number: number of the vector.
    """

    id: str
    number: int


class Candidates(NamedTuple):
    """Proposals of a search.

    Attributes:
        hits: vectors, the most similar first as far as the index knows.
        more: whether a search for more vectors finds more.
        complete: False if the index may lack vectors that are as similar.
        revision: what the vectors of the memory were; if they have changed since, the search has to be repeated. None
            if the index was asked now.
    """

    hits: Sequence[Hit]
    more: bool
    complete: bool
    revision: Revision | None = None


class Searcher(Protocol):
    """A way to search the vectors of a memory.

    It may propose vectors that are no longer those of their records, and records that do not meet the conditions: the
    caller checks each one.
    """

    rung: Rung
    most: int
    """Vectors that it proposes at most, because each one is checked."""

    async def nearest(self, scope: ScopedStore, vector: bytes, count: int, conditions: Conditions) -> Candidates | None:
        """Return about `count` vectors that are similar to a vector, or None if the index cannot answer.

        Args:
            scope: of the memory.
            vector: 32-bit floats, little-endian.
            count: number of vectors that the caller wants to check.
            conditions: conditions of the caller; a search may leave out vectors of records that do not meet them.

        Raises:
            InvalidInput: a vector of another space.
        """

    async def discard(self, scope: ScopedStore, stale: Sequence[Hit]) -> None:
        """Remove vectors from the index that are no longer those of their records."""
