"""Application and client of streaq, for the peer's interpreter."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import coredis  # type: ignore[import-not-found]
from streaq import Worker  # type: ignore[import-not-found]

from benchmarks.calls import RESULT_TIMEOUT_S, Calls
from benchmarks.payload import note_start, result_of
from benchmarks.peers.app_support import redis_url, wait_at_gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# As in its own benchmarks: the client library without run-time checks, the worker on uvloop.
coredis.Config.optimized = True
worker = Worker(redis_url=redis_url(), concurrency=100, anyio_kwargs={"use_uvloop": True})


# `silent` leaves out two log lines per task; results are kept for five minutes by default.
@worker.task(silent=True)  # type: ignore[untyped-decorator]
async def answer(number: int, url: str, style: str, sent_ns: int, body: str = "") -> dict[str, Any]:  # noqa: ARG001
    """Return at once; a body goes back as it came."""
    note_start(sent_ns)
    return result_of(number, body)


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Calls]:
    """Submit by awaiting `enqueue`, and in bulk by `enqueue_many`, one pipeline a call."""

    async def submit(arguments: dict[str, Any]) -> Any:
        return await answer.enqueue(**arguments)

    async def submit_bulk(many: list[dict[str, Any]]) -> None:
        await worker.enqueue_many([answer.enqueue(**arguments) for arguments in many])

    async def result(task: Any) -> None:
        await task.result(RESULT_TIMEOUT_S)

    async with worker:
        yield Calls(submit, result, submit_bulk)


wait_at_gate()
