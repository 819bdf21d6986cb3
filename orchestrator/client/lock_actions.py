"""Takes a lock from its holder for an operator, and records it with actor and reason."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orchestrator.client.action_records import record_lock
from orchestrator.locks.model import parse_scope
from orchestrator.locks.named import take_from_holder

if TYPE_CHECKING:
    from orchestrator.locks.model import LockInfo
    from orchestrator.locks.named import Locks, TakenLock
    from orchestrator.services import Services


async def release_lock(
    services: Services, locks: Locks, lock: LockInfo, *, reason: str = "", actor: str | None = None
) -> TakenLock:
    """Take a lock from its holder; arguments and errors as of `Locks.take_away`. It reports a missing record, too."""
    keys = parse_scope(locks.scope, prefix=services.keys.prefix, pool=services.keys.pool)
    record = partial(record_lock, services)
    return await take_from_holder(
        keys, lock, store=services.store, waiter=locks.waiter, record=record, reason=reason, actor=actor
    )
