"""Wakes a loop and passes it the names of changed objects."""

from __future__ import annotations

from typing import Final

import anyio

from orchestrator.core.queue_name import QueueName

EVERYTHING: Final = "*"
SCHEDULES: Final = "schedules"
"""What `lua/includes/schedule.lua` notifies when another schedule comes first."""
BUDGETS: Final = "budgets"
"""What scripts notify when a budget may have room for tasks that wait for it."""
PROVIDERS: Final = "providers"
"""What scripts notify when a provider that pools share is listed, or cleared by an operator."""
REGISTRY: Final = "agents"
"""What scripts notify when a command or a limit has changed what any agent may take."""


def changed_queue(name: str) -> QueueName:
    """Return the queue in a notification about new tasks in a queue, or about room in an agent's inbox."""
    return QueueName.parse(name.removeprefix("queue:"))


class Wakeup:
    """Collects what has changed; one loop waits for it."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._notified = anyio.Event()

    def notify(self, *names: str) -> None:
        """Add names and wake the waiter."""
        self._names.update(names)
        self._notified.set()

    async def wait(self, timeout_s: float | None) -> set[str]:
        """Take all names; an empty set after `timeout_s` without a notification."""
        if timeout_s is None:
            await self._notified.wait()
        elif not self._names:
            with anyio.move_on_after(timeout_s):
                await self._notified.wait()
        self._notified = anyio.Event()
        names, self._names = self._names, set()
        return names
