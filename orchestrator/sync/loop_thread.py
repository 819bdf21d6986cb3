"""An event loop in a thread of its own, and calls into it from other threads.

A call needs one hand-over where anyio's portal needs two, so that an interrupt cannot lose the call. A call that comes
while the loop ends is refused, because it would never return.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, TypeVarTuple

import anyio

from orchestrator.core.caller_warning import caller_thread
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

T = TypeVar("T")
Args = TypeVarTuple("Args")

AHEAD: Final = 1000
"""An iterator runs ahead of the thread that reads it by so many items at most."""

CLOSED: Final = "this client has been closed; open one, and ask it for a known task with orc.task(id)"


class LoopThread:
    """Runs coroutines for any number of threads. A process that was forked from this one is refused."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        # Held for moments only. What was handed over under it before the end is also run, or cancelled, before the end.
        self._lock = threading.Lock()
        self._open = False
        self._waiting: deque[tuple[Context, int, Future[Any], Callable[..., Awaitable[Any]], tuple[Any, ...]]] = deque()
        self._thread = threading.Thread(target=self._run, name="orchestrator-client", daemon=True)
        self._started: Future[None] = Future()
        self._local = threading.local()

    def start(self) -> None:
        """Start the thread and wait until it takes calls."""
        self._thread.start()
        self._started.result()

    def _run(self) -> None:
        try:
            run_loop(self._serve)
        except BaseException as failure:
            if self._started.done():
                raise
            self._started.set_exception(failure)
        finally:
            with self._lock:
                self._open = False

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._notified = anyio.Event()
        async with anyio.create_task_group() as calls:
            self._open = True
            self._started.set_result(None)
            while True:
                await self._notified.wait()
                self._notified = anyio.Event()
                # Before the calls are taken, because a call may come just before the end.
                ending = not self._open
                # In a task: where `sniffio` is installed, anyio refuses to start one from a bare callback of the loop.
                while self._waiting:
                    context, caller, future, work, args = self._waiting.popleft()
                    context.run(self._start, calls, caller, future, work, args)
                if ending:
                    break
            calls.cancel_scope.cancel()

    def _notify(self) -> None:
        self._notified.set()

    def _start(
        self,
        calls: TaskGroup,
        caller: int,
        future: Future[Any],
        work: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
    ) -> None:
        caller_thread.set(caller)
        calls.start_soon(self._make, future, work, args)

    @property
    def is_foreign(self) -> bool:
        """True in a process that was forked after the thread started."""
        return os.getpid() != self._pid

    def stop(self, timeout_s: float | None = None) -> None:
        """Cancel what still runs, and wait for the end of the thread.

        Args:
            timeout_s: wait no longer than this; None waits as long as it takes.
        """
        if self.is_foreign or self._thread.ident is None:
            return
        with self._lock:
            if self._open:
                self._open = False
                self._loop.call_soon_threadsafe(self._notify)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # ----------------------------------------------------------------------------------------------------- calls

    def call(self, work: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Run `work(*args)` in the loop and wait for it; an interrupt (Ctrl-C) cancels it.

        Raises:
            OrchestratorError: the thread has ended or ends meanwhile, or this is another process.
        """
        future: Future[T] = Future()
        blocks, before = self._blocks, self._blocks.call
        blocks.call = future
        try:
            blocks.check()
            self._hand_over(future, work, *args)
            return future.result()
        except CancelledError:
            blocks.check()
            raise
        except BaseException:
            future.cancel()  # no effect on a future that is done
            raise
        finally:
            blocks.call = before

    @contextmanager
    def hold(self, entering: AbstractAsyncContextManager[T], wrap: Callable[[T], Any]) -> Iterator[Any]:
        """Keep an asynchronous context entered, in one task of the loop, while a block of this thread runs.

        If the context ends early, as a lock that is lost does, the current or the next call of this thread through this
        client raises its error, and so does the end of the block. Python code between two calls cannot be interrupted.
        """
        entered: Future[tuple[T, anyio.Event]] = Future()
        ended: Future[None] = Future()
        blocks = self._blocks

        async def keep() -> None:
            leave = anyio.Event()
            async with entering as value:
                entered.set_result((value, leave))
                await leave.wait()

        def end(_: object) -> None:
            if not entered.done():
                entered.cancel()
            elif blocks.call is not None:
                blocks.call.cancel()

        ended.add_done_callback(end)
        try:
            self._hand_over(ended, keep)
            value, leave = entered.result()
        except CancelledError:
            ended.result()
            raise
        except BaseException:
            ended.cancel()
            raise
        blocks.running.append(ended)
        try:
            yield wrap(value)
        except BaseException:
            self._leave(blocks, ended, leave)
            with suppress(Exception):
                ended.result()
            raise
        self._leave(blocks, ended, leave)
        ended.result()

    @property
    def _blocks(self) -> _Blocks:
        if not hasattr(self._local, "blocks"):
            self._local.blocks = _Blocks()
        blocks: _Blocks = self._local.blocks
        return blocks

    def _leave(self, blocks: _Blocks, ended: Future[None], leave: anyio.Event) -> None:
        blocks.running.remove(ended)
        with suppress(RuntimeError):  # the loop has ended, and the context with it
            self._loop.call_soon_threadsafe(leave.set)

    def iterate(self, source: AsyncIterator[T], *, holding: object) -> Iterator[T]:
        """Run through `source` in the loop; it is closed when this iterator is.

        Args:
            source: what to run through.
            holding: what must not go away meanwhile.
        """
        batches = _Batches[T]()
        reading: Future[None] = Future()
        try:
            self._hand_over(reading, batches.fill, source)
            while items := self.call(batches.take):
                yield from items
        finally:
            reading.cancel()
            del holding

    def _hand_over(self, future: Future[T], work: Callable[[*Args], Awaitable[T]], *args: *Args) -> None:
        if self.is_foreign:
            raise OrchestratorError(
                f"this client was opened by process {self._pid}; a process that was forked from it must open its own"
            )
        if threading.current_thread() is self._thread:
            raise OrchestratorError("this client was called from its own event loop, which would wait for itself")
        with self._lock:
            if not self._open:
                raise OrchestratorError(CLOSED)
            self._waiting.append((copy_context(), threading.get_ident(), future, work, args))
            self._loop.call_soon_threadsafe(self._notify)

    async def _make(self, future: Future[Any], work: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        with anyio.CancelScope() as scope:

            def follow(done: Future[Any]) -> None:
                if done.cancelled() and not self.is_foreign:
                    with suppress(RuntimeError):  # the loop has ended, and this call with it
                        self._loop.call_soon_threadsafe(scope.cancel)

            future.add_done_callback(follow)
            try:
                result = await work(*args)
            except anyio.get_cancelled_exc_class():
                if future.set_running_or_notify_cancel():
                    future.set_exception(OrchestratorError("the client was closed while this call was under way"))
                raise
            except BaseException as failure:  # noqa: BLE001 - it is the caller's
                if future.set_running_or_notify_cancel():
                    future.set_exception(failure)
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(result)


class _Blocks:
    """The contexts that one thread has entered, and its current call."""

    def __init__(self) -> None:
        self.running: list[Future[None]] = []
        self.call: Future[Any] | None = None

    def check(self) -> None:
        for ended in self.running:
            if ended.done():
                ended.result()


class _Batches(Generic[T]):
    """Buffers the items of an async iterator for a thread that takes them in batches."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._ended = False
        self._failure: Exception | None = None
        self._more, self._room = anyio.Event(), anyio.Event()

    async def fill(self, source: AsyncIterator[T]) -> None:
        """Go through `source`, a bounded number of items ahead."""
        try:
            async for item in source:
                self._items.append(item)
                self._more.set()
                if len(self._items) >= AHEAD:
                    self._room = anyio.Event()
                    await self._room.wait()
        except anyio.get_cancelled_exc_class():
            self._failure = OrchestratorError("the client was closed while this call was under way")
            raise
        except Exception as failure:  # noqa: BLE001 - it is the reader's
            self._failure = failure
        finally:
            self._ended = True
            self._more.set()
            if isinstance(source, AsyncGenerator):
                with anyio.CancelScope(shield=True):
                    await source.aclose()

    async def take(self) -> list[T]:
        """Wait for items and take them all; none at the end.

        Raises:
            Exception: what the iterator raised, after its last item.
        """
        while not self._items and not self._ended:
            self._more = anyio.Event()
            await self._more.wait()
        items, self._items = self._items, []
        self._room.set()
        if not items and self._failure is not None:
            raise self._failure
        return items
