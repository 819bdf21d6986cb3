"""Compares the vectors of a memory with its records and with the indices of vectors, and repairs what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.core.errors import ConfigError
from orchestrator.core.reading import read_whole
from orchestrator.memory import scripts
from orchestrator.memory.similar import current_rung
from orchestrator.memory.vector_indexing import index_vectors, remove_noted
from orchestrator.memory.vector_rebuild import hides, rebuild, tend_vectors
from orchestrator.store.keys import CODES, VECTOR_SET, VECTORS, VECTORS_PENDING
from orchestrator.vectors.encoding import split_stored
from orchestrator.vectors.rungs import NO_INDEXING, VectorIndexing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.store.scoped import ScopedStore

ROWS_AT_ONCE: Final = 100
_SAMPLE: Final = 100
"""Elements in one call, which take the server about 2 ms."""
_ROUNDS: Final = 10
"""Samples of a vector set, as a multiple of its size, of which none shows a rare stale element once in 20,000 times."""


class VectorDamage(NamedTuple):
    """One damage: its code as in the findings of repairs, and the record or element; empty: the memory."""

    code: str
    name: bytes


async def indexing_of(scope: ScopedStore) -> VectorIndexing:
    """Return how the vectors of a memory are indexed; a rung that the server lacks counts as none."""
    try:
        return VectorIndexing(await current_rung(scope))
    except ConfigError:
        return NO_INDEXING


async def check_stored(
    scope: ScopedStore, indexing: VectorIndexing, *, repair: bool
) -> AsyncIterator[list[VectorDamage]]:
    """Check each stored vector with its record and its entries, and each list of buckets; yield what a step has found.

    The vector set follows in steps, too.
    """
    for part in (VECTORS, CODES):
        cursor = 0
        while True:
            following, flat = await scope.read("HSCAN", scope.keys.key(part), cursor, "COUNT", ROWS_AT_ONCE)
            codes = [_codes(indexing, value) if part == VECTORS else b"" for value in flat[1::2]]
            rows = list(zip(flat[::2], codes, strict=True))
            # An empty hash is checked for its counts.
            for first in range(0, max(len(rows), 1), ROWS_AT_ONCE):
                yield await check_members(scope, part, rows[first : first + ROWS_AT_ONCE], indexing, repair=repair)
            cursor = read_whole(following)
            if not cursor:
                break
    while repair and await index_vectors(scope, rounds=1, grace_us=0):
        yield []


async def check_members(
    scope: ScopedStore, part: str, rows: Sequence[tuple[bytes, bytes]], indexing: VectorIndexing, *, repair: bool
) -> list[VectorDamage]:
    """Check up to 100 members of a key of vectors: (id, codes of its buckets)."""
    call = scripts.check_vectors(scope.keys, part=part, rows=rows, indexed=indexing.rung == "vectorset", repair=repair)
    return [VectorDamage(code, b"" if row < 0 else rows[row][0]) for row, code in await scope.call(call)]


async def remove_stale(scope: ScopedStore, *, repair: bool) -> AsyncIterator[list[VectorDamage]]:
    """Remove elements from the vector set that are not the vector of a record; yield what a step has found.

    No command of Redis 8.0 lists the elements. Random ones are looked at until the set has no more elements than there
    are vectors, which costs less than to build the set anew unless nearly all of its elements are sound.

    Raises:
        StoreError: Redis did not do it; a repeat goes on.
    """
    if hides(scope):
        if repair:
            await tend_vectors(scope)
        return
    missed = 0
    while True:
        sample = await scope.call(scripts.check_vector_set(scope.keys, most=_SAMPLE, repair=repair))
        yield [VectorDamage("orphan-entry", element) for element in sample.stale]
        if not repair or not sample.elements:
            return
        if sample.stale:
            await remove_noted(scope)
            missed = 0
        else:
            missed += 1
        surplus = sample.elements - len(sample.stale) > sample.vectors - sample.notes
        if not surplus or missed * _SAMPLE > _ROUNDS * sample.elements:
            return


async def clear_away(scope: ScopedStore) -> None:
    """Remove every vector that is not that of a record now, from each key. An erasure waits for it.

    Raises:
        StoreError: Redis did not do it; a repeat goes on.
    """
    parts = (VECTORS, VECTOR_SET, VECTORS_PENDING, CODES)
    if not await scope.read("EXISTS", *(scope.keys.key(part) for part in parts)):
        return
    await remove_noted(scope)
    async for _ in check_stored(scope, await indexing_of(scope), repair=True):
        pass
    await remove_noted(scope)
    if hides(scope) and (await scope.store.capabilities.get()).vector_sets:
        await rebuild(scope)
    async for _ in remove_stale(scope, repair=True):
        pass


def _codes(indexing: VectorIndexing, stored: bytes) -> bytes:
    return indexing.codes(split_stored(stored).floats) if indexing.rung == "lsh" else b""
