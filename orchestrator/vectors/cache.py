"""Keeps the vectors of memories in a process, so that a search asks the server only whether they are the same.

`emb:meta` counts the changes of the vectors of a memory, and `emb:log` has the ids of the newest ones. A process reads
the vectors of these ids again. It reads all vectors if the log does not reach back to the change that it knows, as
after a loss of the key or a failover.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet, ref

import anyio
from anyio import to_thread

from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_whole
from orchestrator.store.keys import VECTORS, VECTORS_LOG, VECTORS_META
from orchestrator.vectors.encoding import dims_of, split_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.table import VectorTable

IDLE_S: Final = 300.0
"""Seconds after its last use for which a process keeps the vectors of a memory."""
_PAGE: Final = 500
"""Vectors in one reply: above about 1000 of 384 dimensions Redis writes it in parts, and each costs four times more."""
_IN_LOOP: Final = 2_000_000
"""Floats that are compared in the event loop, in up to a millisecond; a thread compares more."""
_TRIES: Final = 4


class Revision(NamedTuple):
    """State of the vectors of a memory at a time: number of changes, id of the last one, number of vectors."""

    changes: int
    last: bytes | None
    size: int


class RankedVectors(NamedTuple):
    """The nearest vectors of a memory at a revision, as ids and numbers."""

    found: list[tuple[bytes, int]]
    revision: Revision


class _Held:
    """The vectors of one memory."""

    __slots__ = ("bytes", "lock", "revision", "table", "used_s")

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.table: VectorTable | None = None
        self.revision = Revision(0, None, 0)
        self.bytes, self.used_s = 0, time.monotonic()


class _State(NamedTuple):
    """State of the vectors of a memory."""

    revision: Revision
    dims: int
    log: list[bytes]
    values: list[bytes | None]


class VectorCache:
    """Keeps the vectors of the memories that were searched last, up to `memory.vector_cache_bytes`.

    Each search asks the server whether they are still the same, so that nothing is out of date. Vectors of a memory
    that was not searched for five minutes are dropped. Needs numpy.
    """

    __slots__ = ("__weakref__", "_held", "_timer", "bytes")

    def __init__(self) -> None:
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self.bytes = 0
        _CACHES.add(self)

    def __len__(self) -> int:
        return len(self._held)

    async def nearest(
        self, scope: ScopedStore, vector: bytes, count: int, *, renew: bool, most: int | None = None
    ) -> RankedVectors | None:
        """Return the nearest vectors; None if the memory has more vectors than fit or than `most`.

        Args:
            scope: of the memory.
            vector: 32-bit floats, little-endian.
            count: number of vectors.
            renew: first ask the server what has changed. Without it, the caller compares the revision with that of the
                server, and asks again if it is another.
            most: number of vectors from which on nothing is kept.

        Raises:
            InvalidInput: a vector of another space.
        """
        root = scope.keys.root
        held = self._held.get(root)
        if held is None:
            held, renew = _Held(), True
            self._held[root] = held
        self._held.move_to_end(root)
        held.used_s = time.monotonic()
        self._watch_idle()
        async with held.lock:
            # Vectors of other dimensions may be those of an earlier embedder.
            known = held.table is not None and held.table.dims == dims_of(vector)
            if (renew or not known) and not await self._renew(held, scope, most):
                self._drop(root, held)
                return None
            self._account(root, held, scope.settings.memory.vector_cache_bytes)
            table, revision = held.table, held.revision
            if table is None:
                self._drop(root, held)
                return RankedVectors([], revision)
            if table.dims != dims_of(vector):
                raise InvalidInput(
                    f"the vector has {dims_of(vector)} dimensions, and those of this memory have {table.dims}"
                )
            if len(table) * table.dims <= _IN_LOOP:
                return RankedVectors(table.nearest(vector, count), revision)
            return RankedVectors(await to_thread.run_sync(table.nearest, vector, count), revision)

    async def _renew(self, held: _Held, scope: ScopedStore, most: int | None) -> bool:
        """Apply what has changed; False if the vectors do not fit, or change too fast to be read."""
        from orchestrator.vectors.table import ROW_BYTES

        state = await _read_state(scope, ())
        for _ in range(_TRIES):
            at = state.revision
            row_bytes = 4 * state.dims + ROW_BYTES
            if (most is not None and at.size > most) or at.size * row_bytes > scope.settings.memory.vector_cache_bytes:
                return False
            if not at.size:
                held.table, held.revision = None, at
                return True
            changed = None if held.table is None else _changes_since(held.revision, state)
            if changed == [] and held.table is not None and len(held.table) == at.size:
                held.revision = at
                return True
            if not changed:
                held.table = await self._load(scope, at.size)
                state = await _read_state(scope, ())
            else:
                ids = list(dict.fromkeys(changed))
                # Values may be newer than the revision; the ids of later changes are read again.
                state = await _read_state(scope, ids)
                if held.table is None or not _apply(held.table, ids, state.values):
                    held.table = None
            held.revision = at
        # Others go on to change them; all changes before the call are applied.
        return held.table is not None

    async def _load(self, scope: ScopedStore, size: int) -> VectorTable | None:
        """Read all vectors; None if some are of another space."""
        from orchestrator.vectors.table import VectorTable

        _Loads.count += 1
        table: VectorTable | None = None
        cursor = 0
        while True:
            following, flat = await scope.read("HSCAN", scope.keys.key(VECTORS), cursor, "COUNT", _PAGE)
            if flat and table is None:
                table = VectorTable(dims_of(split_stored(flat[1]).floats))
                table.reserve(size)
            if table is not None and not table.put(flat[::2], flat[1::2]):
                return None
            cursor = read_whole(following)
            if not cursor:
                return table

    def _account(self, root: str, held: _Held, most: int) -> None:
        """Count what a memory takes, and drop those that were not used for the longest time."""
        size = held.table.nbytes if held.table is not None else 0
        self.bytes += size - held.bytes
        held.bytes = size
        if self._held.get(root) is not held:
            # Another one was put in its place, or it was dropped while it was read.
            self.bytes -= held.bytes
            held.bytes = 0
            return
        for other in list(self._held):
            if self.bytes <= most or other == root:
                break
            self._drop(other, self._held[other])

    def _drop(self, root: str, held: _Held) -> None:
        if self._held.get(root) is held:
            del self._held[root]
        self.bytes -= held.bytes
        held.bytes, held.table = 0, None

    def _watch_idle(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S / 5, _tick, ref(self))

    def drop_idle(self) -> None:
        """Drop the vectors of the memories that were not searched for five minutes."""
        self._timer = None
        due_s = time.monotonic() - IDLE_S
        for root, held in list(self._held.items()):
            if held.used_s <= due_s:
                self._drop(root, held)
        if self._held:
            self._watch_idle()


_CACHES: Final[WeakSet[VectorCache]] = WeakSet()


class _Loads:
    """Counts how often this process has read all vectors of a memory."""

    count = 0


def revision_commands(scope: ScopedStore) -> list[Sequence[Argument]]:
    """Return the commands whose replies `parse_revision` takes."""
    keys = scope.keys
    return [
        ("HMGET", keys.key(VECTORS_META), "rev", "space"),
        ("HLEN", keys.key(VECTORS)),
        ("LINDEX", keys.key(VECTORS_LOG), -1),
    ]


def parse_revision(replies: Sequence[Any]) -> Revision:
    """Convert the replies of `revision_commands`."""
    (changes, _), size, last = replies
    return Revision(read_whole(changes), last, size)


async def _read_state(scope: ScopedStore, ids: Sequence[bytes]) -> _State:
    """Read the revision, the log, and the values of some ids at one moment."""
    keys = scope.keys
    commands: list[Sequence[Argument]] = [("MULTI",), *revision_commands(scope)]
    commands.append(("LRANGE", keys.key(VECTORS_LOG), 0, -1))
    pages = [ids[first : first + _PAGE] for first in range(0, len(ids), _PAGE)]
    commands += [("HMGET", keys.key(VECTORS), *page) for page in pages]
    meta, size, last, log, *values = (await scope.read_many([*commands, ("EXEC",)]))[-1]
    dims = read_whole((meta[1] or b"0").partition(b":")[0])
    return _State(parse_revision((meta, size, last)), dims, log, [value for page in values for value in page])


def _changes_since(known: Revision, state: _State) -> list[bytes] | None:
    """Return the ids that changed since a revision, None if the log does not say."""
    count = state.revision.changes - known.changes
    if count < 0:
        return None
    # The entry before them must be the known one: after a failover, other changes may have the same count.
    before = [] if known.last is None else [known.last]
    log = state.log if known.last is None else state.log[-count - 1 :]
    return log[len(before) :] if len(log) == len(before) + count and log[: len(before)] == before else None


def _apply(table: VectorTable, ids: Sequence[bytes], values: Sequence[bytes | None]) -> bool:
    """Put the values of ids, and drop ids without one; False if one is of another space."""
    table.drop(id_ for id_, value in zip(ids, values, strict=True) if value is None)
    there = [(id_, value) for id_, value in zip(ids, values, strict=True) if value is not None]
    return not there or table.put([id_ for id_, _ in there], [value for _, value in there])


def _tick(cache: ref[VectorCache]) -> None:
    held = cache()
    if held is not None:
        held.drop_idle()


def count_cached_bytes() -> int:
    """Return the bytes of the vectors that this process keeps."""
    return sum(cache.bytes for cache in _CACHES)


def count_cache_loads() -> int:
    """Return how often this process has read all vectors of a memory."""
    return _Loads.count
