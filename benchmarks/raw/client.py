"""The client side of the raw loop: XADD one by one or in pipelines, and waiting for one result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.payload import arguments, stamped
from benchmarks.raw.stream import BATCH, FIELD, STREAM, reply_key

_MANY = 1000
_RESULT_TIMEOUT_S = 10
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class RawClient:
    """Appends to the stream with plain commands."""

    redis: Any  # the stubs mix awaitable commands with the commands of a pipeline

    async def submit_one_by_one(self, count: int) -> None:
        """Append tasks, each after the answer to the one before."""
        for number in range(count):
            await self._add(arguments(number))

    async def submit_at_once(self, count: int) -> None:
        """Append tasks in pipelines of a hundred, the cheapest way for a hundred at once."""
        await self._add_in_batches(count, batch=BATCH)

    async def submit_many(self, count: int) -> None:
        """Append tasks in pipelines of a thousand."""
        await self._add_in_batches(count, batch=_MANY)

    async def submit_stamped(self, number: int) -> None:
        """Append one task that carries the time."""
        await self._add(stamped(number))

    async def round_trip(self, number: int) -> None:
        """Append one task and wait for its result."""
        entry_id = await self._add(arguments(number))
        answer = await self.redis.blpop([reply_key(entry_id)], timeout=_RESULT_TIMEOUT_S)
        if answer is None:
            raise TimeoutError(f"No result for {entry_id!r} within {_RESULT_TIMEOUT_S} s.")

    async def _add(self, args: dict[str, Any]) -> bytes:
        entry_id: bytes = await self.redis.xadd(STREAM, {FIELD: _encode(args)})
        return entry_id

    async def _add_in_batches(self, count: int, *, batch: int) -> None:
        for start in range(0, count, batch):
            pipe = self.redis.pipeline(transaction=False)
            for number in range(start, min(start + batch, count)):
                pipe.xadd(STREAM, {FIELD: _encode(arguments(number))})
            await pipe.execute()
