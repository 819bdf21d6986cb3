"""Limits how many tasks that crashed a worker may share a process (protocol rule 8).

One at a time in a process, and of each depth: a parent that waits for its children leaves room for them, or both would
wait for ever when they died together.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class CrashIsolation:
    """Lets the attempts of one process in."""

    def __init__(self) -> None:
        self._depths: list[int] = []
        self._left = anyio.Event()

    @asynccontextmanager
    async def hold(self, depth: int) -> AsyncIterator[Callable[[], None]]:
        """Wait until no task as deep as this or deeper is in, and be in.

        Waiting goes downwards: the deepest task that is in can only wait for a deeper one, which is let in.

        Args:
            depth: of the task below the one that was submitted from outside.

        Yields:
            What lets others in before the block ends: a handler that ignores its end must not keep them out for ever.
        """
        inside = True

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = False
                self._depths.remove(depth)
                self._left.set()
                self._left = anyio.Event()

        while any(other >= depth for other in self._depths):
            await self._left.wait()
        self._depths.append(depth)
        try:
            yield leave
        finally:
            leave()
