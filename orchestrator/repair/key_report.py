"""Counts the keys of a pool by kind and estimates their memory from samples. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.store.keys import POOL_KEYS, kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import datetime

    from orchestrator.store.store import Store

KEYS_AT_ONCE: Final = 500
SAMPLES_OF_KIND: Final = 200
"""Number of keys of one kind that are measured."""
FOREIGN: Final = "(none of ours)"


@dataclass(slots=True)
class KindReport:
    """Keys of one kind.

    Attributes:
        kind: suffix in the table of keys.
        measured, measured_bytes: number of measured keys, and their memory.
        biggest, biggest_bytes: the largest measured key.
        oldest: submit time of the oldest task, for keys with a task id.
    """

    kind: str
    keys: int = 0
    measured: int = 0
    measured_bytes: int = 0
    biggest: str = ""
    biggest_bytes: int = 0
    oldest: datetime | None = None
    _oldest_ms: int = field(default=0, repr=False)

    @property
    def bytes(self) -> int | None:
        """Estimated memory of all keys, or None if the server does not report it."""
        return round(self.measured_bytes * self.keys / self.measured) if self.measured else None

    def note_age(self, submitted_ms: int) -> None:
        """Keep the oldest time."""
        if not self._oldest_ms or submitted_ms < self._oldest_ms:
            self._oldest_ms, self.oldest = submitted_ms, from_instant_ms(submitted_ms)


class KeyReport:
    """Scans the keys of a pool once; `kinds` has the counts so far, in the order of the table of keys."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._root = store.keys.stem.encode()
        self._kinds = {suffix: KindReport(suffix) for suffix in (*(kind.suffix for kind in POOL_KEYS), FOREIGN)}
        self._told = True

    @property
    def kinds(self) -> list[KindReport]:
        """Kinds that have keys."""
        return [kind for kind in self._kinds.values() if kind.keys]

    async def steps(self) -> AsyncGenerator[int, None]:
        """Continue the scan and yield the number of keys so far."""
        cursor, seen = b"0", set[bytes]()
        while True:
            cursor, names = await self._store.execute("SCAN", cursor, "MATCH", self._root + b"*", "COUNT", KEYS_AT_ONCE)
            new = [name for name in dict.fromkeys(names) if name.startswith(self._root) and name not in seen]
            seen.update(new)
            await self._count(new)
            yield len(seen)
            if cursor == b"0":
                return

    async def _count(self, names: list[bytes]) -> None:
        samples: list[tuple[KindReport, bytes]] = []
        for name in names:
            found = kind_of(name.removeprefix(self._root).decode("utf-8", "surrogateescape"))
            kind = self._kinds[found[0].suffix if found else FOREIGN]
            kind.keys += 1
            if found and kind.kind in {"task:ID", "out:ID"} and (submitted_ms := _submitted_ms(found[1])):
                kind.note_age(submitted_ms)
            if kind.measured + sum(other is kind for other, _ in samples) < SAMPLES_OF_KIND:
                samples.append((kind, name))
        if not self._told:
            return
        sizes = await self._store.pipeline([("MEMORY", "USAGE", name) for _, name in samples])
        for (kind, name), size in zip(samples, sizes, strict=True):
            if isinstance(size, StoreError):
                # The user may lack the right, or the server the command.
                self._told = not isinstance(size, ServerRefused)
            elif size:
                kind.measured += 1
                kind.measured_bytes += size
                if size > kind.biggest_bytes:
                    kind.biggest, kind.biggest_bytes = name.decode("utf-8", "backslashreplace"), size


def _submitted_ms(id_: str) -> int | None:
    """Return the time in a task id, or None."""
    digits = id_.replace("-", "")
    try:
        return int(digits[:12], 16) if len(digits) == 32 else None
    except ValueError:
        return None
