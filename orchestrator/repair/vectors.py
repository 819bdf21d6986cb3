"""Checks the vectors of memories: each one with its record, and the indices of vectors with both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.memory.vector_repair import ROWS_AT_ONCE, check_members, check_stored, indexing_of, remove_stale
from orchestrator.repair.findings import RepairFinding
from orchestrator.store.keys import CODES, VECTOR_SET, VECTORS, VECTORS_META, VECTORS_PENDING
from orchestrator.store.scanning import scan_steps
from orchestrator.store.scoped import ScopedStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, MutableMapping, Sequence

    from orchestrator.memory.vector_repair import VectorDamage
    from orchestrator.repair.scope_key import ScopeKey
    from orchestrator.services import Services
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.store import Store
    from orchestrator.vectors.rungs import VectorIndexing

_MOST_COUNTED: Final = 10_000
"""Memories of which a scan remembers that it has counted them."""
_BUCKET: Final = "lsh:B"
_OF_VECTORS: Final = frozenset({VECTORS, VECTOR_SET, CODES, _BUCKET})


async def check_vectors(
    services: Services,
    store: Store,
    known: Sequence[ScopeKey],
    *,
    repair: bool,
    deep: bool,
    counted: MutableMapping[ScopeKeys, bool],
) -> AsyncIterator[list[RepairFinding]]:
    """Check the numbers of vectors and of entries, and each vector if `deep` or where a number differs.

    Args:
        services: of the pool.
        store: where the keys are.
        known: keys of scopes.
        repair: whether to repair what is found.
        deep: whether to check each vector.
        counted: whether the numbers of a memory differed, for those that earlier steps of the scan have counted: among
            many keys each key of a memory comes in another step.
    """
    ours = [key for key in known if key.kind.suffix in _OF_VECTORS]
    if not ours:
        return
    scopes = list(dict.fromkeys(key.keys for key in ours))
    indexing = await indexing_of(ScopedStore(services.store, scopes[0], services.settings))
    if len(counted) > _MOST_COUNTED:
        counted.clear()
    new = [keys for keys in scopes if keys not in counted]
    differing = new
    # A change between two of these commands makes them differ, too.
    for _ in range(2):
        differing = await _differing(services, store, differing, indexing)
    counted.update({keys: keys in differing for keys in new})
    stored = {key.keys for key in ours if key.kind.suffix == VECTORS}
    for keys in scopes:
        # Where the vectors are lost, other keys of the scope lead to it.
        if keys not in differing and not (deep and keys in stored):
            continue
        async for found in _check_memory(ScopedStore(services.store, keys, services.settings), indexing, repair=repair):
            yield found
    for key in ours:
        if key.kind.suffix == _BUCKET and (deep or counted[key.keys]):
            async for found in _check_bucket(services, key, indexing, repair=repair):
                yield found


async def _check_memory(
    scope: ScopedStore, indexing: VectorIndexing, *, repair: bool
) -> AsyncIterator[list[RepairFinding]]:
    try:
        async for found in check_stored(scope, indexing, repair=repair):
            yield _findings(scope.keys, found, repair=repair)
        async for found in remove_stale(scope, repair=repair):
            yield _findings(scope.keys, found, repair=repair)
    except ServerRefused as refusal:
        yield [RepairFinding("unreadable", scope.keys.root, str(refusal), repaired=False)]


async def _differing(
    services: Services, store: Store, scopes: Sequence[ScopeKeys], indexing: VectorIndexing
) -> list[ScopeKeys]:
    """Return the memories of which an index has another number of entries than there are vectors."""
    has_sets = (await services.store.capabilities.get()).vector_sets
    commands = [
        command
        for keys in scopes
        for command in (
            ("HLEN", keys.key(VECTORS)),
            *(("HLEN", keys.key(keys.tier_part(tier, "hdr"))) for tier in ("stm", "im")),
            ("HLEN", keys.key(VECTORS_PENDING)),
            ("HEXISTS", keys.key(VECTORS_META), "rev"),
            ("HLEN", keys.key(CODES)),
            # A server without vector sets has no such key, and the count is 0.
            ("VCARD", keys.key(VECTOR_SET)) if has_sets else ("EXISTS", keys.key(VECTOR_SET)),
        )
    ]
    replies = await store.pipeline(commands)
    found = []
    for keys, counts in zip(scopes, zip(*[iter(replies)] * 7, strict=True), strict=True):
        # A key of another type has its own finding.
        if not any(isinstance(count, StoreError) for count in counts) and _differ(indexing, *counts):
            found.append(keys)
    return found


def _differ(indexing: VectorIndexing, *counts: Any) -> bool:
    vectors, stm, im, notes, has_counts, coded, elements = counts
    return (
        vectors > stm + im
        or bool(vectors) != bool(has_counts)
        or ((indexing.rung == "vectorset" or elements > 0) and abs(elements - vectors) > notes)
        or ((indexing.rung == "lsh" or coded > 0) and coded != vectors and (indexing.rung == "lsh" or coded > vectors))
    )


async def _check_bucket(
    services: Services, key: ScopeKey, indexing: VectorIndexing, *, repair: bool
) -> AsyncIterator[list[RepairFinding]]:
    scope = ScopedStore(services.store, key.keys, services.settings)
    try:
        async for ids in scan_steps(services.store, ("SSCAN", key.full), "COUNT", ROWS_AT_ONCE):
            for first in range(0, len(ids), ROWS_AT_ONCE):
                rows = [(id_, b"") for id_ in ids[first : first + ROWS_AT_ONCE]]
                orphans = await check_members(scope, key.suffix, rows, indexing, repair=repair)
                yield _findings(key.keys, orphans, repair=repair)
    except ServerRefused:
        # A key of another type has its own finding.
        return


def _findings(keys: ScopeKeys, found: Sequence[VectorDamage], *, repair: bool) -> list[RepairFinding]:
    return [
        RepairFinding(
            each.code, f"{keys.root} {each.name.decode(errors='backslashreplace')}".rstrip(), "vectors", repaired=repair
        )
        for each in found
    ]
