"""Repeats calls to Redis while it does not answer. Callers pass only calls that are safe to send twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from orchestrator.core.backoff import QuickRetries
from orchestrator.core.errors import ServerUnavailable, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

T = TypeVar("T")

# tenacity is imported by the first retry, because a command that needs none ends sooner.


def make_wait() -> Callable[[RetryCallState], float]:
    """Return the pauses of one call."""
    from tenacity.wait import wait_random_exponential

    # Full jitter, so that the processes that lost a server together do not come back together.
    quick, backoff = QuickRetries(), wait_random_exponential(multiplier=0.05, max=2.0)

    def wait(state: RetryCallState) -> float:
        return quick.shorten(backoff(state), state.outcome.exception() if state.outcome is not None else None)

    return wait


async def repeat(
    call: Callable[[], Awaitable[T]],
    *,
    retry_for_s: float,
    after: ServerUnavailable | None = None,
    closed: anyio.Event | None = None,
    interrupt: Callable[[], anyio.Event] | None = None,
) -> T:
    """Run `call` until Redis answers, for about `retry_for_s` seconds (`math.inf`: without end).

    Args:
        call: runs one try.
        retry_for_s: time limit.
        after: failure of a first try that the caller has made.
        closed: stops retries when set.
        interrupt: returns an event that ends the present pause.

    Raises:
        StoreError: the last failure; its outcome is unknown if that of any try is.
    """
    from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, stop_never

    unknown = after is not None and after.outcome_unknown
    ended = closed or anyio.Event()

    async def pause(seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await (interrupt() if interrupt is not None else ended).wait()

    async for attempt in AsyncRetrying(
        retry=retry_if_exception(lambda failure: isinstance(failure, ServerUnavailable) and not ended.is_set()),
        wait=make_wait(),
        stop=stop_never if retry_for_s == float("inf") else stop_after_delay(retry_for_s),
        sleep=pause,
        reraise=True,
    ):
        with attempt:
            try:
                return await call()
            except StoreError as failure:
                # A refused try does not tell the outcome of an earlier try whose reply was lost.
                unknown = failure.outcome_unknown = unknown or failure.outcome_unknown
                raise
    raise AssertionError("unreachable: tenacity returns or raises")


def repeat_sync(call: Callable[[], T], *, retry_for_s: float) -> T:
    """Run `call` in a thread until Redis answers, for about `retry_for_s` seconds."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay

    return Retrying(
        retry=retry_if_exception_type(ServerUnavailable),
        wait=make_wait(),
        stop=stop_after_delay(retry_for_s),
        reraise=True,
    )(call)
