"""Makes the blocking classes from the asynchronous ones: each call runs in the event loop of the client's thread.

A coroutine becomes a call that blocks, an async iterator an iterator, and `async with` becomes `with`. What a call
returns is wrapped as well, so that `orc.locks().hold("report")` blocks, too. `tools/sync_stub.py` writes the types.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from types import FunctionType, GenericAlias
from typing import TYPE_CHECKING, Any, Final, Self

from orchestrator.agent_state.states import Agents
from orchestrator.boards.boards import Board, BoardView
from orchestrator.chat.chat import Chat
from orchestrator.client.admin import Admin, Sent
from orchestrator.client.client import Orchestrator
from orchestrator.client.flow_handle import FlowHandle
from orchestrator.client.handle import TaskHandle
from orchestrator.client.session import SessionHandle
from orchestrator.client.shared_config import SharedConfig
from orchestrator.client.tasks import Tasks
from orchestrator.core.errors import InvalidInput, NotDurable, OrchestratorError, SubmitRefused
from orchestrator.erasure.subjects import Subjects
from orchestrator.limits.limits import Limits
from orchestrator.locks.named import Lease, Locks
from orchestrator.memory.memory import Memory
from orchestrator.memory.states import StateMemory
from orchestrator.payloads.reference import is_reference
from orchestrator.schedules.api import Schedules
from orchestrator.services import resolve_settings
from orchestrator.simulations.simulation import Simulation
from orchestrator.sync.loop_thread import LoopThread
from orchestrator.workspace.scratch import Scratch
from orchestrator.workspace.workspace import Workspace, WorkspaceView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orchestrator.core.durations import Duration
    from orchestrator.core.settings import Settings
    from orchestrator.tasks.submission import Submission

EXIT_TIMEOUT_S: Final = 2.0
"""An interpreter that ends waits no longer than this for an open client."""

WRAPPED: Final = (
    Orchestrator, TaskHandle, Admin, Sent, Schedules, Locks, Lease, Limits, Agents, Tasks, SharedConfig, BoardView,
    Board, WorkspaceView, Workspace, Scratch, Chat, Simulation, Memory, StateMemory, Subjects, SessionHandle,
    FlowHandle,
)  # fmt: skip
"""Classes with calls that are awaited. A base comes before the classes that derive from it."""

INTERNAL: Final = frozenset({
    "ended", "exclusive_value", "give", "hold_scope", "lose", "note_durability", "parts", "proof", "reacquire",
    "scope", "services", "set_renewal", "submit_one", "waiter", "waiting_in",
})  # fmt: skip
"""Members for worker code, the command line and the modules of a feature."""
WORKER_TYPE: Final = "Parent | None"
"""Type of the arguments that only workers give."""
RENAMED: Final = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}

_WORDS: Final = (
    (re.compile(r"\basync (with|for)\b"), r"\1"),
    (re.compile(r"\bawait "), ""),
    (re.compile("aclose"), "close"),
)


def blocking_doc(text: str) -> str:
    """Return a docstring with its calls written without `await` and `async`."""
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return text


def public_members(asynchronous: type) -> dict[str, Any]:
    """Return the methods and properties of a class that its blocking class has."""
    return {
        name: value
        for name, value in vars(asynchronous).items()
        if not name.startswith("_") and name not in INTERNAL and isinstance(value, property | FunctionType)
    }


class Blocking:
    """Base of the blocking classes. Attributes without a call are read from the asynchronous object."""

    __slots__ = ("__weakref__", "_client", "_inner", "_thread")

    def __init__(self, inner: Any, thread: LoopThread, client: object) -> None:
        self._inner, self._thread = inner, thread
        self._client = client  # an unused client closes

    def __repr__(self) -> str:
        id_ = getattr(self._inner, "id", None)
        return f"{type(self).__name__}({id_!r})" if id_ else repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in INTERNAL:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._wrap(getattr(self._inner, name))

    def _wrap(self, value: Any) -> Any:
        return wrap(value, self._thread, self._client)

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the asynchronous function for this thread and return the blocking form of its result."""
        call = functools.partial(function, *map(_unwrap, args), **{name: _unwrap(kwargs[name]) for name in kwargs})
        if inspect.iscoroutinefunction(function):
            return self._wrap(self._thread.call(call))
        made = call()
        if isinstance(made, AsyncIterator):
            return self._thread.iterate(made, holding=self)
        if isinstance(made, AbstractAsyncContextManager):
            return self._thread.hold(made, self._wrap)
        return self._wrap(made)


class BlockingHandle(Blocking):
    """Overrides of the blocking `TaskHandle`."""

    __slots__ = ()

    def result(self, timeout: Duration | None = None, *, as_: type[Any] | None = None) -> Any:
        """Wait in the loop, and decode in the caller's thread."""
        handle: Any = self._inner
        if handle.outcome is None or handle._told:  # noqa: SLF001 - here and below: the halves of result()
            self._thread.call(handle._end, timeout)  # noqa: SLF001
        # A type of the caller may run any code.
        data = handle._result_data()  # noqa: SLF001
        if is_reference(data):
            data = self._thread.call(handle._parts.services.payloads.load, handle.id, data)  # noqa: SLF001
        return handle._decode(data, as_)  # noqa: SLF001


class BlockingClient(Blocking):
    """Overrides of the blocking `Orchestrator`: its thread, and calls that take or return several handles."""

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: str | None = None,
        prefix: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._settings = resolve_settings(url=url, pool=pool, prefix=prefix, settings=settings)
        super().__init__(Orchestrator(settings=self._settings), LoopThread(), None)
        self._opening = threading.Lock()
        self._finalizer: Any = None

    def open(self) -> Self:
        """Start a thread and open a client in its loop."""
        if not self._opening.acquire(blocking=False):
            raise OrchestratorError("this client is being opened by another thread; open it once")
        try:
            if self._finalizer is not None and not self._thread.is_foreign:
                raise OrchestratorError("this client is open already; close it first")
            thread, client = LoopThread(), Orchestrator(settings=self._settings)
            try:
                thread.start()
                thread.call(client.open)
            except BaseException:
                thread.stop()
                raise
            # A client that is not closed ends with its last reference, or with the interpreter.
            self._finalizer = weakref.finalize(self, thread.stop, EXIT_TIMEOUT_S)
            self._inner, self._thread = client, thread
        finally:
            self._opening.release()
        return self

    def close(self) -> None:
        """Close the client and end its thread."""
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is None or self._thread.is_foreign:
            return
        try:
            self._thread.call(self._inner.aclose)
        finally:
            finalizer.detach()
            self._thread.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return object.__repr__(self)

    def _wrap(self, value: Any) -> Any:
        return wrap(value, self._thread, self)

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._check_open()
        if inspect.iscoroutinefunction(function):
            return super()._run(function, *args, **kwargs)

        async def in_loop() -> Any:
            return function(*args, **kwargs)

        return self._wrap(self._thread.call(in_loop))

    def _check_open(self) -> None:
        if self._finalizer is None:
            raise OrchestratorError("the client is not open; use `with Orchestrator() as orc:` or `orc.open()`")

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Wrap the handle of a task that is less durable than asked."""
        try:
            return self._run(self._inner.submit, *args, **kwargs)
        except NotDurable as missed:
            raise self._wrap_handles(missed) from None

    def submit_many(self, tasks: Iterable[Submission]) -> Any:
        """Read the iterable in the caller's thread, and wrap the handles of a refusal."""
        try:
            return self._run(self._inner.submit_many, list(tasks))
        except SubmitRefused as refused:
            self._wrap_outcomes(refused)
            raise
        except NotDurable as missed:
            raise self._wrap_handles(missed) from None

    def submit_flow(self, *args: Any, **kwargs: Any) -> Any:
        """Wrap the handles of a flow that is less durable than asked, and those of a refusal."""
        try:
            return self._run(self._inner.submit_flow, *args, **kwargs)
        except SubmitRefused as refused:
            self._wrap_outcomes(refused)
            raise
        except NotDurable as missed:
            raise self._wrap_handles(missed) from None

    def _wrap_outcomes(self, refused: SubmitRefused) -> None:
        refused.outcomes = tuple(
            self._wrap_handles(outcome) if isinstance(outcome, NotDurable) else self._wrap(outcome)
            for outcome in refused.outcomes
        )

    def _wrap_handles(self, missed: NotDurable) -> NotDurable:
        missed.handle, missed.handles = self._wrap(missed.handle), tuple(map(self._wrap, missed.handles))
        return missed

    def as_completed(self, handles: Iterable[Blocking], *, timeout: Duration | None = None) -> Iterator[Blocking]:
        """Yield the handles that the caller passed."""
        given: dict[str, Blocking] = {}
        for handle in handles:
            if not isinstance(handle, BlockingHandle):
                raise InvalidInput(f"as_completed takes the handles of tasks, not {type(handle).__name__}")
            given[handle.id] = handle

        async def begin() -> AsyncIterator[TaskHandle[Any]]:
            own: list[TaskHandle[Any]] = [handle._inner for handle in given.values()]  # noqa: SLF001
            return orc.as_completed(own, timeout=timeout)

        self._check_open()
        orc: Orchestrator = self._inner
        ended = self._thread.iterate(self._thread.call(begin), holding=self)
        return (given[handle.id] for handle in ended)


def wrap(value: Any, thread: LoopThread, client: object) -> Any:
    """Return the blocking form of a value: of a wrapped class, or of a list of such objects."""
    if isinstance(value, list):
        return [wrap(item, thread, client) for item in value]
    made = _BLOCKING.get(type(value))
    return value if made is None else made(value, thread, client)


def _unwrap(value: Any) -> Any:
    return value._inner if isinstance(value, Blocking) else value  # noqa: SLF001


def _blocking_class(asynchronous: type, base: type[Blocking], bases: Sequence[type[Blocking]]) -> type[Blocking]:
    members: dict[str, Any] = {
        "__slots__": (),
        "__module__": "orchestrator.sync",
        "__doc__": blocking_doc(asynchronous.__doc__ or ""),
    }
    for name, member in public_members(asynchronous).items():
        own = getattr(base, RENAMED.get(name, name), None)
        members[RENAMED.get(name, name)] = (
            _blocking_property(name, member) if isinstance(member, property) else _blocking_method(name, member, own)
        )
    if hasattr(asynchronous, "__class_getitem__"):
        members["__class_getitem__"] = classmethod(GenericAlias)
    return type(asynchronous.__name__, tuple(bases) or (base,), members)


def _blocking_method(name: str, original: Callable[..., Any], own: Callable[..., Any] | None) -> Callable[..., Any]:
    if own is None:

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._run(getattr(self._inner, name), *args, **kwargs)
    else:

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return own(self, *args, **kwargs)

    made = functools.update_wrapper(method, original, assigned=("__name__", "__annotations__"), updated=())
    del made.__wrapped__
    signature = inspect.signature(original)
    kept = [each for each in signature.parameters.values() if each.annotation != WORKER_TYPE]
    made.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    made.__name__ = RENAMED.get(name, name)
    made.__doc__ = blocking_doc(original.__doc__ or "")
    return made


def _blocking_property(name: str, original: property) -> property:
    def read(self: Any) -> Any:
        return self._run(lambda: getattr(self._inner, name))

    return property(read, doc=blocking_doc(original.__doc__ or ""))


_OVERRIDES: Final[dict[type, type[Blocking]]] = {Orchestrator: BlockingClient, TaskHandle: BlockingHandle}
_BLOCKING: Final[dict[type, type[Blocking]]] = {}
for _class in WRAPPED:
    _bases = [_BLOCKING[base] for base in _class.__bases__ if base in _BLOCKING]
    _BLOCKING[_class] = _blocking_class(_class, _OVERRIDES.get(_class, Blocking), _bases)


CLASSES: Final = {made.__name__: made for made in _BLOCKING.values()}
"""The blocking classes by name."""
