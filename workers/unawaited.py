"""Notices calls of a context that a handler made without `await`, so that they did nothing."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import CodeType

PRUNE_FROM: Final = 256
"""Calls from which on those that have begun are forgotten, each time that their number has doubled."""

Call = tuple["Coroutine[Any, Any, Any]", str, "CodeType", int]
Method = TypeVar("Method", bound=Callable[..., Any])


class NotAwaited(Exception):
    """A handler has returned, and did not await a call of its context."""

    def __init__(self, name: str, path: str, line: int, *, more: int = 0) -> None:
        others = f", and {more} more such call{'s' * (more > 1)}" if more else ""
        super().__init__(
            f"ctx.{name}() was called without await, so that it did nothing{others}; write `await ctx.{name}(...)`"
        )
        self.path, self.line = path, line


class _Caller(Protocol):
    _calls: list[Call] | None


def noticed(method: Method) -> Method:
    """Record the calls of an `async` method of the context, for `take_unawaited`."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: _Caller, *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        coroutine: Coroutine[Any, Any, Any] = method(self, *args, **options)
        calls = self._calls
        if calls is None:
            calls = self._calls = []
        elif (count := len(calls)) >= PRUNE_FROM and count & (count - 1) == 0:
            calls[:] = [one for one in calls if _waits(one)]
        caller = sys._getframe(1)  # noqa: SLF001 - `inspect.stack` reads source files
        calls.append((coroutine, name, caller.f_code, caller.f_lineno))
        return coroutine

    if (mark := getattr(inspect, "markcoroutinefunction", None)) is not None:  # Python 3.12
        mark(call)
    return cast("Method", call)


def any_waits(calls: list[Call]) -> bool:
    """Return whether a call has not begun; a task that the handler started for it may be about to."""
    return any(map(_waits, calls))


def take_unawaited(calls: list[Call]) -> NotAwaited | None:
    """Return the failure of a handler that has returned; None if each call has begun.

    It closes the others, so that Python does not warn of them too.
    """
    forgotten = [one for one in calls if _waits(one)]
    calls.clear()
    if not forgotten:
        return None
    for coroutine, *_ in forgotten:
        coroutine.close()
    _, name, code, line = forgotten[0]
    return NotAwaited(name, code.co_filename, line, more=len(forgotten) - 1)


def _waits(call: Call) -> bool:
    return inspect.getcoroutinestate(call[0]) == inspect.CORO_CREATED
