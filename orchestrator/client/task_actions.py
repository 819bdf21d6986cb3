"""Cancels, retries and deletes tasks by their ids for an operator, and records it with actor and reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from orchestrator.client.action_records import record_tasks
from orchestrator.control.sending import this_actor
from orchestrator.core.command_record import check_said
from orchestrator.tasks import bulk
from orchestrator.tasks.model import CancelStatus, DeleteStatus, RequeueStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.services import Services
    from orchestrator.tasks.model import TaskState

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class ActionReport(Generic[S]):
    """Outcome of an action on tasks.

    Attributes:
        tasks: status of each task, and the state in which it was found.
        unrecorded: why the action was not recorded; empty if it was.
    """

    tasks: Mapping[str, tuple[S, TaskState | None]]
    unrecorded: str


async def cancel_tasks(
    services: Services, ids: Sequence[str], *, reason: str = "", actor: str | None = None
) -> ActionReport[CancelStatus]:
    """Cancel tasks: waiting ones end at once, running ones are told to stop.

    Args:
        services: of the pool.
        ids: any number of distinct ids.
        reason: shown to callers that wait for the tasks, and kept with the record.
        actor: user and host of this process by default.

    Raises:
        InvalidInput: actor or reason is too long; nothing was changed.
        StoreError: Redis did not answer; earlier tasks may have been changed.
    """
    check_said(actor, reason)
    done = await bulk.cancel(services.store, ids, reason=reason, retry_for_s=_retry_for_s(services))
    changed = [id_ for id_, (status, _) in done.items() if status in {CancelStatus.ENDED, CancelStatus.SIGNALLED}]
    return ActionReport(done, await record_tasks(services, "cancel", changed, reason=reason, actor=actor))


async def retry_tasks(
    services: Services, ids: Sequence[str], *, reason: str = "", actor: str | None = None
) -> ActionReport[RequeueStatus]:
    """Retry tasks that ended without a result. Arguments and errors as of `cancel_tasks`."""
    check_said(actor, reason)
    actor = actor or this_actor()
    done = await bulk.retry(
        services.store,
        ids,
        said=f"{actor}: {reason}" if reason else actor,
        max_wait_s=round(services.settings.queue.max_wait_s),
        retry_for_s=_retry_for_s(services),
    )
    changed = [id_ for id_, (status, _) in done.items() if status is RequeueStatus.REQUEUED]
    return ActionReport(done, await record_tasks(services, "retry", changed, reason=reason, actor=actor))


async def delete_tasks(
    services: Services, ids: Sequence[str], *, reason: str = "", actor: str | None = None
) -> ActionReport[DeleteStatus]:
    """Delete ended tasks with all that is stored of them. Arguments and errors as of `cancel_tasks`."""
    check_said(actor, reason)
    done = await bulk.delete(services.store, ids, retry_for_s=_retry_for_s(services))
    changed = [id_ for id_, (status, _) in done.items() if status is DeleteStatus.DELETED]
    return ActionReport(done, await record_tasks(services, "delete", changed, reason=reason, actor=actor))


def _retry_for_s(services: Services) -> float:
    return services.settings.redis.command_timeout_s
