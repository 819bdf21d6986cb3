"""Builds the vector set of a memory anew beside the old one, and puts it in its place.

With `memory.vector_delete` = `mark` no element leaves a set: it loses its attributes, and searches pass over it. A set
with many such elements is built anew from the stored vectors, and at once when a person is erased.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import StoreError
from orchestrator.core.reading import read_text, read_whole
from orchestrator.memory import scripts
from orchestrator.memory.vector_indexing import addition, index_vectors, read_vectors
from orchestrator.store.keys import VECTOR_SET, VECTORS, VECTORS_LOG, VECTORS_META, VECTORS_PENDING
from orchestrator.vectors.vector_set import element_of, hide_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.scoped import ScopedStore

_AT_ONCE: Final = 100
_ROUNDS: Final = 10
_HIDDEN_SHARE: Final = 0.2
_HIDDEN_LEAST: Final = 20
_BUILD_TTL_MS: Final = 3_600_000
"""Life of a set that is built: if its program dies, Redis removes it."""


def hides(scope: ScopedStore) -> bool:
    """Return whether elements are hidden, not removed."""
    return scope.settings.memory.vector_delete == "mark"


async def tend_vectors(scope: ScopedStore) -> int:
    """Make noted changes of the vector set, and build it anew if many elements are hidden; return the changes."""
    made = 0
    if await scope.read("EXISTS", scope.keys.key(VECTORS_PENDING)):
        made += await index_vectors(scope)
    if hides(scope) and (await scope.store.capabilities.get()).vector_sets:
        keys = scope.keys
        sizes = [("HLEN", keys.key(VECTORS)), ("VCARD", keys.key(VECTOR_SET))]
        stored, size = await scope.read_many(sizes, aside=True)
        if size - stored > max(_HIDDEN_LEAST, _HIDDEN_SHARE * size):
            made += await rebuild(scope)
    return made


async def rebuild(scope: ScopedStore) -> int:
    """Build the vector set anew from the stored vectors, and return their number.

    Vectors that are stored or removed meanwhile follow before and after the new set has taken its place.
    """
    keys = scope.keys
    new = _NewSet(scope, keys.key(f"{VECTOR_SET}:new:{secrets.token_hex(8)}"))
    rev, _ = await _read_changes(scope)
    await new.add_all()
    for _ in range(_ROUNDS):
        following = await new.follow(rev)
        if following == rev:
            break
        rev = following
    place = keys.key(VECTOR_SET)
    await _send(scope, [("RENAME", new.key, place) if new.numbers else ("UNLINK", new.key, place)])
    new.key = place
    await new.follow(rev)
    await scope.call(scripts.settle_vectors(keys, rows=[]))
    return len(new.numbers)


class _NewSet:
    """A set that is being built: what it has so far."""

    def __init__(self, scope: ScopedStore, key: str) -> None:
        self._scope = scope
        self.key = key
        self.numbers: dict[str, int] = {}

    async def add_all(self) -> None:
        """Add all stored vectors."""
        cursor = 0
        while True:
            vectors_key = self._scope.keys.key(VECTORS)
            following, flat = await self._scope.read("HSCAN", vectors_key, cursor, "COUNT", _AT_ONCE)
            await self.update([read_text(id_) for id_ in flat[::2]])
            cursor = read_whole(following)
            if not cursor:
                return

    async def follow(self, since: int) -> int:
        """Add and hide what has changed since a revision; return the present one."""
        rev, log = await _read_changes(self._scope)
        changes = rev - since
        if rev < 0 or not 0 <= changes <= len(log):
            await self.update(list(self.numbers))
            await self.add_all()
        elif changes:
            await self.update(list(dict.fromkeys(read_text(id_) for id_ in log[-changes:])))
        return rev

    async def update(self, ids: Sequence[str]) -> None:
        """Give these records the element of their vector now, and hide one that is no longer that."""
        for first in range(0, len(ids), _AT_ONCE):
            part = ids[first : first + _AT_ONCE]
            commands: list[Sequence[Argument]] = []
            for id_, vector in zip(part, await read_vectors(self._scope, part), strict=True):
                number = self.numbers.get(id_, 0)
                if number and (vector is None or vector.number != number):
                    commands.append(hide_command(self.key, element_of(number, id_)))
                    del self.numbers[id_]
                if vector is not None and vector.number != number:
                    commands.append(addition(self.key, vector).command)
                    self.numbers[id_] = vector.number
            if commands:
                expire = ("PEXPIRE", self.key, _BUILD_TTL_MS, "NX")
                # The first element and the life of the key come together, so that no set without one is left.
                head: list[Sequence[Argument]] = [("MULTI",), commands[0], expire, ("EXEC",)]
                await _send(self._scope, [*head, *commands[1:]])


async def _read_changes(scope: ScopedStore) -> tuple[int, list[bytes]]:
    """Return the number of changes of the stored vectors, -1 if there are none, and the newest of their ids."""
    keys = scope.keys
    # At one moment: the ids are counted from the end of the log.
    rev, stored, log = (
        await scope.read_many(
            [
                ("MULTI",),
                ("HGET", keys.key(VECTORS_META), "rev"),
                ("EXISTS", keys.key(VECTORS)),
                ("LRANGE", keys.key(VECTORS_LOG), 0, -1),
                ("EXEC",),
            ]
        )
    )[-1]
    return (read_whole(rev) if stored else -1), log


async def _send(scope: ScopedStore, commands: Sequence[Sequence[Argument]]) -> list[Any]:
    replies = await scope.store.pipeline_aside(commands)
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return replies
