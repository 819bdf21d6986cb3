"""Application and client of saq, for the peer's interpreter."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from saq import Queue, Status  # type: ignore[import-not-found]
from saq.job import TERMINAL_STATUSES  # type: ignore[import-not-found]

from benchmarks.calls import RESULT_TIMEOUT_S, Calls
from benchmarks.payload import note_start, result_of
from benchmarks.peers.app_support import redis_url, use_uvloop, wait_at_gate
from orchestrator.bench.measures import CALLERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# It uses the loop policy; hiredis is an extra that its installation page names.
use_uvloop()
# max_concurrent_ops limits concurrent submits to 20 by default (docstring of RedisQueue).
_queue = Queue.from_url(redis_url(), max_concurrent_ops=CALLERS)


async def answer(
    ctx: dict[str, Any],  # noqa: ARG001
    *,
    number: int,
    url: str,  # noqa: ARG001
    style: str,  # noqa: ARG001
    sent_ns: int,
    body: str = "",
) -> dict[str, Any]:
    """Return at once; a body goes back as it came."""
    note_start(sent_ns)
    return result_of(number, body)


# Workers wait in blocking reads and need no tuning; jobs and results are kept for ten minutes by default.
settings = {"queue": _queue, "functions": [answer], "concurrency": 100}


class ListeningCalls(Calls):
    """Waits for a result with a listener that subscribes before the submit.

    `Job.refresh(seconds)` checks first and listens then, so it misses a task that ends in between. `Queue.apply` polls,
    every 0.5 s by default.
    """

    async def round_trip(self, number: int) -> None:
        """Submit one task and wait for its result."""
        key = uuid4().hex
        async with asyncio.TaskGroup() as group:
            group.create_task(_queue.listen([key], _is_last, RESULT_TIMEOUT_S))
            await self.submit({**self.arguments(number), "key": key})
        job = await _queue.job(key)
        assert job is not None
        assert job.result["number"] == number


def _is_last(_: str, status: Status) -> bool:
    return status in TERMINAL_STATUSES


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Calls]:
    """Submit by `enqueue`; saq has no bulk call."""
    await _queue.connect()

    async def submit(arguments: dict[str, Any]) -> Any:
        return await _queue.enqueue("answer", **arguments)

    async with asyncio.TaskGroup() as group:
        # The subscription ends with the last listener, so one listener stays.
        listener = group.create_task(_queue.listen(["none"], _is_last, timeout=None))
        yield ListeningCalls(submit)
        listener.cancel()
    await _queue.disconnect()


wait_at_gate()
