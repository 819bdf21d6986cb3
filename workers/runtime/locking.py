"""Makes the execution locks and named locks of attempts, which the heartbeat renews."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.client.action_records import record_lock
from orchestrator.locks.attempt import AttemptLocks
from orchestrator.locks.execution import ExecutionLocks, LockOwner
from orchestrator.locks.named import Locks
from orchestrator.locks.renewal import LockRenewer
from orchestrator.locks.waiter import LockWaiter
from orchestrator.tasks import scripts
from orchestrator.tasks.model import LeaseStatus
from orchestrator.workers.runtime.attempt import StopCause

if TYPE_CHECKING:
    from orchestrator.locks.execution import LockMode
    from orchestrator.services import Services
    from orchestrator.workers.runtime.attempt import Attempt


class Locking:
    """Makes the locks of all attempts of a worker.

    Attributes:
        renewer: the locks that the heartbeat renews.
    """

    def __init__(self, services: Services, *, worker: str) -> None:
        self._services, self._worker = services, worker
        self._waiter = LockWaiter(services.store, scripts.wake)
        self.renewer = LockRenewer()

    def of(self, attempt: Attempt, *, mode: LockMode, lease_ms: int) -> AttemptLocks:
        """Return the locks of one attempt, none of them acquired."""
        delivery, session, keys = attempt.delivery, attempt.envelope.session, self._services.keys

        async def owns() -> bool:
            return await self._owns(attempt, lease_ms)

        owner = LockOwner(
            task=delivery.task_id,
            generation=delivery.generation,
            pool=keys.pool,
            agent=delivery.agent,
            session=session,
            lease_ms=lease_ms,
            owns=owns,
            on_lost=attempt.stop_without_lock,
            may_renew=lambda: attempt.owns_task,
        )
        execution = ExecutionLocks(
            owner, mode=mode, prefix=keys.prefix, store=self._services.store, waiter=self._waiter, renewer=self.renewer
        )
        scope = keys.pool_locks if session is None else keys.scope("session", session)
        named = Locks(
            scope,
            pool=keys.pool,
            owner=f"task {delivery.task_id}, attempt {delivery.attempt}, agent {delivery.agent}",
            store=self._services.store,
            waiter=self._waiter,
            renewer=self.renewer,
            record=partial(record_lock, self._services),
        )
        return AttemptLocks(execution, named)

    async def _owns(self, attempt: Attempt, lease_ms: int) -> bool:
        """Ask Redis whether the attempt still owns its task (protocol rule 18)."""
        delivery = attempt.delivery
        rows = [(delivery.entry, delivery.task_id, delivery.generation)]
        call = scripts.renew(self._services.keys, worker=self._worker, agent=delivery.agent, rows=rows)
        retry_for_s = self._services.settings.redis.command_timeout_s
        sent_s = time.monotonic()
        _, (status,) = await self._services.store.call(call, retry_for_s=retry_for_s)
        if status is LeaseStatus.LOST:
            attempt.stop(StopCause.LEASE_LOST)
            return False
        attempt.leased_until_s = max(attempt.leased_until_s, sent_s + lease_ms / 1000)
        if status is LeaseStatus.CANCELLED:
            attempt.stop(StopCause.CANCELLED)
        return True
