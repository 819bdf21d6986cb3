"""Assigns tasks of one skill or to some agents: with a call of its own, or at the end of a blocking read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import StoreError
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.queue_name import QueueName
    from orchestrator.store.calls import Argument, Call
    from orchestrator.store.router import Router
    from orchestrator.store.store import Store
    from orchestrator.tasks.model import Assigned, Dispatched


AGENTS_AT_ONCE: Final = 64
"""Agents of one call. With a task for each it takes the server about 1 ms."""


async def assign_to(store: Store, agents: Sequence[str], *, limit: int) -> Assigned:
    """Assign up to `limit` tasks to some agents, at most `AGENTS_AT_ONCE`.

    Raises:
        StoreError: the call failed.
    """
    return await store.call(scripts.assign(store.keys, agents=agents, limit=limit))


async def dispatch_from(store: Store, skill: str, *, limit: int, without: int = 0) -> Dispatched:
    """Assign up to `limit` tasks of a skill; `without` comes from the reply to the call before.

    Raises:
        StoreError: the call failed.
    """
    return await store.call(scripts.dispatch(store.keys, skill=skill, limit=limit, without=without))


async def read_then_assign(
    store: Store, link: Router, read: Sequence[Argument], queues: Sequence[QueueName], *, limit: int
) -> tuple[Any, Assigned | Dispatched | None]:
    """Send a blocking read, and behind it a call that assigns up to `limit` tasks of a skill, or to agents.

    Redis runs the call as soon as the read ends, so the tasks do not wait for this process to wake up.

    Returns:
        The reply to the read, and what was assigned; None if the call failed.

    Raises:
        StoreError: the read failed.
    """
    call: Call[Any]
    if queues[0].skill is not None:
        call = scripts.dispatch(store.keys, skill=queues[0].skill, limit=limit)
    else:
        call = scripts.assign(store.keys, agents=list(dict.fromkeys(queue.name for queue in queues)), limit=limit)
    reply, assigned = await link.pipeline([read, call.command()])
    if isinstance(reply, StoreError):
        raise reply
    return reply, None if isinstance(assigned, StoreError) else call.read(assigned)
