"""Application and client of ardiq, for the peer's interpreter."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ardiq import Ardiq  # type: ignore[import-not-found]

from benchmarks.calls import RESULT_TIMEOUT_S, Calls
from benchmarks.payload import note_start, result_of
from benchmarks.peers.app_support import redis_url, use_uvloop, wait_at_gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Its command line uses the loop policy; the core handles the traffic to Redis.
use_uvloop()
# Its documentation recommends a prefetch of twice the concurrency; reads block, so no interval is tuned.
app = Ardiq(redis_url(), concurrency=100)


@app.task  # type: ignore[untyped-decorator]
async def answer(number: int, url: str, style: str, sent_ns: int, body: str = "") -> dict[str, Any]:  # noqa: ARG001
    """Return at once; a body goes back as it came."""
    note_start(sent_ns)
    return result_of(number, body)


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Calls]:
    """Submit by `enqueue`, and in bulk by `enqueue_many`, one round trip a call."""

    async def submit(arguments: dict[str, Any]) -> Any:
        return await answer.enqueue(**arguments)

    async def submit_bulk(many: list[dict[str, Any]]) -> None:
        await app.enqueue_many([answer.prepare(**arguments) for arguments in many])

    async def result(job: Any) -> None:
        await job.result(timeout=RESULT_TIMEOUT_S)

    yield Calls(submit, result, submit_bulk)


wait_at_gate()
