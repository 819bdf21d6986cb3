"""Conditions of all traffic of a proxy: silence, latency, drip."""

from __future__ import annotations

import random
from typing import Literal

import anyio

Direction = Literal["up", "down"]
"""Up is towards the server."""


class NetworkConditions:
    """Conditions of all traffic; a change wakes the waiting relays."""

    def __init__(self) -> None:
        self._changed = anyio.Event()
        self._silent: frozenset[Direction] = frozenset()
        self._latency_ms = 0.0
        self._jitter_ms = 0.0
        self._dice = random.Random(0)
        self._drip_bytes = 0
        self._drip_pause_ms = 0.0

    @property
    def is_clear(self) -> bool:
        """True if nothing hinders the traffic."""
        return not (self._silent or self._latency_ms or self._jitter_ms or self._drip_bytes)

    def silence(self, directions: frozenset[Direction]) -> None:
        """Hold back traffic in these directions without loss."""
        self._silent = directions
        self._notify()

    def slow(self, latency_ms: float, *, jitter_ms: float, seed: int) -> None:
        """Delay each chunk by `latency_ms` plus up to `jitter_ms`."""
        self._latency_ms, self._jitter_ms, self._dice = latency_ms, jitter_ms, random.Random(seed)
        self._notify()

    def drip(self, chunk_bytes: int, *, pause_ms: float) -> None:
        """Write chunks of this size with a pause in between."""
        self._drip_bytes, self._drip_pause_ms = chunk_bytes, pause_ms
        self._notify()

    def clear(self) -> None:
        """End all conditions."""
        self._silent = frozenset()
        self._latency_ms = self._jitter_ms = 0.0
        self._drip_bytes = 0
        self._notify()

    def is_silent(self, direction: Direction) -> bool:
        """Return True if this direction is held back."""
        return direction in self._silent

    def delay_s(self) -> float:
        """Return a random delay for the next chunk."""
        return (self._latency_ms + self._dice.uniform(0, self._jitter_ms)) / 1000

    def chunk_bytes(self, left_bytes: int) -> int:
        """Return the size of the next write."""
        return min(self._drip_bytes or left_bytes, left_bytes)

    async def wait_for_change(self, at_most_s: float | None = None) -> None:
        """Wait for the next change, or for a time-out."""
        with anyio.move_on_after(at_most_s):
            await self._changed.wait()

    async def pause(self) -> None:
        """Wait between two chunks."""
        await self.wait_for_change(self._drip_pause_ms / 1000)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
