"""Reads large keys page by page, and many fields in commands of a bounded length."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orchestrator.core.errors import StoreError
from orchestrator.core.reading import read_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.store import Store

PAGE: Final = 500
MOST_WORDS: Final = 3_999
"""Name and arguments of a command; a managed server may refuse longer ones."""
WORDS_AT_ONCE: Final = 3_000
T = TypeVar("T")


def parts(items: Sequence[T]) -> list[Sequence[T]]:
    """Split items for several commands; no items give one empty part."""
    return [items[first : first + WORDS_AT_ONCE] for first in range(0, len(items) or 1, WORDS_AT_ONCE)]


def split_command(command: Sequence[Argument], words: Sequence[Argument]) -> list[tuple[Argument, ...]]:
    """Return a command with these words behind it as several commands, whose replies are lists to be joined."""
    return [(*command, *part) for part in parts(words)]


async def zset_pages(store: Store, key: str, *, newest_first: bool = False) -> AsyncIterator[list[str]]:
    """Yield a sorted set in pages by score, so that concurrent changes move no page."""
    edge, at_edge = ("+inf" if newest_first else "-inf"), set[bytes]()
    end = "-inf" if newest_first else "+inf"
    while True:
        # Members with the score at the edge were in the page before, as far as they fitted.
        count = PAGE + len(at_edge)
        order = ("REV",) if newest_first else ()
        flat = await store.execute("ZRANGE", key, edge, end, "BYSCORE", *order, "LIMIT", 0, count, "WITHSCORES")
        ids, scores = flat[::2], flat[1::2]
        fresh = [id_ for id_ in ids if id_ not in at_edge]
        if fresh:
            yield [read_text(id_) for id_ in fresh]
        if len(ids) < count:
            return
        last = scores[-1]
        at_last = {id_ for id_, score in zip(ids, scores, strict=True) if score == last}
        at_edge = at_last | at_edge if read_text(last) == edge else at_last
        edge = read_text(last)


async def read_split(store: Store, command: Sequence[Argument], words: Sequence[Argument]) -> list[Any]:
    """Run a command whose reply has one value for each word, as HMGET and ZMSCORE, in commands of a bounded length.

    Raises:
        StoreError: one of them failed.
    """
    if not words:
        return []
    replies = await store.pipeline(split_command(command, words))
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return list(chain.from_iterable(replies))
