"""The fastest peer's application and its client; runs under the peer's own interpreter, never under ours.

`ardiq run benchmarks.peers.ardiq_app:app` works; `python -m benchmarks.peers.ardiq_app KIND COUNT` is one client pass,
whose answer is one line of JSON: submits per second, or milliseconds from submit to result.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from ardiq import Ardiq  # type: ignore[import-not-found]

from benchmarks.payload import RESULT, arguments

_AT_ONCE = 100
_MANY = 1000
_WARM_UP = 20
_BREATH_S = 0.005

app = Ardiq(os.environ["BENCH_REDIS_URL"], concurrency=100)


@app.task  # type: ignore[untyped-decorator]
async def answer(number: int, url: str, style: str, sent_ns: int) -> dict[str, Any]:  # noqa: ARG001
    """Return at once."""
    return {**RESULT, "number": number}


async def one_by_one(count: int) -> None:
    """Submit tasks, each after the answer to the one before."""
    for number in range(count):
        await answer.enqueue(**arguments(number))


async def at_once(count: int) -> None:
    """Submit tasks from a hundred callers."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await answer.enqueue(**arguments(number))

    await asyncio.gather(*(caller() for _ in range(_AT_ONCE)))


async def many(count: int) -> None:
    """Submit tasks in calls of a thousand."""
    for start in range(0, count, _MANY):
        await app.enqueue_many([answer.prepare(**arguments(number)) for number in range(start, start + _MANY)])


async def round_trips(count: int) -> list[float]:
    """Submit tasks one at a time and wait for each result."""
    taken_ms = []
    for number in range(_WARM_UP + count):
        await asyncio.sleep(_BREATH_S)
        started_s = time.perf_counter()
        job = await answer.enqueue(**arguments(number))
        await job.result(timeout=10)
        taken_ms.append((time.perf_counter() - started_s) * 1000)
    return taken_ms[_WARM_UP:]


async def _client(kind: str, count: int) -> float | list[float]:
    if kind == "round_trips":
        return await round_trips(count)
    submit = {"one_by_one": one_by_one, "at_once": at_once, "many": many}[kind]
    await one_by_one(_WARM_UP)
    started_s = time.perf_counter()
    await submit(count)
    return count / (time.perf_counter() - started_s)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_client(sys.argv[1], int(sys.argv[2])))) + "\n")
    sys.stdout.flush()
    # The core's threads may crash an interpreter that is being taken down; the peer's command line leaves this way too.
    os._exit(0)
