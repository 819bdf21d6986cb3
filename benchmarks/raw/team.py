"""The raw loop as a measured system."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from redis.asyncio import Redis

from benchmarks.payload import bulk_of, sized_arguments, stamped
from benchmarks.processes import Child, running
from benchmarks.raw.stream import BATCH, FIELD, GROUP, STREAM, reply_key, result_key
from benchmarks.traffic import LocalDriver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from benchmarks.harness import Bench
    from benchmarks.sizes import Sizes

_MAX_CONNECTIONS = 1000


@dataclass(frozen=True, slots=True)
class RawWorkers:
    """Raw workers that wait for their signal."""

    workers: tuple[Child, ...]
    helpers: tuple[Child, ...] = ()

    def start(self) -> None:
        """Let all workers begin at once."""
        for worker in self.workers:
            worker.say("go")


@dataclass(frozen=True, slots=True)
class RawTeam:
    """One stream, one group, and one reader per process."""

    bench: Bench
    with_results: bool = True
    env: Mapping[str, str] | None = None
    has_bulk: bool = True

    @property
    def sizes(self) -> Sizes:
        """The sizes of the run."""
        return self.bench.sizes

    def prepare(self) -> None:
        """Create the stream and its group."""
        self.bench.meter.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[LocalDriver]:
        """Connect."""
        # The library's limit of a hundred would break a steady stream when the machine stalls for a moment.
        async with Redis.from_url(self.bench.server.url, max_connections=_MAX_CONNECTIONS) as redis:
            yield LocalDriver(RawClient(redis, self.bench.payload_bytes))

    @contextlib.contextmanager
    def worker_processes(self, processes: int) -> Iterator[RawWorkers]:
        """Start the readers; each waits for its signal."""
        with contextlib.ExitStack() as stack:
            workers = tuple(stack.enter_context(self._worker(f"raw-worker-{number}")) for number in range(processes))
            for worker in workers:
                worker.hear("ready")
            yield RawWorkers(workers)

    def remaining(self) -> int:
        """Count the entries; finished ones are deleted."""
        return self.bench.meter.xlen(STREAM)

    def _worker(self, name: str) -> contextlib.AbstractContextManager[Child]:
        arguments = ["benchmarks.raw.worker", self.bench.server.url, "--name", name]
        if self.with_results:
            arguments.append("--with-results")
        return running(name, arguments, folder=self.bench.folder, env=self.env, talks=True)


_RESULT_TIMEOUT_S = 10
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class RawClient:
    """Appends to the stream with plain commands."""

    redis: Any  # the stubs mix awaitable commands with the commands of a pipeline
    payload_bytes: int = 0

    async def submit_one_by_one(self, count: int) -> None:
        """Append tasks, each after the answer to the one before."""
        for number in range(count):
            await self._add(self._arguments(number))

    async def submit_at_once(self, count: int) -> None:
        """Append tasks in pipelines of a hundred."""
        await self._add_in_batches(count, batch=BATCH)

    async def submit_many(self, count: int) -> None:
        """Append tasks in pipelines as long as the bulk calls of the other systems."""
        await self._add_in_batches(count, batch=bulk_of(self.payload_bytes))

    async def submit_stamped(self, number: int) -> None:
        """Append one task that carries the time."""
        await self._add(stamped(number))

    async def round_trip(self, number: int) -> None:
        """Append one task and wait for its result."""
        entry_id = await self._add(self._arguments(number))
        answer = await self.redis.blpop([reply_key(entry_id)], timeout=_RESULT_TIMEOUT_S)
        if answer is None:
            raise TimeoutError(f"No result for {entry_id!r} within {_RESULT_TIMEOUT_S} s.")
        if not answer[1]:
            await self.redis.get(result_key(entry_id))

    def _arguments(self, number: int) -> dict[str, Any]:
        return sized_arguments(self.payload_bytes)(number)

    async def _add(self, args: dict[str, Any]) -> bytes:
        entry_id: bytes = await self.redis.xadd(STREAM, {FIELD: _encode(args)})
        return entry_id

    async def _add_in_batches(self, count: int, *, batch: int) -> None:
        for start in range(0, count, batch):
            pipe = self.redis.pipeline(transaction=False)
            for number in range(start, min(start + batch, count)):
                pipe.xadd(STREAM, {FIELD: _encode(self._arguments(number))})
            await pipe.execute()
