"""Wakes open pages when the pool changes: one blocking read for the whole process.

It reads the ends of tasks, the changes of queues and the control commands in one XREAD, and tells every open page that
something changed. What the page then shows is read by its own view, so that a lost notice costs time and nothing else.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import StoreError
from orchestrator.core.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.services import Services
    from orchestrator.store.router import Router

BLOCK_S: Final = 10.0
READ_COUNT: Final = 100
LEAST_GAP_S: Final = 0.25
"""Between two reads, so that a busy pool costs four reads a second and not one per task."""


class Feed:
    """Counts the changes of a pool for all who wait for the next one."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self.readers = 0
        """Number of open pages."""
        self.changes = 0

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Read while an open page wants changes."""
        self.readers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self.readers -= 1
            if not self.readers:
                self._wanted = anyio.Event()

    async def wait(self, seen: int, *, most_s: float) -> int:
        """Wait for a change after `seen`, at most a time; return the number of changes so far."""
        if self.changes == seen:
            with anyio.move_on_after(most_s):
                await self._changed.wait()
        return self.changes

    async def run(self) -> None:
        """Read until cancelled; nothing while no page is open."""
        keys = self._services.keys
        streams = [keys.events, keys.doorbell, keys.control]
        link = self._services.store.blocking_link(BLOCK_S, name="dashboard")
        pauses = Pauses(cap_s=5.0)
        places: list[str] = []
        try:
            while True:
                await self._wanted.wait()
                try:
                    places = places or [await _last(link, stream) for stream in streams]
                    block_ms = int(BLOCK_S * 1000)
                    reply = (
                        await link.execute(
                            "XREAD", "COUNT", READ_COUNT, "BLOCK", block_ms, "STREAMS", *streams, *places
                        )
                        or []
                    )
                except StoreError as failure:
                    places = []
                    self._tell()  # pages show that Redis does not answer
                    await anyio.sleep(pauses.next_s(failure))
                    continue
                pauses.reset()
                for stream, entries in reply:
                    places[streams.index(read_text(stream))] = read_text(entries[-1][0])
                if reply:
                    self._tell()
                    await anyio.sleep(LEAST_GAP_S)
        finally:
            await link.close()

    def _tell(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed = anyio.Event()


async def _last(link: Router, stream: str) -> str:
    entries = await link.execute("XREVRANGE", stream, "+", "-", "COUNT", 1)
    return read_text(entries[0][0]) if entries else "0-0"
