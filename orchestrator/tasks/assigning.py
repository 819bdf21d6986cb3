"""Assigns tasks of one queue: with a call of its own, or at the end of a blocking read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core.errors import StoreError
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.queue_name import QueueName
    from orchestrator.store.calls import Argument, Call
    from orchestrator.store.keys import PoolKeys
    from orchestrator.store.router import Router
    from orchestrator.store.store import Store
    from orchestrator.tasks.model import Assigned, Dispatched


async def assign_from(store: Store, queue: QueueName, *, limit: int, without: int = 0) -> Assigned | Dispatched:
    """Assign up to `limit` tasks of a queue; `without` comes from the reply to the call before.

    Raises:
        StoreError: the call failed.
    """
    return await store.call(_call(store.keys, queue, limit, without))


async def read_then_assign(
    store: Store, link: Router, read: Sequence[Argument], queue: QueueName, *, limit: int
) -> tuple[Any, Assigned | Dispatched | None]:
    """Send a blocking read, and behind it a call that assigns up to `limit` tasks of a queue.

    Redis runs the call as soon as the read ends, so the tasks do not wait for this process to wake up.

    Returns:
        The reply to the read, and what was assigned; None if the call failed.

    Raises:
        StoreError: the read failed.
    """
    call = _call(store.keys, queue, limit)
    reply, assigned = await link.pipeline([read, call.command()])
    if isinstance(reply, StoreError):
        raise reply
    return reply, None if isinstance(assigned, StoreError) else call.parse(assigned)


def _call(keys: PoolKeys, queue: QueueName, limit: int, without: int = 0) -> Call[Assigned | Dispatched]:
    if queue.agent is not None:
        return scripts.assign(keys, agent=queue.agent, limit=limit)
    return scripts.dispatch(keys, skill=queue.name, limit=limit, without=without)
