"""When a call to Redis is repeated: policies for tenacity. Only what is safe to send twice may be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
from tenacity import AsyncRetrying, Retrying, retry_if_exception_type, stop_after_delay, stop_never
from tenacity.wait import wait_random_exponential

from orchestrator.core.errors import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

# Full jitter, so that a fleet which lost its server together does not come back together.
_WAIT = wait_random_exponential(multiplier=0.05, max=2.0)


async def repeat(call: Callable[[], Awaitable[T]], *, patience_s: float) -> T:
    """Run `call` until Redis answers, for about `patience_s` seconds (`math.inf`: as long as it takes).

    Raises:
        ServerUnavailable: the last one, when patience ran out.
    """
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(ServerUnavailable),
        wait=_WAIT,
        stop=stop_never if patience_s == float("inf") else stop_after_delay(patience_s),
        sleep=anyio.sleep,
        reraise=True,
    ):
        with attempt:
            return await call()
    raise AssertionError("unreachable: tenacity returns or raises")


def repeat_sync(call: Callable[[], T], *, patience_s: float) -> T:
    """The same for a thread."""
    return Retrying(
        retry=retry_if_exception_type(ServerUnavailable), wait=_WAIT, stop=stop_after_delay(patience_s), reraise=True
    )(call)
