"""Checks the memories of agents: each record with its entries in the indices, and each entry with its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.memory.listings import follow, unlisted_states
from orchestrator.repair import scripts
from orchestrator.repair.scope_check import ScopeCheck, run_checks
from orchestrator.store.keys import ScopeKeys
from orchestrator.store.scanning import scan_steps
from orchestrator.store.scoped import ScopedStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Container, Sequence

    from orchestrator.repair.findings import RepairFinding
    from orchestrator.repair.scope_key import ScopeKey
    from orchestrator.services import Services
    from orchestrator.store.store import Store

ROWS_AT_ONCE: Final = 100
TIERS: Final = ("stm", "im")
_INDICES: Final = frozenset(
    f"{tier}:{part}" for tier in TIERS for part in ("time", "imp", "exp", "kind:K", "act:X", "subj:U", "cell:C")
)
_HEADERS: Final = frozenset(f"{tier}:hdr" for tier in TIERS)
_RECORDS: Final = frozenset(f"{tier}:rec" for tier in TIERS)


async def check_memories(
    services: Services,
    store: Store,
    known: Sequence[ScopeKey],
    *,
    repair: bool,
    deep: bool,
    torn: set[ScopeKeys],
) -> AsyncIterator[list[RepairFinding]]:
    """Check the headers; contents only where their number differs, and indices if `deep` or where a number differs.

    If `deep`, the records of simulations are looked up in their indices, too.

    Args:
        services: of the pool.
        store: where the keys are.
        known: keys of scopes.
        repair: whether to repair what is found.
        deep: whether to check all indices.
        torn: gets the memories whose numbers differ, which have lost a key; all their indices are checked.
    """
    ours = [key for key in known if key.kind.suffix in _HEADERS | _RECORDS | _INDICES]
    tiers = list(dict.fromkeys((key.keys, key.suffix.partition(":")[0]) for key in ours if key.keys not in torn))
    # A change between two of these commands makes them differ, too.
    for _ in range(2):
        tiers = await _differing(store, tiers)
    torn |= {keys for keys, _ in tiers}
    walked = await _walked(store, ours, torn, deep=deep)
    relisted: set[ScopeKeys] = set()
    async for check, found in _check_members(services, store, walked, repair=repair, deep=deep):
        relisted |= {check.keys for finding in found if finding.code == "unlisted-state" and finding.repaired}
        yield found
    for keys in relisted:
        while await follow(ScopedStore(services.store, keys, services.settings)):
            yield []


async def _check_members(
    services: Services, store: Store, walked: Sequence[ScopeKey], *, repair: bool, deep: bool
) -> AsyncIterator[tuple[ScopeCheck, list[RepairFinding]]]:
    """Check each member of some keys."""
    # Most memories fit into one step, so that many are read in one round trip.
    firsts = await store.pipeline([(_command(key), key.full, 0, "COUNT", ROWS_AT_ONCE) for key in walked])
    checks: list[ScopeCheck] = []
    large: list[ScopeKey] = []
    for key, first in zip(walked, firsts, strict=True):
        if isinstance(first, StoreError):
            if not isinstance(first, ServerRefused):
                raise first
        elif first[0] == b"0":
            checks += await _checks(services, key, first[1], repair=repair, deep=deep)
        else:
            large.append(key)
    async for each in run_checks(store, checks):
        yield each
    for key in large:
        async for listed in scan_steps(store, (_command(key), key.full), "COUNT", ROWS_AT_ONCE):
            more = await _checks(services, key, listed, repair=repair, deep=deep)
            async for each in run_checks(store, more):
                yield each


async def _walked(store: Store, ours: Sequence[ScopeKey], torn: Container[ScopeKeys], *, deep: bool) -> list[ScopeKey]:
    """Return the keys of which each member is checked."""
    records = [key for key in ours if key.kind.suffix in _RECORDS]
    sizes = await store.pipeline(
        [command for key in records for command in (("HLEN", _headers_of(key)), ("HLEN", _records_of(key)))]
    )
    left_out = {
        key.full for key, headers, contents in zip(records, sizes[::2], sizes[1::2], strict=True) if headers == contents
    }
    if not deep:
        left_out |= {key.full for key in ours if key.kind.suffix in _INDICES and key.keys not in torn}
    return [key for key in ours if key.full not in left_out]


async def _differing(store: Store, tiers: Sequence[tuple[ScopeKeys, str]]) -> list[tuple[ScopeKeys, str]]:
    """Return the tiers of which a hash or an index has another number of records than the headers."""
    commands: list[tuple[str, str]] = []
    for keys, tier in tiers:
        hashes, indices = (
            [("HLEN", part) for part in ("hdr", "rec")],
            [("ZCARD", part) for part in ("exp", "time", "imp")],
        )
        commands += [(command, keys.key(keys.tier_part(tier, part))) for command, part in hashes + indices]
    counts = iter(await store.pipeline(commands))
    found = []
    for each, (headers, contents, listed, recalled, rated) in zip(tiers, zip(*[counts] * 5, strict=True), strict=True):
        # Superseded records are in no index of recalls. A key of another type has its own finding.
        whole = headers == contents == listed and recalled == rated and not isinstance(headers, StoreError)
        if not whole or recalled > headers:
            found.append(each)
    return found


def _command(key: ScopeKey) -> str:
    return "ZSCAN" if key.kind.suffix in _INDICES else "HSCAN"


def _headers_of(key: ScopeKey) -> str:
    return key.keys.key(ScopeKeys.tier_part(key.suffix.partition(":")[0], "hdr"))


def _records_of(key: ScopeKey) -> str:
    return key.keys.key(ScopeKeys.tier_part(key.suffix.partition(":")[0], "rec"))


async def _checks(
    services: Services, key: ScopeKey, flat: Sequence[bytes], *, repair: bool, deep: bool
) -> list[ScopeCheck]:
    """Return the checks of some members of a key, from a reply of HSCAN or ZSCAN."""
    tier, _, part = key.suffix.partition(":")
    ids = flat[::2]
    unlisted: list[bytes] = []
    if deep and part == "hdr":
        headers = list(zip(ids, flat[1::2], strict=True))
        # Programs may be about to list some, which takes them a round trip.
        for _ in range(2):
            unlisted = await unlisted_states(services.store, key.keys, headers)
            headers = [(id_, packed) for id_, packed in headers if id_ in set(unlisted)]
    checks = []
    for first in range(0, len(ids), ROWS_AT_ONCE):
        rows = ids[first : first + ROWS_AT_ONCE]
        call = scripts.check_records(
            key.keys, tier=tier, part=part, rows=rows, repair=repair, unlisted=frozenset(unlisted)
        )
        names = [f"{key.keys.root} {row.decode(errors='backslashreplace')}" for row in rows]
        checks.append(ScopeCheck(key.keys, call, names))
    return checks
