"""Limits how many tasks that crashed a worker may share a process (protocol rule 8).

One task of each depth runs at a time. A parent and its child may have crashed together, and the parent waits for the
child, so the child must be able to run beside it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class CrashIsolation:
    """Admits the attempts of one process."""

    def __init__(self) -> None:
        self._depths: list[int] = []
        self._left = anyio.Event()

    @asynccontextmanager
    async def hold(self, depth: int) -> AsyncIterator[Callable[[], None]]:
        """Wait until no admitted task has this depth or a greater one.

        A task only waits for deeper ones, and a task deeper than all admitted ones is admitted, so no wait is mutual.

        Args:
            depth: 0 for a task without parent.

        Yields:
            A function that leaves before the block ends, for an attempt whose handler ignores its cancellation.
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
