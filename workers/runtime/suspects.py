"""The suspects that one worker process runs: tasks that may have crashed a worker (protocol rule 8).

A task that died more than once shares a process with fewer and fewer of them, its group, until the one is found that
crashes workers. It waits in Redis, without a slot, until a process has room.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.tasks.model import Delivery
    from orchestrator.workers.runtime.attempt import Attempt
    from orchestrator.workers.runtime.in_flight import InFlight

ALONE_S: Final = 60.0
"""How long a process starts nothing beside a task that runs alone in it. That may take hours, or wait for a child."""


class Suspects:
    """Admits the attempts of one process."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._running: dict[Attempt, tuple[int, int]] = {}
        self._closed_until_s = 0.0
        self._left = anyio.Event()

    @property
    def running(self) -> list[tuple[int, int]]:
        """Depth and group of each suspect that runs."""
        return list(self._running.values())

    @property
    def closed_s(self) -> float:
        """Seconds for which the process starts nothing more, because a task runs alone in it."""
        return max(0.0, self._closed_until_s - time.monotonic())

    @property
    def idle(self) -> bool:
        """True if the process runs nothing."""
        return len(self._in_flight) == 0

    @contextmanager
    def admit(self, attempt: Attempt) -> Iterator[bool]:
        """Yield whether an attempt may run now, and count it while it does.

        Redis hands out only suspects that have room. An attempt that has none was read at the wrong moment.
        """
        delivery = attempt.delivery
        if not self._has_room(delivery):
            yield False
            return
        leave = self._enter(attempt)
        attempt.leave_group = leave
        try:
            yield True
        finally:
            leave()

    def _has_room(self, delivery: Delivery) -> bool:
        if self.closed_s > 0:
            return False
        if delivery.group is None:
            return True
        if delivery.group == 0:
            return len(self._in_flight) == 1
        # A task waits only for deeper ones, so those above it take none of its room: no wait is mutual.
        beside = [group for depth, group in self._running.values() if depth >= delivery.depth]
        return len(beside) < min([delivery.group, *beside])

    def _enter(self, attempt: Attempt) -> Callable[[], None]:
        delivery = attempt.delivery
        if delivery.group is not None:
            self._running[attempt] = (delivery.depth, delivery.group)
            if delivery.group == 0:
                self._closed_until_s = time.monotonic() + ALONE_S

        def leave() -> None:
            if self._running.pop(attempt, None) is not None:
                if delivery.group == 0:
                    self._closed_until_s = 0.0
                self._left.set()
                self._left = anyio.Event()

        return leave

    async def wait_left(self) -> None:
        """Wait until a suspect has ended."""
        await self._left.wait()
