"""`FlowHandle`, which reads and steers the tasks of a flow."""

from __future__ import annotations

import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args, overload

import anyio

from orchestrator.client.completion import overdue
from orchestrator.client.handle import ask_whether_requeued, whereabouts
from orchestrator.core.command_record import check_said
from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import InvalidInput, NotFound, StoreError, TaskError
from orchestrator.tasks import bulk, scripts
from orchestrator.tasks.flows import FlowTask
from orchestrator.tasks.model import CancelStatus, TaskState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Mapping

    from orchestrator.client.handle import HandleParts, TaskHandle, UntilEnded
    from orchestrator.core.durations import Duration
    from orchestrator.tasks.flows import Flow
    from orchestrator.tasks.queries import TaskOutcome

    AsCompleted: TypeAlias = Callable[..., AsyncGenerator[TaskHandle[Any]]]

T = TypeVar("T")
Failed: TypeAlias = Literal["raise", "collect"]


class FlowHandle:
    """The tasks of a flow that was submitted, by their names: `handle.task("judge")`.

    Attributes:
        name: name of the flow.
    """

    __slots__ = ("_as_completed", "_flow", "_handles", "_parts", "name")

    def __init__(
        self, flow: Flow, handles: Mapping[str, TaskHandle[Any]], parts: HandleParts, as_completed: AsCompleted
    ) -> None:
        self.name: str = flow.name
        self._flow, self._handles, self._parts, self._as_completed = flow, dict(handles), parts, as_completed

    def __repr__(self) -> str:
        return f"FlowHandle({self.name!r}, {list(self._handles)})"

    @property
    def names(self) -> list[str]:
        """The names of the tasks, in the order in which they were added; each is behind its predecessors."""
        return list(self._handles)

    @property
    def handles(self) -> list[TaskHandle[Any]]:
        """The handles of the tasks, in the order of `names`."""
        return list(self._handles.values())

    @overload
    def task(self, task: FlowTask[T]) -> TaskHandle[T]: ...

    @overload
    def task(self, task: str) -> TaskHandle[Any]: ...

    def task(self, task: str | FlowTask[Any]) -> TaskHandle[Any]:
        """Return the handle of a task.

        Args:
            task: its name, or what `Flow.task` returned.

        Raises:
            NotFound: the flow has no such task.
        """
        if isinstance(task, FlowTask) and task.owner is not self._flow:
            raise NotFound(
                f"{task!r} is not a task of the flow {self.name!r} that was submitted; ask for it by its name"
            )
        name = task.name if isinstance(task, FlowTask) else task
        found = self._handles.get(name)
        if found is None:
            raise NotFound(f"flow {self.name!r} has no task {name!r}; it has {', '.join(self._handles)}")
        return found

    async def results(self, timeout: Duration | None = None, *, failed: Failed = "raise") -> dict[str, Any]:
        """Wait until all tasks have ended, and return their results by name.

        Args:
            timeout: seconds or timedelta for all of them; None waits as long as it takes; 0 asks once.
            failed: `raise` raises the error of a task as soon as it has failed by itself; `collect` waits for the
                others, and returns each error in place of the result.

        Raises:
            TaskFailed, TaskCancelled, TaskExpired: a task failed, unless `failed="collect"`.
            TimeoutError: not all had ended after `timeout`.
            InvalidInput: an argument is invalid.
            PayloadError, StoreError: as `TaskHandle.result`.
            WaitCycle: in a handler, one of the tasks waits for this one.
        """
        if failed not in get_args(Failed):
            raise InvalidInput(f"failed= of results must be one of {', '.join(get_args(Failed))}, not {failed!r}")
        timeout_s = None if timeout is None else to_seconds("timeout", timeout)
        until_s = time.monotonic() + (timeout_s or 0.0)
        with anyio.move_on_after(timeout_s or None):
            await ask_whether_requeued(self._parts.services, self.handles)
        left_s = None if timeout_s is None else max(0.0, until_s - time.monotonic())
        ends: dict[str, TaskOutcome] = {}
        try:
            async with aclosing(self._as_completed(self.handles, timeout=left_s)) as completed:
                async for handle in completed:
                    ends[handle.id] = outcome = await _end_of(handle)
                    if failed == "raise" and outcome.state is not TaskState.SUCCEEDED:
                        await self._raise_first(ends)
        except TimeoutError:
            if timeout_s is None:
                raise  # as a test scripts it
            raise TimeoutError(await self._overdue(ends, timeout_s)) from None
        results: dict[str, Any] = {}
        for name, handle in self._handles.items():
            try:
                results[name] = await handle.result_of(ends[handle.id])
            except TaskError as error:
                results[name] = error
        return results

    async def _raise_first(self, ends: Mapping[str, TaskOutcome]) -> None:
        """Raise the error of the first task that failed: those that it cancelled may have become known before."""
        if unknown := [handle.id for handle in self.handles if handle.outcome is None]:
            with suppress(StoreError):
                await self._parts.replies.poll(unknown)
        for handle in self.handles:
            outcome = ends.get(handle.id) or handle.outcome
            if outcome is not None and outcome.state is not TaskState.SUCCEEDED:
                await handle.result_of(outcome)

    async def _overdue(self, ends: Collection[str], timeout_s: float) -> str:
        """Return how many tasks have not ended, and what the first of them waits for."""
        late = [(name, handle.id) for name, handle in self._handles.items() if handle.id not in ends]
        failure = self._parts.replies.last_failure
        text = overdue(len(late), len(self._handles), timeout_s, failure)
        if failure is None and timeout_s and late:
            name, id_ = late[0]
            text += await whereabouts(self._parts.services, id_, f"Task {name!r}")
        return text

    async def cancel(self, reason: str = "", *, actor: str | None = None) -> dict[str, CancelStatus]:
        """Cancel all tasks of the flow that have not ended, and the tasks below them; see `TaskHandle.cancel`.

        Args:
            reason: kept with the tasks and the record of the call.
            actor: who cancels; the user of this process by default.

        Returns:
            By name what became of each.

        Raises:
            InvalidInput: `actor` has more than 500 characters, or a text is not valid; nothing was changed.
        """
        check_said(actor, reason, cut=True)
        store, settings = self._parts.services.store, self._parts.services.settings
        retry_for_s = settings.redis.command_timeout_s
        # The last ones first, so that none of them is cancelled for the sake of another one.
        names = list(reversed(self._handles))
        ids = [self._handles[name].id for name in names]
        done = await store.call(scripts.cancel(store.keys, ids=ids, reason=reason), retry_for_s=retry_for_s)
        found = dict(zip(names, [status for status, _ in done.answers], strict=True))
        changed = [
            handle.id
            for name, handle in self._handles.items()
            if found[name] in {CancelStatus.ENDED, CancelStatus.SIGNALLED}
        ]
        if changed:
            await self._parts.recorder.record_all("cancel", changed, reason=reason, actor=actor)
        if done.any_children:
            await bulk.cancel_children(store, retry_for_s=retry_for_s)
        return {name: found[name] for name in self._handles}

    def waiting_in(self, until_ended: UntilEnded, as_completed: AsCompleted) -> FlowHandle:
        """Return a handle whose waits run inside `until_ended`, and through `as_completed`; for the workers."""
        handles = {name: handle.waiting_in(until_ended) for name, handle in self._handles.items()}
        return type(self)(self._flow, handles, self._parts, as_completed)


async def _end_of(handle: TaskHandle[Any]) -> TaskOutcome:
    """Return the end of a task; raise why Redis refuses to tell it."""
    if handle.outcome is None:
        await handle.stored_result(0)
    assert handle.outcome is not None
    return handle.outcome
