"""`Orchestrator` for code without an event loop: each call runs in a loop of its own thread, and blocks until done."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack, overload

from orchestrator.client.client import Orchestrator as AsyncOrchestrator
from orchestrator.client.handle import TaskHandle as AsyncTaskHandle
from orchestrator.core.errors import InvalidInput, OrchestratorError, SubmitRefused
from orchestrator.services import resolve_settings
from orchestrator.sync.admin import Admin
from orchestrator.sync.handle import TaskHandle
from orchestrator.sync.loop_thread import LoopThread
from orchestrator.tasks.submission import Submission

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from orchestrator.core.durations import Duration
    from orchestrator.core.settings import Settings
    from orchestrator.tasks.options import TaskOptions
    from orchestrator.tasks.submission import Arguments, NamedSkill, TypedSkill

T = TypeVar("T")

EXIT_TIMEOUT_S: Final = 2.0
"""An interpreter that ends waits no longer than this for a client that nobody closed."""


class Orchestrator:
    """Submits tasks and waits for their results; for scripts, notebooks and threads.

    It is the client of `orchestrator.Orchestrator` behind calls that block; arguments, results and errors are the same.
    Any number of threads may use one. It may be used inside a running event loop, which stands still meanwhile.

    Args:
        url: `redis://`, `rediss://` or `unix://`; by default the settings, else a running embedded server near by.
        pool: dispatch domain.
        prefix: `app:env:tenant`, the first part of every key.
        settings: all settings at once, in place of files and environment.

    Use it as `with Orchestrator() as orc:`, or call `open` and `close`. A process that was forked needs a client of its
    own.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: str | None = None,
        prefix: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._settings = resolve_settings(url=url, pool=pool, prefix=prefix, settings=settings)
        self._client = AsyncOrchestrator(settings=self._settings)
        self._thread: LoopThread | None = None
        self._opening = threading.Lock()

    # ------------------------------------------------------------------------------------------------ life cycle

    def open(self) -> Self:
        """Connect, in a thread of its own; as `orchestrator.Orchestrator.open`."""
        if not self._opening.acquire(blocking=False):
            raise OrchestratorError("this client is being opened by another thread; open it once")
        try:
            if self._thread is not None and not self._thread.is_foreign:
                raise OrchestratorError("this client is open already; close it first")
            thread, client = LoopThread(), AsyncOrchestrator(settings=self._settings)
            try:
                thread.start()
                thread.call(client.open)
            except BaseException:
                thread.stop()
                raise
            # When nobody closes it, it ends with the last who holds it, or with the interpreter.
            self._finalizer = weakref.finalize(self, thread.stop, EXIT_TIMEOUT_S)
            self._client, self._thread = client, thread
        finally:
            self._opening.release()
        return self

    def close(self) -> None:
        """Close the connections and end the thread; tasks go on, results stay readable by their ids.

        Whoever still waits in a call of this client, in another thread, gets an `OrchestratorError`.
        """
        thread, self._thread = self._thread, None
        if thread is None or thread.is_foreign:
            return
        try:
            thread.call(self._client.aclose)
        finally:
            self._finalizer.detach()
            thread.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise OrchestratorError("the client is not open; use `with Orchestrator() as orc:` or `orc.open()`")
        return self._thread

    # ---------------------------------------------------------------------------------------------------- submit

    @overload
    def submit(self, skill: TypedSkill[T], args: Arguments = None, **options: Unpack[TaskOptions]) -> TaskHandle[T]: ...

    @overload
    def submit(
        self, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle[Any]: ...

    def submit(
        self, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle[Any]:
        """Submit one task; as `orchestrator.Orchestrator.submit`. Calls of several threads travel together."""
        thread = self._running()
        return self._handle(thread, thread.call(self._client.submit_one, Submission(skill, args, **options)))

    def submit_many(self, tasks: Iterable[Submission]) -> list[TaskHandle[Any]]:
        """Submit many tasks in chunks; as `orchestrator.Orchestrator.submit_many`."""
        thread = self._running()
        try:
            handles = thread.call(self._client.submit_many, list(tasks))
        except SubmitRefused as refused:
            refused.outcomes = tuple(
                self._handle(thread, one) if isinstance(one, AsyncTaskHandle) else one for one in refused.outcomes
            )
            raise
        return [self._handle(thread, handle) for handle in handles]

    def _handle(self, thread: LoopThread, handle: AsyncTaskHandle[T]) -> TaskHandle[T]:
        return TaskHandle(handle, thread=thread, client=self)

    # ------------------------------------------------------------------------------------------------------ read

    def task(self, id_: str) -> TaskHandle[Any]:
        """A handle for a known id; as `orchestrator.Orchestrator.task`."""

        async def find() -> AsyncTaskHandle[Any]:
            return self._client.task(id_)

        thread = self._running()
        return self._handle(thread, thread.call(find))

    @property
    def admin(self) -> Admin:
        """The control commands; as `orchestrator.Orchestrator.admin`."""
        return Admin(self._client.admin, thread=self._running(), client=self)

    def as_completed(
        self, handles: Iterable[TaskHandle[T]], *, timeout: Duration | None = None
    ) -> Iterator[TaskHandle[T]]:
        """Give each handle when its task has ended; as `orchestrator.Orchestrator.as_completed`."""
        given: dict[str, TaskHandle[T]] = {}
        for handle in handles:
            if not isinstance(handle, TaskHandle):
                raise InvalidInput(f"as_completed takes the handles of tasks, not {type(handle).__name__}")
            given[handle.id] = handle

        async def begin() -> AsyncIterator[AsyncTaskHandle[T]]:
            own = [handle._handle for handle in given.values()]  # noqa: SLF001 - this client made them
            return self._client.as_completed(own, timeout=timeout)

        thread = self._running()
        return (given[handle.id] for handle in thread.iterate(thread.call(begin), holding=self))
