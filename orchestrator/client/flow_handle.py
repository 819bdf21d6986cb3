"""`FlowHandle`, which reads and steers the tasks of a flow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from orchestrator.core.command_record import check_said
from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import InvalidInput, NotFound, TaskError
from orchestrator.tasks import bulk, scripts
from orchestrator.tasks.flows import FlowTask
from orchestrator.tasks.model import CancelStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.client.handle import HandleParts, TaskHandle, UntilEnded
    from orchestrator.core.durations import Duration

Failed: TypeAlias = Literal["raise", "collect"]


class FlowHandle:
    """The tasks of a flow that was submitted, by their names: `handle.task("judge")`.

    Attributes:
        name: name of the flow.
    """

    __slots__ = ("_handles", "_parts", "name")

    def __init__(self, name: str, handles: Mapping[str, TaskHandle[Any]], parts: HandleParts) -> None:
        self.name: str = name
        self._handles, self._parts = dict(handles), parts

    def __repr__(self) -> str:
        return f"FlowHandle({self.name!r}, {list(self._handles)})"

    @property
    def names(self) -> list[str]:
        """The names of the tasks, each behind its predecessors."""
        return list(self._handles)

    @property
    def handles(self) -> list[TaskHandle[Any]]:
        """The handles of the tasks, in the order of `names`."""
        return list(self._handles.values())

    def task(self, task: str | FlowTask) -> TaskHandle[Any]:
        """Return the handle of a task.

        Args:
            task: its name, or what `Flow.task` returned.

        Raises:
            NotFound: the flow has no such task.
        """
        name = task.name if isinstance(task, FlowTask) else task
        found = self._handles.get(name)
        if found is None:
            raise NotFound(f"flow {self.name!r} has no task {name!r}; it has {', '.join(self._handles)}")
        return found

    async def results(self, timeout: Duration | None = None, *, failed: Failed = "raise") -> dict[str, Any]:
        """Wait until all tasks have ended, and return their results by name.

        Args:
            timeout: seconds or timedelta for all of them; None waits as long as it takes.
            failed: `raise` raises the error of the first task that failed, in the order of `names`, so that it is one
                that no other task has cancelled; `collect` returns each error in place of the result.

        Raises:
            TaskFailed, TaskCancelled, TaskExpired: a task failed, unless `failed="collect"`.
            TimeoutError: not all had ended after `timeout`.
            InvalidInput: an argument is invalid.
        """
        if failed not in get_args(Failed):
            raise InvalidInput(f"failed= of results must be one of {', '.join(get_args(Failed))}, not {failed!r}")
        timeout_s = None if timeout is None else to_seconds("timeout", timeout)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        found: dict[str, Any] = {}
        for name, handle in self._handles.items():
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                found[name] = await handle.result(left_s)
            except TaskError as error:
                if failed == "raise":
                    raise
                found[name] = error
        return found

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
        for name, status in found.items():
            if status in {CancelStatus.ENDED, CancelStatus.SIGNALLED}:
                await self._parts.recorder.record_task("cancel", self._handles[name].id, reason=reason, actor=actor)
                break
        if done.any_children:
            await bulk.cancel_children(store, retry_for_s=retry_for_s)
        return {name: found[name] for name in self._handles}

    def waiting_in(self, until_ended: UntilEnded) -> FlowHandle:
        """Return a handle whose waits run inside `until_ended`; for the workers."""
        handles = {name: handle.waiting_in(until_ended) for name, handle in self._handles.items()}
        return FlowHandle(self.name, handles, self._parts)
