"""Scans the keys of a server, or the members of a key, and begins again when another process of Redis answers.

A cursor is valid only in the process that gave it, because each process hashes with a seed of its own. The store
connects again after a restart or a failover, and a scan that goes on with the old cursor misses keys without an error.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import ServerUnavailable, StoreError
from orchestrator.core.reading import read_text
from orchestrator.store.server_info import read_info

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.store import Store

MOST_BEGINS: Final = 5
"""A scan ends with an error when Redis restarts more often."""


async def scan_steps(
    store: Store,
    command: Sequence[Argument],
    *options: Argument,
    retry_for_s: float = 0.0,
    spent: Callable[[float], None] = lambda _: None,
    again: Callable[[], None] = lambda: None,
) -> AsyncIterator[list[bytes]]:
    """Yield the reply of each step; a name may come twice, above all after a restart of Redis.

    Args:
        store: connected to the server.
        command: `SCAN`, or `SSCAN` or `ZSCAN` with a key of the pool.
        options: follow the cursor.
        retry_for_s: how long a step is repeated while Redis does not answer.
        spent: gets the seconds of each step.
        again: is called before the names come again from the first one, because Redis was restarted.

    Raises:
        ServerUnavailable: Redis does not answer, or restarts again and again.
        ServerRefused: Redis refuses the command.
    """
    cursor, process, begins = b"0", "", 1
    alone = True

    async def step() -> tuple[list[Any], str]:
        # Few keys fit into one step, which needs no second command. On one connection, one process gives both replies.
        asked = [(*command, cursor, *options), *([] if alone else [("INFO", "server")])]
        replies = await store.pipeline(asked)
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        return replies[0], "" if alone else read_info(read_text(replies[1])).run_id

    while True:
        started_s = time.monotonic()
        (reached, names), answered = await (
            store.read_with_retry(step, retry_for_s=retry_for_s) if retry_for_s else step()
        )
        spent(time.monotonic() - started_s)
        if alone and reached != b"0":
            alone = False  # and begin again, because the process that gave this cursor is not known
            continue
        if process not in {"", answered} and cursor != b"0":
            begins += 1
            if begins > MOST_BEGINS:
                raise ServerUnavailable(f"Redis restarted {MOST_BEGINS} times during a scan of its keys; try again")
            cursor, process = b"0", answered
            again()
            continue
        process, cursor = answered, reached
        yield names
        if cursor == b"0":
            return
