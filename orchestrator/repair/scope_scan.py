"""Scans the scopes of a prefix in small steps: sessions, agents, locks, limits, boards, simulations and counts.

A scan reads names with SCAN, and types and lifetimes with plain commands. What belongs together is compared in one
script per scope, so that a change under way is no damage. All pools of a prefix share its scopes; the locks of another
pool are left to it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput, ServerRefused, StoreError
from orchestrator.core.ids import decode_foreign
from orchestrator.core.reading import read_text
from orchestrator.repair import scripts
from orchestrator.repair.chats import check_chats
from orchestrator.repair.findings import RepairFinding
from orchestrator.repair.memories import check_memories
from orchestrator.repair.scope_check import ScopeCheck, run_checks
from orchestrator.repair.scope_key import ScopeKey
from orchestrator.repair.servers import each_server, scan
from orchestrator.repair.upkeep import UPKEEP
from orchestrator.repair.vectors import check_vectors
from orchestrator.store.found_keys import sort_key
from orchestrator.store.keys import CHANGES, DOCUMENT, MACHINES, META, PARTS, ScopeKeys, split_key, stem_of, tagged_root

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Container, Iterable, Iterator, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from orchestrator.store.key_kinds import KeyKind
    from orchestrator.store.store import Store

ROWS_AT_ONCE: Final = 100
_DAY_S: Final = 86_400
_LOCKS: Final = frozenset({"lock:N", "exec", "exec:ID"})
_PARTS: Final = frozenset({"ws:log:L", "ws:set:S", "agent:A:kv", "inbox:A"})
_OF_WORKSPACE: Final = frozenset({META, DOCUMENT, MACHINES, CHANGES, PARTS, *_PARTS})


def lifetime_s(kind: KeyKind, settings: Settings) -> int:
    """Return the lifetime that a repair gives to a key of a scope without one; its next write sets its own."""
    of_settings = {
        "chat": settings.chat.ttl_s,
        "stm": settings.memory.stm_ttl_s,
        "im": settings.memory.im_ttl_s,
        "ltm": settings.memory.outbox_ttl_s,
        **dict.fromkeys(["emb", "vec", "lsh", "lshrev"], max(settings.memory.stm_ttl_s, settings.memory.im_ttl_s)),
        "ws": settings.workspace.ttl_s,
        "fence": 30 * _DAY_S,
        "state": 7 * _DAY_S,
    }
    return round(of_settings.get(kind.suffix.partition(":")[0], _DAY_S))


class ScopeScan:
    """Scans the scopes of a prefix once.

    Args:
        services: of the pool.
        repair: whether to repair what is found.
        only: one scope, as `session:S` with its id encoded; empty: all.
        upkeep: whether to take the steps of `UPKEEP`, too.
        deep: whether to compare each entry of all memories with its record; else only those of memories that have lost
            a key, as the numbers of their entries tell.

    Attributes:
        keys_seen: number of keys so far; SCAN may return a key twice.
        kept: number of changes of each step of `UPKEEP`.
    """

    def __init__(
        self, services: Services, *, repair: bool, only: str = "", upkeep: bool = False, deep: bool = True
    ) -> None:
        self._services, self._settings = services, services.settings
        self._prefix, self._pool = services.keys.prefix, services.keys.pool
        self._repair = repair
        self._stem = f"{tagged_root(self._prefix, only)}:" if only else stem_of(self._prefix)
        self._later: dict[ScopeKeys, None] = {}
        self._torn: set[ScopeKeys] = set()
        self._counted: dict[ScopeKeys, bool] = {}
        self._deep, self._steps = deep, UPKEEP if upkeep else ()
        self.keys_seen = 0
        self.kept: Counter[str] = Counter()

    async def steps(self) -> AsyncGenerator[list[RepairFinding], None]:
        """Yield the findings of each step; a step takes a few short commands.

        Raises:
            ServerUnavailable: Redis does not answer, or restarts again and again; start a new scan.
        """
        async with each_server(self._services) as stores:
            for store in stores:
                async for names in scan(store, self._stem):
                    yield []
                    async for found in self._check(store, names):
                        yield found
                # The parts of a workspace are known when all its keys were seen.
                damaged = [self._workspace(keys, repair=self._repair) for keys in self._later]
                self._later.clear()
                async for _, found in run_checks(store, damaged):
                    yield found
                if self._torn and not self._deep:
                    # Their indices may have been passed before a difference was seen.
                    async for names in scan(store, self._stem):
                        yield []
                        known = [key for key in map(self._sort, names) if isinstance(key, ScopeKey)]
                        again = [key for key in known if key.keys in self._torn]
                        async for found in check_memories(
                            self._services, store, again, repair=self._repair, deep=True, torn=self._torn
                        ):
                            yield found
                self._torn.clear()

    async def _check(self, store: Store, names: Sequence[bytes]) -> AsyncIterator[list[RepairFinding]]:
        ours = [key for key in map(self._sort, names) if key is not None]
        self.keys_seen += len(ours)
        known = [key for key in ours if isinstance(key, ScopeKey)]
        yield [RepairFinding("foreign", _text(key), "", repaired=False) for key in ours if isinstance(key, bytes)]
        yield await self._check_types(store, known)
        async for _, found in run_checks(store, [*self._lock_checks(known), *self._part_checks(known)]):
            yield found
        await self._look_at_workspaces(store, known)
        async for found in check_chats(store, known, repair=self._repair):
            yield found
        async for found in check_memories(
            self._services, store, known, repair=self._repair, deep=self._deep, torn=self._torn
        ):
            yield found
        async for found in check_vectors(
            self._services, store, known, repair=self._repair, deep=self._deep, counted=self._counted
        ):
            yield found
        for step in self._steps:
            for keys in dict.fromkeys(key.keys for key in known if key.kind.suffix == step.kind):
                try:
                    if changed := await step.run(self._services, keys):
                        self.kept[step.name] += changed
                    yield []
                except ServerRefused as refusal:
                    yield [RepairFinding("unreadable", keys.root, str(refusal), repaired=False)]

    def _sort(self, name: bytes) -> ScopeKey | bytes | None:
        """Return a key of a scope, the name of a foreign key, or None for a key of a pool or of other locks."""
        found = sort_key(name, prefix=self._prefix, pool=self._pool)
        if found is None:
            tag = split_key(_text(name), prefix=self._prefix)
            kind = tag[0].partition(":")[0] if tag else ""
            return None if kind in {"pool", "locks"} else name
        if not found.scope:
            return None
        kind_of_scope, _, id_ = found.scope.partition(":")
        if found.kind is None:
            return name
        try:
            keys = ScopeKeys(self._prefix, kind_of_scope, decode_foreign(id_))
            return ScopeKey(name, keys, found.suffix, found.name, found.kind)
        except InvalidInput:
            return name

    # Keys as such ----------------------------------------------------------------------------------------------------

    async def _check_types(self, store: Store, known: Sequence[ScopeKey]) -> list[RepairFinding]:
        replies = await store.pipeline(
            [command for key in known for command in (("TYPE", key.full), ("PTTL", key.full))]
        )
        found: list[RepairFinding] = []
        immortal: list[ScopeKey] = []
        for key, type_, left_ms in zip(known, replies[::2], replies[1::2], strict=True):
            if isinstance(type_, StoreError) or isinstance(left_ms, StoreError):
                raise type_ if isinstance(type_, StoreError) else left_ms
            if read_text(type_) not in {"none", key.type}:
                found.append(RepairFinding("wrong-type", _text(key.full), f"not a {key.type}", repaired=False))
            elif left_ms == -1:
                immortal.append(key)
        if immortal and self._repair:
            # A lifetime that a change has set meanwhile stays.
            await store.pipeline([("EXPIRE", key.full, lifetime_s(key.kind, self._settings), "NX") for key in immortal])
        found += [RepairFinding("no-lifetime", _text(key.full), "", repaired=self._repair) for key in immortal]
        return found

    # Locks and workspaces --------------------------------------------------------------------------------------------

    def _lock_checks(self, known: Sequence[ScopeKey]) -> Iterator[ScopeCheck]:
        for keys, some in _by_scope(known, _LOCKS):
            rows = [key.suffix.encode() for key in some]
            yield ScopeCheck(keys, scripts.check_locks(keys, rows=rows, repair=self._repair), _names(some))

    def _part_checks(self, known: Sequence[ScopeKey]) -> Iterator[ScopeCheck]:
        for keys, some in _by_scope(known, _PARTS):
            if keys.kind == "session":
                rows = [(key.suffix.encode(), key.type) for key in some]
                yield ScopeCheck(keys, scripts.check_parts(keys, rows=rows, repair=self._repair), _names(some))

    async def _look_at_workspaces(self, store: Store, known: Sequence[ScopeKey]) -> None:
        """Note the workspaces without counts, or with wrong ones; they are judged when all their parts were seen."""
        seen = {keys: some for keys, some in _by_scope(known, _OF_WORKSPACE) if keys.kind == "session"}
        counted = {keys for keys, some in seen.items() if any(key.suffix == META for key in some)}
        others = [keys for keys in seen if keys not in counted]
        there = await store.pipeline([("EXISTS", keys.key(META)) for keys in others])
        self._later |= {keys: None for keys, exists in zip(others, there, strict=True) if exists == 0}
        async for check, found in run_checks(store, [self._workspace(keys, repair=False) for keys in counted]):
            if found:
                self._later[check.keys] = None

    def _workspace(self, keys: ScopeKeys, *, repair: bool) -> ScopeCheck:
        ttl_ms = round(self._settings.workspace.ttl_s * 1000)
        return ScopeCheck(keys, scripts.check_workspace(keys, ttl_ms=ttl_ms, repair=repair))


def _by_scope(known: Iterable[ScopeKey], kinds: Container[str]) -> Iterator[tuple[ScopeKeys, list[ScopeKey]]]:
    """Group the keys of some kinds by scope, at most `ROWS_AT_ONCE` at once."""
    groups: dict[ScopeKeys, list[ScopeKey]] = {}
    for key in known:
        if key.kind.suffix in kinds:
            groups.setdefault(key.keys, []).append(key)
    for keys, some in groups.items():
        for first in range(0, len(some), ROWS_AT_ONCE):
            yield keys, some[first : first + ROWS_AT_ONCE]


def _names(keys: Iterable[ScopeKey]) -> list[str]:
    return [_text(key.full) for key in keys]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
