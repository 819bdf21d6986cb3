"""The handle of the synchronous client: the same calls, which block."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.client.handle import TaskHandle as AsyncTaskHandle
    from orchestrator.core.durations import Duration
    from orchestrator.sync.loop_thread import LoopThread
    from orchestrator.tasks.model import AnswerStatus, CancelStatus, OutputChunk, RequeueStatus, TaskEvent
    from orchestrator.tasks.queries import TaskOutcome
    from orchestrator.why.model import TaskInfo, TaskStatus

T_co = TypeVar("T_co", covariant=True)
M = TypeVar("M")


class TaskHandle(Generic[T_co]):
    """A task, by its id. What `orchestrator.TaskHandle` awaits, this one waits for; usable from any thread."""

    __slots__ = ("__weakref__", "_client", "_handle", "_thread")

    def __init__(self, handle: AsyncTaskHandle[T_co], *, thread: LoopThread, client: object) -> None:
        self._handle, self._thread = handle, thread
        self._client = client  # which closes when nobody holds it any more

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    @property
    def id(self) -> str:
        """The task's id."""
        return self._handle.id

    @property
    def outcome(self) -> TaskOutcome | None:
        """How it ended, once that is known here."""
        return self._handle.outcome

    @overload
    def result(self, timeout: Duration | None = None) -> T_co: ...

    @overload
    def result(self, timeout: Duration | None = None, *, as_: type[M]) -> M: ...

    def result(self, timeout: Duration | None = None, *, as_: type[Any] | None = None) -> Any:
        """Wait for the end of the task and return its result; as `orchestrator.TaskHandle.result`.

        Ctrl-C ends the waiting, not the task.
        """
        if self._handle.outcome is None or self._handle._told:  # noqa: SLF001 - here and below: halves of result()
            self._thread.call(self._handle._end, timeout)  # noqa: SLF001
        # In this thread: a type of the caller's own may do what it likes.
        return self._handle._unpack(as_)  # noqa: SLF001

    def status(self) -> TaskStatus:
        """Its state, and in words what it waits for."""
        return self._thread.call(self._handle.status)

    def info(self) -> TaskInfo:
        """Everything that is known of it."""
        return self._thread.call(self._handle.info)

    def cancel(self, reason: str = "") -> CancelStatus:
        """Cancel it: a waiting task ends at once, a running one is told to stop."""
        return self._thread.call(self._handle.cancel, reason)

    def retry(self, reason: str = "") -> RequeueStatus:
        """Let it run again after it has ended without a result; as `orchestrator.TaskHandle.retry`."""
        return self._thread.call(self._handle.retry, reason)

    def answer(self, value: Any, *, question: int | None = None, actor: str | None = None) -> AnswerStatus:
        """Answer the question that it waits with, so that it goes on; as `orchestrator.TaskHandle.answer`."""
        return self._thread.call(partial(self._handle.answer, value, question=question, actor=actor))

    def output(self, after: str | None = None) -> Iterator[OutputChunk]:
        """Read the partial output of the task live; ends when the task has ended and all was read."""
        return self._thread.iterate(self._handle.output(after), holding=self)

    def events(self, after: str | None = None) -> Iterator[TaskEvent]:
        """Read the life of the task live, progress and output included; ends after the final event."""
        return self._thread.iterate(self._handle.events(after), holding=self)
