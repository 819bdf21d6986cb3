"""Cancels, retries and deletes tasks by their ids for an operator, and records it with actor and reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from orchestrator.client.action_records import record_first, record_tasks
from orchestrator.control.sending import this_actor
from orchestrator.core.command_record import check_said
from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.tasks import bulk
from orchestrator.tasks.model import CancelStatus, DeleteStatus, RequeueStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

    from orchestrator.client.action_records import TaskAction
    from orchestrator.services import Services
    from orchestrator.tasks.model import TaskState

S = TypeVar("S")
Done: TypeAlias = "Coroutine[Any, Any, dict[str, tuple[S, TaskState | None]]]"
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ActionReport(Generic[S]):
    """Outcome of an action on tasks.

    Attributes:
        tasks: status of each task, and the state in which it was found.
        unrecorded: why the action was not recorded; empty if it was.
    """

    tasks: Mapping[str, tuple[S, TaskState | None]]
    unrecorded: str


class Said(NamedTuple):
    """Actor and reason of an action, and the id of a record that is made before it."""

    reason: str
    actor: str | None
    record_id: str | None


async def cancel_tasks(
    services: Services,
    ids: Sequence[str],
    *,
    reason: str = "",
    actor: str | None = None,
    only_this: bool = False,
    record_id: str | None = None,
) -> ActionReport[CancelStatus]:
    """Cancel tasks and those below them: waiting ones end at once, running ones are told to stop.

    Args:
        services: of the pool.
        ids: any number of distinct ids.
        reason: shown to callers that wait for the tasks, and kept with the record.
        actor: user and host of this process by default.
        only_this: whether the tasks below them go on.
        record_id: a new task id, with at most 500 `ids`: the record is made first, under this id. A repeat makes no
            other record, and does what its first try has not done.

    Raises:
        CommandRefused: `record_id` was used for something else, or the record was not accepted; nothing was changed.
        InvalidInput: actor or reason is too long; nothing was changed.
        StoreError: Redis did not answer; earlier tasks may have been changed, which are recorded.
    """
    check_said(actor, reason)

    def act(chunk: Sequence[str]) -> Done[CancelStatus]:
        retry_for_s = _retry_for_s(services)
        return bulk.cancel(services.store, chunk, reason=reason, retry_for_s=retry_for_s, only_this=only_this)

    changed = {CancelStatus.ENDED, CancelStatus.SIGNALLED}
    return await _act(services, "cancel", ids, act, changed=changed, said=Said(reason, actor, record_id))


async def retry_tasks(
    services: Services,
    ids: Sequence[str],
    *,
    reason: str = "",
    actor: str | None = None,
    record_id: str | None = None,
) -> ActionReport[RequeueStatus]:
    """Retry tasks that ended without a result. Arguments and errors as of `cancel_tasks`."""
    check_said(actor, reason)
    actor = actor or this_actor()
    said = f"{actor}: {reason}" if reason else actor
    max_wait_s = round(services.settings.queue.max_wait_s)

    def act(chunk: Sequence[str]) -> Done[RequeueStatus]:
        return bulk.retry(
            services.store,
            chunk,
            said=said,
            max_wait_s=max_wait_s,
            retry_for_s=_retry_for_s(services),
            token=record_id or "",
        )

    return await _act(
        services, "retry", ids, act, changed={RequeueStatus.REQUEUED}, said=Said(reason, actor, record_id)
    )


async def delete_tasks(
    services: Services,
    ids: Sequence[str],
    *,
    reason: str = "",
    actor: str | None = None,
    record_id: str | None = None,
) -> ActionReport[DeleteStatus]:
    """Delete ended tasks with all that is stored of them. Arguments and errors as of `cancel_tasks`."""
    check_said(actor, reason)

    async def act(chunk: Sequence[str]) -> dict[str, tuple[DeleteStatus, TaskState | None]]:
        done = await bulk.delete(services.store, chunk, retry_for_s=_retry_for_s(services))
        await services.payloads.discard_tasks(
            id_ for id_, (status, _) in done.items() if status is DeleteStatus.DELETED
        )
        return done

    return await _act(services, "delete", ids, act, changed={DeleteStatus.DELETED}, said=Said(reason, actor, record_id))


async def _act(
    services: Services,
    action: TaskAction,
    ids: Sequence[str],
    act: Callable[[Sequence[str]], Done[S]],
    *,
    changed: Collection[S],
    said: Said,
) -> ActionReport[S]:
    """Act on one chunk after the other, and record each before the next one, which may fail."""
    tasks: dict[str, tuple[S, TaskState | None]] = {}
    unrecorded = ""
    if said.record_id is not None:
        await record_first(services, action, ids, reason=said.reason, actor=said.actor, id_=said.record_id)
    for first in range(0, len(ids), bulk.CHUNK):
        try:
            done = await act(ids[first : first + bulk.CHUNK])
        except StoreError:
            if unrecorded:
                _log.warning("tasks_not_recorded", action=action, tasks=len(tasks), error=unrecorded)
            raise
        tasks |= done
        if said.record_id is not None:
            continue
        recorded = [id_ for id_, (status, _) in done.items() if status in changed]
        problem = await record_tasks(services, action, recorded, reason=said.reason, actor=said.actor)
        unrecorded = unrecorded or problem
    return ActionReport(tasks, unrecorded)


def _retry_for_s(services: Services) -> float:
    return services.settings.redis.command_timeout_s
