"""Finds the records whose vectors are the most similar to a vector.

An index proposes vectors; the stored headers decide. A proposed vector counts only if its number is the one in its
record's header and the record is live, is not superseded, and meets the conditions: what a late writer left in an
index, and what has changed since, is passed over.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.core.errors import InvalidInput
from orchestrator.memory.cached_search import KEPT_VECTORS, CachedSearch
from orchestrator.memory.conditions import Conditions
from orchestrator.memory.encoding import check_number, is_whole
from orchestrator.memory.exact_search import ExactSearch
from orchestrator.memory.listed_search import ListedSearch
from orchestrator.memory.lsh_search import LshSearch
from orchestrator.memory.model import ScoredRecord, SimilarRecords
from orchestrator.memory.narrowing import plan_search
from orchestrator.memory.proposals import LiveHit, check_hits, read_best
from orchestrator.memory.vector_set_search import VectorSetSearch
from orchestrator.store.keys import VECTORS, VECTORS_META
from orchestrator.vectors.rungs import choose_rung

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.memory.model import MemoryQuery
    from orchestrator.memory.searcher import Searcher
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.cache import VectorCache
    from orchestrator.vectors.rungs import Rung

MAX_K: Final = 100


class _Found(NamedTuple):
    """Result of a search: the records that count, the most similar first."""

    live: list[LiveHit]
    rung: Rung
    complete: bool


class _Asked(NamedTuple):
    """A question to an index."""

    vector: bytes
    k: int
    conditions: Conditions


def spare(k: int) -> int:
    """Return how many vectors an index is asked for, so that the best `k` are among them: it has compressed ones."""
    return 2 * k + 4


async def current_rung(scope: ScopedStore) -> Rung:
    """Return the index that vectors are kept in: as the settings ask, or the best one that the server has."""
    return choose_rung(scope.settings.memory.vector_rung, await scope.store.capabilities.get())


async def find_similar(
    scope: ScopedStore,
    vector: bytes,
    k: int,
    *,
    where: MemoryQuery | None,
    min_score: float | None,
    cache: VectorCache,
) -> SimilarRecords:
    """Return the `k` records whose vectors are the most similar.

    Args:
        scope: of the memory.
        vector: 32-bit floats, little-endian.
        k: number of records.
        where: conditions that they must meet.
        min_score: lowest cosine.
        cache: vectors that the process keeps.

    Raises:
        ConfigError: the server or this process lacks what the search needs.
        InvalidInput: an invalid value, or a vector of another space.
    """
    if not is_whole(k) or not 1 <= k <= MAX_K:
        raise InvalidInput(f"k must be a whole number from 1 to {MAX_K}, not {k!r:.80}")
    least = -1.0 if min_score is None else check_number("min_score", min_score)
    if not -1 <= least <= 1:
        raise InvalidInput(f"min_score must be a cosine, from -1 to 1, not {min_score!r:.80}")
    rung = await current_rung(scope)
    plan = await plan_search(scope, Conditions.of(where), spare(k))
    searchers = _searchers(scope, rung, cache) if plan.ids is None else [ListedSearch(plan.ids)]
    found = await _search(scope, _Asked(vector, k, plan.conditions), searchers)
    best = [each for each in found.live[:k] if each.score >= least]
    records = await read_best(scope, best, plan.conditions)
    scored = tuple(ScoredRecord(record, each.score) for record, each in zip(records, best, strict=True) if record)
    complete = found.complete and not (not found.live and await _has_lost_vectors(scope))
    return SimilarRecords(scored, found.rung, complete=complete)


async def _has_lost_vectors(scope: ScopedStore) -> bool:
    """Return whether Redis has lost all vectors of a memory: the key that names their space goes with the last one."""
    vectors, space = await scope.read_many(
        [("EXISTS", scope.keys.key(VECTORS)), ("EXISTS", scope.keys.key(VECTORS_META))]
    )
    return bool(space and not vectors)


def _searchers(scope: ScopedStore, rung: Rung, cache: VectorCache) -> list[Searcher]:
    """Return the ways to search, the first one that answers first."""
    exact: list[Searcher] = [CachedSearch(cache), ExactSearch()]
    if rung == "vectorset":
        return [VectorSetSearch(), *exact]
    if rung == "exact":
        return exact
    if scope.settings.memory.vector_rung == "auto":
        return [CachedSearch(cache, KEPT_VECTORS), LshSearch(), *exact]
    return [LshSearch(), *exact]


async def _search(scope: ScopedStore, asked: _Asked, searchers: Sequence[Searcher]) -> _Found:
    """Search an index, and the next one if too few of the vectors that it proposes count."""
    for searcher in searchers:
        found = await _widen(scope, asked, searcher)
        if found is not None and (len(found.live) >= asked.k or found.complete or searcher is searchers[-1]):
            return found
    raise AssertionError(searchers)


async def _widen(scope: ScopedStore, asked: _Asked, searcher: Searcher) -> _Found | None:
    """Ask an index for some vectors, then for more, until `k` of them count or there are no more."""
    k, conditions = asked.k, asked.conditions
    share = conditions.other_share * (1 if searcher.rung == "vectorset" else conditions.share)
    count, most, repeated = math.ceil(spare(k) / share), searcher.most, False
    while True:
        count = min(count, most)
        found = await searcher.nearest(scope, asked.vector, count, conditions)
        if found is None:
            return None
        kept = found.revision is not None
        # A vector set may have vectors of late writers; other hits are vectors that their records had a moment ago.
        any_number = searcher.rung != "vectorset"
        checked = await check_hits(
            scope, asked.vector, found.hits, conditions, front=k + max(2, k // 5), any_number=any_number
        )
        live, stale = checked.live, checked.stale
        if kept and found.revision != checked.revision and not repeated:
            # The next search knows all changes up to its begin.
            repeated = True
            continue
        if stale:
            await searcher.discard(scope, stale)
        if len(live) >= k or not found.more or count == most:
            return _Found(live, searcher.rung, complete=found.complete and (len(live) >= k or not found.more))
        count *= 4
