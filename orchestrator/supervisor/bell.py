"""A wake-up that remembers names until somebody takes them."""

from __future__ import annotations

import anyio


class Bell:
    """Collects what has changed; one loop waits for it."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._rung = anyio.Event()

    def ring(self, *names: str) -> None:
        """Add names and wake the waiter."""
        self._names.update(names)
        self._rung.set()

    async def wait(self, timeout_s: float | None) -> set[str]:
        """Take all names; an empty set after `timeout_s` without a ring."""
        if timeout_s is None:
            await self._rung.wait()
        elif not self._names:
            with anyio.move_on_after(timeout_s):
                await self._rung.wait()
        self._rung = anyio.Event()
        names, self._names = self._names, set()
        return names
