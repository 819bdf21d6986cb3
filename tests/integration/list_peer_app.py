"""A stand-in for a peer, on one Redis list: its application, its client and its worker process.

It is driven the way peers are, so the way itself can be tested without installing one.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import redis
import redis.asyncio

from benchmarks.calls import RESULT_TIMEOUT_S, Calls
from benchmarks.payload import note_start
from benchmarks.peers.app_support import redis_url, wait_at_gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUEUE, LEFT = "list-peer:queue", "list-peer:left"


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Calls]:
    """Submit by pushing; a task without a reply list of its own is never waited for."""
    client: Any = redis.asyncio.Redis.from_url(redis_url())

    async def submit(arguments: dict[str, Any]) -> str:
        reply = uuid4().hex
        pipe = client.pipeline(transaction=False)
        await pipe.incr(LEFT).rpush(QUEUE, json.dumps({**arguments, "reply": reply})).execute()
        return reply

    async def result(reply: str) -> None:
        assert await client.blpop([reply], timeout=RESULT_TIMEOUT_S)

    yield Calls(submit, result)
    await client.aclose()


def main() -> None:
    """Work until killed."""
    wait_at_gate()
    client: Any = redis.Redis.from_url(redis_url())
    while True:
        task = json.loads(client.blpop([QUEUE])[1])
        note_start(task["sent_ns"])
        pipe = client.pipeline(transaction=False)
        pipe.rpush(task["reply"], "done").decr(LEFT).execute()


if __name__ == "__main__":
    main()
