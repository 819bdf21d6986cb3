"""Actions of jobs on a batch of tasks. Each may run twice on the same batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from orchestrator.control.commands import CancelTasks
from orchestrator.tasks import bulk, scripts
from orchestrator.tasks.model import CancelStatus, DeleteStatus, RequeueStatus, TaskState

if TYPE_CHECKING:
    from orchestrator.control.desired import ActiveCommand
    from orchestrator.services import Services

BulkAction: TypeAlias = Callable[["Services", "ActiveCommand", Sequence[str]], Awaitable[Counter[str]]]
"""Applies an action to up to 500 tasks and counts the outcomes, which are single words."""


async def cancel(services: Services, job: ActiveCommand, ids: Sequence[str]) -> Counter[str]:
    """Cancel tasks and those below them, which are not counted.

    A task that was cancelled before counts as cancelled, because this batch may be a repetition.
    """
    only_this = isinstance(job.command, CancelTasks) and job.command.only_this
    call = scripts.cancel(services.keys, ids=ids, reason=job.issued.words, only_this=only_this)
    cancelled = await services.store.call(call)
    if cancelled.any_children:
        await bulk.cancel_children(services.store)
    ends: Counter[str] = Counter()
    for status, state in cancelled.answers:
        match status:
            case CancelStatus.SIGNALLED:
                ends["told-to-stop"] += 1
            case CancelStatus.UNKNOWN:
                ends["unknown"] += 1
            case CancelStatus.ALREADY if state is not TaskState.CANCELLED:
                ends["ended-before"] += 1
            case _:
                ends["cancelled"] += 1
    return ends


async def retry(services: Services, job: ActiveCommand, ids: Sequence[str]) -> Counter[str]:
    """Retry tasks. The command's id is the token, so that it retries no task twice, even if that died again."""
    await bulk.cancel_children(services.store)  # of earlier cancels, which else end what is retried here
    call = scripts.retry(
        services.keys,
        ids=ids,
        token=job.issued.id,
        said=job.issued.words,
        max_wait_s=round(services.settings.queue.max_wait_s),
    )
    ends: Counter[str] = Counter()
    for status, _ in await services.store.call(call):
        ends["still-open" if status is RequeueStatus.ALREADY else status.value] += 1
    return ends


async def delete(services: Services, job: ActiveCommand, ids: Sequence[str]) -> Counter[str]:  # noqa: ARG001 - same signature as the others
    """Delete ended tasks. For five minutes a stub tells that a task was deleted; then it is unknown."""
    ends: Counter[str] = Counter()
    answers = await services.store.call(scripts.delete(services.keys, ids=ids))
    deleted = [id_ for id_, (status, _) in zip(ids, answers, strict=True) if status is DeleteStatus.DELETED]
    await services.payloads.discard_tasks(deleted)
    for status, _ in answers:
        ends["not-ended" if status is DeleteStatus.REFUSED else status.value] += 1
    return ends


BULK_ACTIONS: Final[Mapping[str, BulkAction]] = {
    "cancel-tasks": cancel,
    "retry-tasks": retry,
    "delete-tasks": delete,
    "purge-queue": cancel,
}
