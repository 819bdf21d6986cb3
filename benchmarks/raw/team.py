"""The raw loop as a system that can be measured like ours."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from benchmarks.processes import Child, running
from benchmarks.raw.client import RawClient
from benchmarks.raw.stream import GROUP, STREAM
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
    """One stream, one group, and as many readers as there are processes."""

    bench: Bench
    with_results: bool = True
    env: Mapping[str, str] | None = None
    has_bulk: bool = True

    @property
    def sizes(self) -> Sizes:
        """All of it."""
        return self.bench.sizes

    def prepare(self) -> None:
        """Create the stream and its group."""
        self.bench.meter.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[LocalDriver]:
        """Connect."""
        # The library's own bound of a hundred would end a steady stream whenever the machine stalls for a moment.
        async with Redis.from_url(self.bench.server.url, max_connections=_MAX_CONNECTIONS) as redis:
            yield LocalDriver(RawClient(redis))

    @contextlib.contextmanager
    def worker_processes(self, processes: int) -> Iterator[RawWorkers]:
        """Start the readers; each waits for its signal."""
        with contextlib.ExitStack() as stack:
            workers = tuple(stack.enter_context(self._worker(f"raw-worker-{number}")) for number in range(processes))
            for worker in workers:
                worker.hear("ready")
            yield RawWorkers(workers)

    def remaining(self) -> int:
        """Count the entries; a finished one is deleted."""
        return self.bench.meter.xlen(STREAM)

    def _worker(self, name: str) -> contextlib.AbstractContextManager[Child]:
        arguments = ["benchmarks.raw.worker", self.bench.server.url, "--name", name]
        if self.with_results:
            arguments.append("--with-results")
        return running(name, arguments, folder=self.bench.folder, env=self.env, talks=True)
