"""Yields the handles of many tasks as these end: one waiter for all of them, no task and no connection for each."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from orchestrator.client.handle import TaskHandle
from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from orchestrator.client.replies import Replies
    from orchestrator.core.durations import Duration
    from orchestrator.core.errors import OrchestratorError, StoreError

T = TypeVar("T")

FOREVER_S: Final = float("inf")


def as_completed(
    replies: Replies, handles: Iterable[TaskHandle[T]], *, timeout: Duration | None
) -> AsyncGenerator[TaskHandle[T]]:
    """Check the arguments and begin to count the time; see `Orchestrator.as_completed`."""
    timeout_s = FOREVER_S if timeout is None else to_seconds("timeout", timeout)
    by_id: dict[str, TaskHandle[T]] = {}
    for handle in handles:
        if not isinstance(handle, TaskHandle):
            raise InvalidInput(f"as_completed takes the handles of tasks, not {type(handle).__name__}")
        if not replies.tracks(handle):
            raise InvalidInput(f"{handle!r} was made by another client; give orc.task({handle.id!r})")
        by_id[handle.id] = handle
    return _ends(replies, by_id, timeout_s=timeout_s, until_s=time.monotonic() + timeout_s)


async def _ends(
    replies: Replies, handles: dict[str, TaskHandle[T]], *, timeout_s: float, until_s: float
) -> AsyncGenerator[TaskHandle[T]]:
    ended = [handle for handle in handles.values() if handle.outcome is not None]
    waiting = {id_: handle for id_, handle in handles.items() if handle.outcome is None}
    ends = _Ends()
    if waiting:
        replies.listen(waiting, ends)
    try:
        for handle in ended:
            yield handle
        if waiting and timeout_s == 0:
            await replies.poll(list(waiting))
        while waiting:
            if not ends.ids:
                with anyio.move_on_after(max(0.0, until_s - time.monotonic())):
                    await ends.wait()
            if not ends.ids:
                raise TimeoutError(overdue(len(waiting), len(handles), timeout_s, replies.last_failure))
            yield waiting.pop(ends.ids.popleft())
    finally:
        replies.forget(handles, ends)


def overdue(left: int, of: int, timeout_s: float, failure: StoreError | None) -> str:
    """Return the text of the error of a wait for many tasks that took too long."""
    if failure is not None:
        return f"the ends of {left} of {of} tasks are not known after {timeout_s:g} s: {failure}"
    return f"{left} of {of} tasks have not ended after {timeout_s:g} s; they go on, ask again"


class _Ends:
    """Collects the ends of many tasks for one reader."""

    def __init__(self) -> None:
        self.ids: deque[str] = deque()
        self._failure: OrchestratorError | None = None
        self._woken = anyio.Event()

    def settled(self, id_: str, failure: StoreError | None) -> None:  # noqa: ARG002 - the handle meets it again
        self.ids.append(id_)
        self._woken.set()

    def failed(self, failure: OrchestratorError) -> None:
        self._failure = failure
        self._woken.set()

    async def wait(self) -> None:
        """Wait until a task ends, or until no further task can end."""
        if self._failure is None:
            self._woken = anyio.Event()
            await self._woken.wait()
        if self._failure is not None and not self.ids:
            raise self._failure
