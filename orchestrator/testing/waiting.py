"""Polls a condition; the timeout error names it."""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, TypeVar, overload

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

POLL_S = 0.005


def wait_until(
    predicate: Callable[[], T], describe: str | Callable[[], str], timeout_s: float = 5.0, *, poll_s: float = POLL_S
) -> T:
    """Poll until `predicate` is true and return what it returned; for code without an event loop.

    Args:
        predicate: cheap and free of effects.
        describe: what is awaited, for the error; a callable is asked at the end, so it may tell the last state seen.
        timeout_s: after this long the wait fails.
        poll_s: pause between two looks.

    Raises:
        TimeoutError: the condition did not come true.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline_s:
            raise TimeoutError(_message(describe, timeout_s))
        time.sleep(poll_s)


@overload
async def wait_for(
    predicate: Callable[[], Awaitable[T]],
    describe: str | Callable[[], str],
    timeout_s: float = ...,
    *,
    poll_s: float = ...,
) -> T: ...


@overload
async def wait_for(
    predicate: Callable[[], T],
    describe: str | Callable[[], str],
    timeout_s: float = ...,
    *,
    poll_s: float = ...,
) -> T: ...


async def wait_for(
    predicate: Callable[[], object],
    describe: str | Callable[[], str],
    timeout_s: float = 5.0,
    *,
    poll_s: float = POLL_S,
) -> object:
    """Poll until `predicate`, which may be async, is true and return what it returned; see `wait_until`."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = predicate()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() >= deadline_s:
            raise TimeoutError(_message(describe, timeout_s))
        await anyio.sleep(poll_s)


def _message(describe: str | Callable[[], str], timeout_s: float) -> str:
    awaited = describe if isinstance(describe, str) else describe()
    return f"waited {timeout_s:g} s in vain for: {awaited}"
