"""Reads large keys page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.store.store import Store

PAGE: Final = 500


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
            yield [id_.decode() for id_ in fresh]
        if len(ids) < count:
            return
        last = scores[-1]
        at_last = {id_ for id_, score in zip(ids, scores, strict=True) if score == last}
        at_edge = at_last | at_edge if last.decode() == edge else at_last
        edge = last.decode()
