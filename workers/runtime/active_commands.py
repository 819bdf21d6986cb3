"""This worker's copy of the desired state. Every task start is checked against it.

The heartbeat thread replaces it, even while the event loop is blocked. The event loop applies the change when it runs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from orchestrator.control.desired import NOTHING, read_desired
from orchestrator.control.restoring import Merged, merge
from orchestrator.control.signing import signer_of
from orchestrator.core.log import get_logger
from orchestrator.tasks.model import root_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.control.desired import ActiveCommand, Desired
    from orchestrator.services import Services
    from orchestrator.workers.runtime.attempt import Attempt
    from orchestrator.workers.runtime.in_flight import InFlight

_log = get_logger(__name__)


class WorkerCommands:
    """Holds the desired state and wakes the tasks that wait for a change.

    Attributes:
        desired: immutable; the heartbeat thread replaces it.
        known_until_s: by the monotonic clock; until then this worker is in the registry, so that no stop counts as
            acknowledged without its receipt. Later it may have missed one, and starts nothing. The heartbeat thread
            sets it.
        refresh: reads the desired state again; called when Redis hands out an entry that a stop command covers.
        draining: the worker takes no more tasks. Only the event loop writes it.
    """

    def __init__(self) -> None:
        self.desired: Desired = NOTHING
        self.known_until_s = 0.0
        self.refresh: Callable[[], None] = lambda: None
        self.draining = False
        self._changed = anyio.Event()

    @property
    def outdated(self) -> bool:
        """True if this worker may not know of a stop."""
        return time.monotonic() >= self.known_until_s

    def stop_of(
        self, agent: str, *, skill: str | None = None, session: str | None = None, family: str | None = None
    ) -> ActiveCommand | None:
        """Return the stop command that forbids this start, or None if it may start."""
        return self.desired.stop_of(agent=agent, skill=skill, session=session, family=family)

    def accept(self, stored: Desired) -> Merged:
        """Take over the stored state, except for what Redis has lost; the caller writes that back."""
        merged = merge(self.desired, stored)
        if merged.lost:
            _log.error("desired_state_lost", desired=merged.lost)
        self.desired = merged.desired
        return merged

    def notify_changed(self) -> None:
        """Wake all `until` calls; call it in the event loop."""
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_changed(self) -> None:
        """Wait for the next `notify_changed`."""
        await self._changed.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds that only `notify_changed` can announce."""
        while not holds():
            await self._changed.wait()

    async def read(self, services: Services) -> None:
        """Read the desired state when the worker starts.

        Raises:
            StoreError: Redis did not answer.
        """
        keys, signer = services.keys, signer_of(services.settings, place=services.keys.root)

        async def read() -> Desired:
            # The revisions first, so that they are never newer than the state.
            revisions = await services.store.execute("HGETALL", keys.desired_revisions)
            return read_desired(await services.store.execute("HGETALL", keys.desired), signer, revisions)

        self.desired = await services.store.read_with_retry(read, retry_for_s=services.settings.redis.command_timeout_s)


def interrupted(desired: Desired, in_flight: InFlight) -> list[tuple[Attempt, ActiveCommand]]:
    """Find the running attempts that an active stop command interrupts; safe from any thread."""
    if not desired.active:
        return []
    found: list[tuple[Attempt, ActiveCommand]] = []
    for attempt in in_flight.all():
        if attempt.running:
            agent, skill, session = attempt.delivery.agent, attempt.envelope.skill, attempt.envelope.session
            family = root_of(attempt.delivery.task_id, attempt.envelope)
            stop = desired.interrupts(agent=agent, skill=skill, session=session, family=family)
            if stop is not None:
                found.append((attempt, stop))
    return found


def interrupt(desired: Desired, in_flight: InFlight) -> None:
    """Cancel the running handlers that an active stop command interrupts; their tasks are requeued."""
    for attempt, stop in interrupted(desired, in_flight):
        attempt.stop_by_command(stopped_by(stop))


def stopped_by(stop: ActiveCommand) -> str:
    """Return the reason stored with a task that a stop command kept from running or interrupted."""
    return f"stopped by {stop.issued.words}"
