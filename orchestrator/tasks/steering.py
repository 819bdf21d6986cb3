"""What people do to tasks that are there, any number at a time: cancel them, retry them, delete them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.store.store import Store
    from orchestrator.tasks.model import CancelStatus, DeleteStatus, RequeueStatus, TaskState

CHUNK: Final = 500
"""Ids that one script call takes."""


async def cancel(
    store: Store, ids: Sequence[str], *, reason: str, retry_for_s: float
) -> dict[str, tuple[CancelStatus, TaskState | None]]:
    """Cancel tasks; per id what was done, and the state that it was found in.

    Args:
        store: where.
        ids: any number, each once.
        reason: shown to whoever waits for them.
        retry_for_s: how long to repeat while Redis does not answer; asking twice does no harm.

    Raises:
        StoreError: Redis did not do it; what earlier calls did stays done.
    """
    done: dict[str, tuple[CancelStatus, TaskState | None]] = {}
    for chunk in _chunks(ids):
        call = scripts.cancel(store.keys, ids=chunk, reason=reason)
        answers = await store.call(call, retry_for_s=retry_for_s)
        done |= zip(chunk, answers, strict=True)
    return done


async def retry(
    store: Store, ids: Sequence[str], *, said: str, max_wait_s: int, retry_for_s: float
) -> dict[str, tuple[RequeueStatus, TaskState | None]]:
    """Let ended tasks run again; `said` is who and why; arguments, answer and errors as for `cancel`."""
    done: dict[str, tuple[RequeueStatus, TaskState | None]] = {}
    token = os.urandom(8).hex()
    for chunk in _chunks(ids):
        call = scripts.retry(store.keys, ids=chunk, token=token, said=said, max_wait_s=max_wait_s)
        answers = await store.call(call, retry_for_s=retry_for_s)
        done |= zip(chunk, answers, strict=True)
    return done


async def delete(
    store: Store, ids: Sequence[str], *, retry_for_s: float
) -> dict[str, tuple[DeleteStatus, TaskState | None]]:
    """Delete ended tasks for good; arguments, answer and errors as for `cancel`."""
    done: dict[str, tuple[DeleteStatus, TaskState | None]] = {}
    for chunk in _chunks(ids):
        call = scripts.delete(store.keys, ids=chunk)
        answers = await store.call(call, retry_for_s=retry_for_s)
        done |= zip(chunk, answers, strict=True)
    return done


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), CHUNK):
        yield ids[first : first + CHUNK]
