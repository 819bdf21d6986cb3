"""Keeps what a process has read of chats, so that the next read moves only what is new."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.chat import queries
from orchestrator.chat.model import Position

if TYPE_CHECKING:
    from orchestrator.chat.scripts import SinceReply
    from orchestrator.store.scoped import ScopedStore

MAX_BYTES: Final = 16 * 1024 * 1024
_CHAT_BYTES: Final = 500
"""What a chat takes in memory beside its texts."""
_OBJECT_BYTES: Final = 41
"""What Python takes for a text in a list beside its bytes."""


class ChatCache:
    """Keeps the stored form of the chats that were read last, up to 16 MiB.

    A read asks the server each time, in one round trip, whether they are still the same: nothing is out of date.
    """

    __slots__ = ("_bytes", "_held", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._held: OrderedDict[tuple[str, str], tuple[SinceReply, int]] = OrderedDict()
        self._bytes, self._max_bytes = 0, max_bytes

    async def read(self, scope: ScopedStore, source: str, last: int) -> SinceReply:
        """Read a chat and its newest messages; see `queries.read_all`."""
        key = (scope.keys.root, source)
        held = self._held[key][0] if key in self._held else None
        if held is None or len(held.entries) < min(last, held.length):
            found = await queries.read_all(scope, source, last)
        else:
            found = await self._refresh(held, scope, source, last)
        self._put(key, found)
        return replace(found, entries=found.entries[-last:])

    @staticmethod
    async def _refresh(held: SinceReply, scope: ScopedStore, source: str, last: int) -> SinceReply:
        head = queries.parse_head(held.fields)
        window = max(last, len(held.entries))
        found = await queries.read_since(scope, source, Position(head.rev, head.seq), window)
        if found.word == "same":
            # Its end may have been extended, so that it is not extended at each read.
            return replace(held, fields=held.fields | found.fields, left_ms=found.left_ms)
        if found.word == "tail":
            # The oldest may have been dropped meanwhile.
            entries = [*held.entries, *found.entries][-min(window, found.length) :] if found.length else []
            return replace(found, word="all", entries=entries)
        return found

    def _put(self, key: tuple[str, str], found: SinceReply) -> None:
        _, before = self._held.pop(key, (None, 0))
        self._bytes -= before
        if not found.length and found.summary[0] is None and not any(map(queries.is_user_field, found.fields)):
            # One that holds nothing is read again at no cost.
            return
        size = _size_of(found)
        self._bytes += size
        self._held[key] = (found, size)
        while self._bytes > self._max_bytes:
            _, (_, dropped) = self._held.popitem(last=False)
            self._bytes -= dropped


def _size_of(found: SinceReply) -> int:
    texts = sum(map(len, found.entries)) + sum(map(len, filter(None, found.summary)))
    fields = sum(len(name) + len(value) for name, value in found.fields.items())
    return _CHAT_BYTES + texts + fields + _OBJECT_BYTES * (len(found.entries) + 2 * len(found.fields))
