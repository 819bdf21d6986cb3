"""Reads a stream as it grows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerUnavailable
from orchestrator.core.reading import read_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from orchestrator.store.store import Store

BEGINNING: Final = "0-0"
END: Final = "$"
_PAGE: Final = 500
_BLOCK_S: Final = 5.0


async def follow_stream(
    store: Store, key: str, *, after: str, idle_s: float | None, name: str
) -> AsyncGenerator[tuple[bytes, Sequence[bytes]]]:
    """Yield the entries of a stream after `after` as they arrive, over a dedicated connection.

    Reconnects after a failure; yields every entry once. Returns when nothing has arrived for `idle_s` seconds.
    """
    block_s = _BLOCK_S if idle_s is None else min(idle_s, _BLOCK_S)
    link, pauses, last_reply_s = store.blocking_link(block_s, name=name), Pauses(), time.monotonic()
    try:
        while True:
            try:
                if after == END:
                    last = await link.execute("XREVRANGE", key, "+", "-", "COUNT", 1)
                    after = read_text(last[0][0]) if last else BEGINNING
                reply = await link.execute(
                    "XREAD", "COUNT", _PAGE, "BLOCK", max(1, round(block_s * 1000)), "STREAMS", key, after
                )
            except ServerUnavailable as failure:
                await anyio.sleep(pauses.next_s(failure))
                continue
            pauses.reset()
            for entry, fields in reply[0][1] if reply else ():
                yield entry, fields
                after, last_reply_s = read_text(entry), time.monotonic()
            if idle_s is not None and time.monotonic() - last_reply_s >= idle_s:
                return
    finally:
        with anyio.CancelScope(shield=True):
            await link.close()
