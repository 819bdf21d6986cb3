"""Counts the keys of a pool and of the scopes of its prefix, and measures their memory and lifetimes. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.repair.servers import each_server, scan
from orchestrator.store.found_keys import sort_key
from orchestrator.store.key_kinds import MEMORIES, POOL_KEYS, SCOPE_KEYS, SCOPES
from orchestrator.store.keys import split_key, stem_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

    from orchestrator.services import Services
    from orchestrator.store.key_kinds import KeyKind
    from orchestrator.store.store import Store

SAMPLES_OF_KIND: Final = 200
"""Number of keys of one kind of a pool that are measured; those of scopes are all measured."""
SAMPLED_FIELDS: Final = 32
"""More than a record of a task has: one field may hold most of its bytes, and Redis looks at five by default."""
FOREIGN: Final = "(none of ours)"
POOL: Final = "pool"
LIFETIMES: Final = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
"""Upper ends of the classes of lifetimes that are left, in ms; longer ones are `longer`."""
BIGGEST: Final = 10
FAR_ABOVE: Final = 20
"""A scope of this many times the median of its kind, and of at least `NOTED_BYTES`, is far above the others."""
NOTED_BYTES: Final = 1 << 20
NEAR_CAP: Final = 0.8
SPIKE_KEYS: Final = 10_000
"""So many keys of one kind that end within the hour, and that are most of all keys, are a spike."""
_RULED: Final = ("session", *MEMORIES)


@dataclass(slots=True)
class KindReport:
    """Keys of one kind.

    Attributes:
        scope: `pool`, or the kind of scope: `session`, `agent` and so on.
        kind: suffix in the table of keys.
        measured, measured_bytes: number of measured keys, and their memory.
        biggest, biggest_bytes: the largest measured key.
        oldest: submit time of the oldest task, for keys with a task id.
        lifetimes: number of keys by the lifetime that is left: `minute`, `hour`, `day`, `week`, `longer`, `none`.
        immortal: number of keys without a lifetime that should have one.
    """

    scope: str
    kind: str
    keys: int = 0
    measured: int = 0
    measured_bytes: int = 0
    biggest: str = ""
    biggest_bytes: int = 0
    oldest: datetime | None = None
    lifetimes: dict[str, int] = field(default_factory=dict)
    immortal: int = 0
    _oldest_ms: int = field(default=0, repr=False)

    @property
    def bytes(self) -> int | None:
        """Estimated memory of all keys, or None if the server does not report it."""
        return round(self.measured_bytes * self.keys / self.measured) if self.measured else None

    def note_age(self, submitted_ms: int) -> None:
        """Keep the oldest time."""
        if not self._oldest_ms or submitted_ms < self._oldest_ms:
            self._oldest_ms, self.oldest = submitted_ms, from_instant_ms(submitted_ms)

    def note_lifetime(self, left_ms: int, *, permanent: bool) -> None:
        """Count a lifetime; -1: none."""
        word = "none" if left_ms < 0 else next((word for word, end in LIFETIMES.items() if left_ms <= end), "longer")
        self.lifetimes[word] = self.lifetimes.get(word, 0) + 1
        self.immortal += left_ms == -1 and not permanent

    def note_size(self, full: str, size: int) -> None:
        """Add the memory of a key."""
        self.measured += 1
        self.measured_bytes += size
        if size > self.biggest_bytes:
            self.biggest, self.biggest_bytes = full, size


@dataclass(slots=True)
class ScopeReport:
    """One session, agent or other scope.

    Attributes:
        scope: as `session:S`, with the id encoded.
        alarm: why it is noted; empty: it is only among the biggest.
    """

    scope: str
    keys: int = 0
    bytes: int = 0
    alarm: str = ""


class KeyReport:
    """Scans the keys of a pool and of the scopes of its prefix once; `kinds` and `scopes` have the counts so far."""

    def __init__(self, services: Services) -> None:
        self._services, self._settings = services, services.settings
        self._prefix, self._pool = services.keys.prefix, services.keys.pool
        self._kinds: dict[tuple[str, str], KindReport] = {}
        self._scopes: dict[str, ScopeReport] = {}
        self._told = True

    @property
    def kinds(self) -> list[KindReport]:
        """Kinds that have keys, in the order of the table of keys."""
        order = [kind.suffix for kind in (*POOL_KEYS, *SCOPE_KEYS)]
        scopes = [POOL, *SCOPES, FOREIGN]
        return sorted(
            self._kinds.values(),
            key=lambda row: (scopes.index(row.scope), order.index(row.kind) if row.kind in order else len(order)),
        )

    def scopes(self) -> list[ScopeReport]:
        """Scopes that need a look, and the biggest sessions and memories; the biggest first."""
        found: dict[str, ScopeReport] = {}
        for kind in SCOPES:
            rows = [row for row in self._scopes.values() if row.scope.startswith(f"{kind}:")]
            usual = median(row.bytes for row in rows) if rows else 0
            cap = self._cap(kind)
            biggest = sorted(rows, key=lambda row: -row.bytes)[:BIGGEST]
            for row in rows:
                if cap and row.bytes >= NEAR_CAP * cap:
                    row.alarm = f"near its cap: {row.bytes} of {cap} bytes"
                elif row.bytes >= NOTED_BYTES and len(rows) > 1 and row.bytes > FAR_ABOVE * usual:
                    row.alarm = f"{row.bytes / max(usual, 1):.0f} times the median of {len(rows)} {kind}s"
            found |= {row.scope: row for row in rows if row.alarm}
            if kind in _RULED:
                found |= {row.scope: row for row in biggest}
        return sorted(found.values(), key=lambda row: (not row.alarm, -row.bytes))

    def alarms(self) -> list[str]:
        """Sentences about the prefix as a whole."""
        total = sum(row.keys for row in self._kinds.values())
        said = []
        for row in self.kinds:
            if row.immortal:
                said.append(
                    f"{row.immortal} keys {row.kind!r} of kind {row.scope} have no lifetime and should have one"
                )
            short = row.lifetimes.get("minute", 0) + row.lifetimes.get("hour", 0)
            if short >= SPIKE_KEYS and short > total / 2:
                said.append(f"{short} of {total} keys are {row.kind!r} of kind {row.scope} and end within the hour")
        return said

    def _cap(self, kind: str) -> int:
        settings = self._settings
        if kind == "session":
            # The data of a workspace and its events may each take as much; a session may have several chats.
            return 2 * settings.workspace.max_bytes + settings.chat.max_bytes
        return settings.memory.max_bytes if kind in MEMORIES else 0

    async def steps(self) -> AsyncGenerator[int, None]:
        """Continue the scan and yield the number of keys so far."""
        seen = set[bytes]()
        async with each_server(self._services) as stores:
            for store in stores:
                async for names in scan(store, stem_of(self._prefix)):
                    new = [name for name in dict.fromkeys(names) if name not in seen]
                    seen.update(new)
                    await self._count(store, new)
                    yield len(seen)

    def _sort(self, name: bytes) -> tuple[KindReport, KeyKind | None, str, str] | None:
        """Return the row of a key, its kind, its scope, and the name in it; None for a key of another pool."""
        found = sort_key(name, prefix=self._prefix, pool=self._pool)
        if found is None:
            tag = split_key(name.decode("utf-8", "surrogateescape"), prefix=self._prefix)
            if tag and tag[0].partition(":")[0] in {"pool", "locks"}:
                return None
            return self._row(FOREIGN, FOREIGN), None, "", ""
        place = found.scope.partition(":")[0] or POOL
        if found.kind is None:
            return self._row(place, FOREIGN), None, "", ""
        return self._row(place, found.kind.suffix), found.kind, found.scope, found.name

    def _row(self, scope: str, kind: str) -> KindReport:
        return self._kinds.setdefault((scope, kind), KindReport(scope, kind))

    async def _count(self, store: Store, names: Sequence[bytes]) -> None:
        rows = [(name, found) for name in names if (found := self._sort(name)) is not None]
        sampled = []
        for name, (row, kind, scope, inner) in rows:
            row.keys += 1
            if scope:
                self._scopes.setdefault(scope, ScopeReport(scope)).keys += 1
            elif kind and kind.suffix in {"task:ID", "out:ID"} and (submitted_ms := _submitted_ms(inner)):
                row.note_age(submitted_ms)
            if scope or row.keys <= SAMPLES_OF_KIND:
                sampled.append((name, row, scope))
        lifetimes = await store.pipeline([("PTTL", name) for name, _ in rows])
        for (_, (row, kind, _, _)), left_ms in zip(rows, lifetimes, strict=True):
            if isinstance(left_ms, int) and left_ms != -2:
                row.note_lifetime(left_ms, permanent=kind is None or kind.permanent)
        if self._told:
            await self._measure(store, sampled)

    async def _measure(self, store: Store, sampled: Sequence[tuple[bytes, KindReport, str]]) -> None:
        sizes = await store.pipeline([memory_usage(name) for name, _, _ in sampled])
        for (name, row, scope), size in zip(sampled, sizes, strict=True):
            if isinstance(size, StoreError):
                # The user may lack the right, or the server the command.
                self._told = self._told and not isinstance(size, ServerRefused)
            elif size:
                row.note_size(name.decode("utf-8", "backslashreplace"), size)
                if scope:
                    self._scopes[scope].bytes += size


def memory_usage(name: str | bytes) -> tuple[str | bytes | int, ...]:
    """Return the command that estimates the memory of a key from `SAMPLED_FIELDS` of its fields."""
    return ("MEMORY", "USAGE", name, "SAMPLES", SAMPLED_FIELDS)


def _submitted_ms(id_: str) -> int | None:
    """Return the time in a task id, or None."""
    digits = id_.replace("-", "")
    try:
        return int(digits[:12], 16) if len(digits) == 32 else None
    except ValueError:
        return None
