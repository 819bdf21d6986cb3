"""One worker process of the raw loop: reads a batch, runs the handlers, writes results, acknowledges, deletes.

Started as `python -m benchmarks.raw.worker`; prints "ready", and starts on the first line of its input.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import anyio
import msgspec
from redis.asyncio import Redis

from benchmarks.payload import note_start, result_of
from benchmarks.raw.stream import BATCH, FIELD, GROUP, INLINE_BYTES, RESULT_TTL_S, STREAM, reply_key, result_key
from orchestrator.core.event_loop import run_loop

_BLOCK_MS = 5000
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


async def _handle(number: int, sent_ns: int, body: str = "", **_: Any) -> dict[str, Any]:
    note_start(sent_ns)
    return result_of(number, body)


async def _run_one(fields: dict[bytes, bytes]) -> bytes:
    return _encode(await _handle(**_decode(fields[FIELD])))


async def serve(url: str, *, name: str, with_results: bool) -> None:
    """Serve until killed; reads and writes alternate on one connection."""
    redis: Any = Redis.from_url(url, socket_timeout=None)  # the stubs mix the replies of all protocol versions
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await anyio.to_thread.run_sync(sys.stdin.readline)
    while True:
        reply = await redis.xreadgroup(GROUP, name, {STREAM: ">"}, count=BATCH, block=_BLOCK_MS)
        if not reply:
            continue
        entries = reply[0][1]
        # A batch runs concurrently, as it would with handlers that wait.
        bodies = await asyncio.gather(*(_run_one(fields) for _, fields in entries))
        pipe = redis.pipeline(transaction=False)
        if with_results:
            for (entry_id, _), body in zip(entries, bodies, strict=True):
                pipe.set(result_key(entry_id), body, ex=RESULT_TTL_S)
                pipe.lpush(reply_key(entry_id), body if len(body) <= INLINE_BYTES else b"")
                pipe.expire(reply_key(entry_id), RESULT_TTL_S)
        entry_ids = [entry_id for entry_id, _ in entries]
        pipe.xack(STREAM, GROUP, *entry_ids)
        pipe.xdel(STREAM, *entry_ids)
        await pipe.execute()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--name", required=True)
    parser.add_argument("--with-results", action="store_true")
    options = parser.parse_args()

    async def run() -> None:
        await serve(options.url, name=options.name, with_results=options.with_results)

    run_loop(run)


if __name__ == "__main__":
    main()
