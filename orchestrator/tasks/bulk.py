"""Cancels, retries and deletes any number of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.ids import new_token
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.store.store import Store
    from orchestrator.tasks.model import CancelStatus, DeleteStatus, RequeueStatus, TaskState

CHUNK: Final = 500
"""Ids per script call."""


async def cancel(
    store: Store, ids: Sequence[str], *, reason: str, retry_for_s: float, only_this: bool = False
) -> dict[str, tuple[CancelStatus, TaskState | None]]:
    """Cancel tasks and those below them; return the status of each, and the state in which it was found.

    Args:
        store: the store.
        ids: any number of distinct ids.
        reason: shown to callers that wait for the tasks.
        retry_for_s: how long to repeat while Redis does not answer.
        only_this: whether the tasks below them go on.

    Raises:
        StoreError: a call failed; earlier calls stay applied.
    """
    done: dict[str, tuple[CancelStatus, TaskState | None]] = {}
    for chunk in _chunks(ids):
        call = scripts.cancel(store.keys, ids=chunk, reason=reason, only_this=only_this)
        cancelled = await store.call(call, retry_for_s=retry_for_s)
        done |= zip(chunk, cancelled.answers, strict=True)
        if cancelled.any_children:
            await cancel_children(store, retry_for_s=retry_for_s)
    return done


async def cancel_children(store: Store, *, retry_for_s: float = 0.0) -> None:
    """Cancel the tasks below cancelled ones until none is left; a supervisor goes on if this program dies.

    Args:
        store: the store.
        retry_for_s: how long to repeat each call while Redis does not answer.

    Raises:
        StoreError: a call failed; a supervisor goes on.
    """
    while (await store.call(scripts.cancel_children(store.keys), retry_for_s=retry_for_s)).left:
        pass


async def retry(
    store: Store, ids: Sequence[str], *, said: str, max_wait_s: int, retry_for_s: float, token: str = ""
) -> dict[str, tuple[RequeueStatus, TaskState | None]]:
    """Requeue ended tasks; `said` has actor and reason. Arguments, result and errors as for `cancel`.

    Each task keeps the `token` of its latest retry, so that a repeat with it requeues no task again.
    """
    await cancel_children(store, retry_for_s=retry_for_s)  # of earlier cancels, which else end what is retried here
    done: dict[str, tuple[RequeueStatus, TaskState | None]] = {}
    token = token or new_token()
    for chunk in _chunks(ids):
        call = scripts.retry(store.keys, ids=chunk, token=token, said=said, max_wait_s=max_wait_s)
        answers = await store.call(call, retry_for_s=retry_for_s)
        done |= zip(chunk, answers, strict=True)
    return done


async def delete(
    store: Store, ids: Sequence[str], *, retry_for_s: float
) -> dict[str, tuple[DeleteStatus, TaskState | None]]:
    """Delete ended tasks. Arguments, result and errors as for `cancel`."""
    done: dict[str, tuple[DeleteStatus, TaskState | None]] = {}
    for chunk in _chunks(ids):
        call = scripts.delete(store.keys, ids=chunk)
        answers = await store.call(call, retry_for_s=retry_for_s)
        done |= zip(chunk, answers, strict=True)
    return done


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), CHUNK):
        yield ids[first : first + CHUNK]
