"""Locks of one attempt that has no task in Redis."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from orchestrator.locks.renewal import LockRenewer
from orchestrator.workers.runtime.locking import Locking

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.workers.runtime.attempt import Attempt


class OfflineLocking(Locking):
    """Locks of an attempt that owns its task, because no worker can take it away. A timer of the loop renews them."""

    def __init__(self, services: Services, *, worker: str) -> None:
        super().__init__(services, worker=worker)
        self.renewer = _TimedRenewer(services)

    async def _owns(self, attempt: Attempt, lease_ms: int) -> bool:  # noqa: ARG002 - there is only one attempt
        return True


class _TimedRenewer(LockRenewer):
    """Renews without a heartbeat, and without a task that waits, because a context alone has no end."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self._pass: asyncio.Task[None] | None = None

    def _wake_at(self, due_s: float) -> None:
        self.wakes_s = due_s
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, due_s - time.monotonic()), self._begin)

    def remove(self, number: int) -> None:
        """Stop renewing a lock; without locks the timer ends."""
        super().remove(number)
        if self.due_in_s() is None and self._timer is not None:
            self._timer.cancel()
            self._timer, self.wakes_s = None, math.inf

    def _begin(self) -> None:
        self._pass = asyncio.get_running_loop().create_task(self._renew_due())

    async def _renew_due(self) -> None:
        self.wakes_s = math.inf
        for call, locks in self.batches(early_s=0.05):
            await self._renew(self._services.store, call, locks)
        if (in_s := self.due_in_s()) is not None:
            self._wake_at(time.monotonic() + in_s)
