"""Application and client of arq, for the peer's interpreter."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from arq import create_pool  # type: ignore[import-not-found]
from arq.connections import RedisSettings  # type: ignore[import-not-found]

from benchmarks.calls import RESULT_TIMEOUT_S, Calls
from benchmarks.payload import note_start, result_of
from benchmarks.peers.app_support import redis_url, use_uvloop, wait_at_gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUIET = {"version": 1, "disable_existing_loggers": False}
# Workers and waiting clients poll, by default every 0.5 s (API reference: `poll_delay` of Worker and of Job.result).
_POLL_S = 0.01
_SETTINGS = RedisSettings.from_dsn(redis_url())
# It uses the loop policy, and its release notes name uvloop; hiredis is among its requirements.
use_uvloop()


async def answer(  # noqa: PLR0917
    ctx: dict[Any, Any],  # noqa: ARG001
    number: int,
    url: str,  # noqa: ARG001
    style: str,  # noqa: ARG001
    sent_ns: int,
    body: str = "",
) -> dict[str, Any]:
    """Return at once; a body goes back as it came."""
    note_start(sent_ns)
    return result_of(number, body)


class WorkerSettings:
    """Settings of the `arq` command; results are kept for an hour by default."""

    functions: ClassVar[list[Any]] = [answer]
    redis_settings = _SETTINGS
    max_jobs = 100
    poll_delay = _POLL_S


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Calls]:
    """Submit by `enqueue_job`; arq has no bulk call."""
    redis = await create_pool(_SETTINGS)

    async def submit(arguments: dict[str, Any]) -> Any:
        return await redis.enqueue_job("answer", **arguments)

    async def result(job: Any) -> None:
        await job.result(timeout=RESULT_TIMEOUT_S, poll_delay=_POLL_S)

    yield Calls(submit, result)
    await redis.aclose()


wait_at_gate()
