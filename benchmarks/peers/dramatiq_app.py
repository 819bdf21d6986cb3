"""Application and client of dramatiq, for the peer's interpreter."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]
from dramatiq.results import Results  # type: ignore[import-not-found]
from dramatiq.results.backends import RedisBackend  # type: ignore[import-not-found]

from benchmarks.calls import RESULT_TIMEOUT_S, Calls
from benchmarks.payload import note_start, result_of
from benchmarks.peers.app_support import redis_url, wait_at_gate
from orchestrator.bench.measures import CALLERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# The default limit of a hundred connections is too low for a hundred threads and the consumers.
_URL = f"{redis_url()}?max_connections=500"
_broker = RedisBroker(url=_URL)
# Results are off by default and on for the comparison, with their default lifetime of ten minutes.
_results = RedisBackend(url=_URL)
_broker.add_middleware(Results(backend=_results, store_results=True))
dramatiq.set_broker(_broker)


@dramatiq.actor  # type: ignore[untyped-decorator]
def answer(number: int, url: str, style: str, sent_ns: int, body: str = "") -> dict[str, Any]:  # noqa: ARG001
    """Return at once; a body goes back as it came."""
    note_start(sent_ns)
    return result_of(number, body)


class ThreadedCalls(Calls):
    """Uses a thread per caller, because the client is synchronous."""

    async def submit_at_once(self, count: int) -> None:
        """Submit tasks from a hundred threads."""
        with ThreadPoolExecutor(CALLERS) as threads:
            for _ in threads.map(lambda number: answer.send(**self.arguments(number)), range(count)):
                pass


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Calls]:
    """Submit by `send`; dramatiq has no bulk call."""

    async def submit(arguments: dict[str, Any]) -> Any:
        return answer.send(**arguments)

    async def result(message: Any) -> None:
        message.get_result(backend=_results, block=True, timeout=RESULT_TIMEOUT_S * 1000)

    yield ThreadedCalls(submit, result)


wait_at_gate()
