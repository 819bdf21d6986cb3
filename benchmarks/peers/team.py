"""A peer as a measured system: its worker processes, and its client in a separate process."""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.payload import SIZE_VARIABLE
from benchmarks.peers.app_support import GATE_VARIABLE, URL_VARIABLE, open_gate, waiting_at
from benchmarks.processes import Child, running, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from benchmarks.harness import Bench
    from benchmarks.peer import InstalledPeer
    from benchmarks.sizes import Sizes

_PASS_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class PeerDriver:
    """Sends commands to the client process, which takes the times."""

    process: Child

    async def load(self, count: int) -> None:
        """Submit tasks as fast as possible."""
        await self._ask("load", count)

    async def submit_rate(self, kind: str, count: int) -> float:
        """Return submits per second of one kind."""
        rate: float = await self._ask("submit_rate", kind, count)
        return rate

    async def round_trips_ms(self, count: int) -> list[float]:
        """Return the times from submit to result of tasks that run one at a time."""
        taken_ms: list[float] = await self._ask("round_trips_ms", count)
        return taken_ms

    async def steady_stream(self, rate_per_s: int, count: int) -> None:
        """Submit stamped tasks at a steady rate."""
        await self._ask("steady_stream", rate_per_s, count)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        ask = partial(self.process.ask, json.dumps([method, *arguments]), timeout_s=_PASS_TIMEOUT_S)
        return json.loads(await anyio.to_thread.run_sync(ask))


@dataclass(frozen=True, slots=True)
class PeerWorkers:
    """Worker processes that wait at a gate."""

    workers: tuple[Child, ...]
    gate: Path
    helpers: tuple[Child, ...] = ()

    def start(self) -> None:
        """Let all workers begin at once."""
        open_gate(self.gate)


@dataclass(frozen=True, slots=True)
class PeerTeam:
    """An installed peer; one command starts each worker process."""

    bench: Bench
    installed: InstalledPeer
    env: Mapping[str, str]

    @property
    def sizes(self) -> Sizes:
        """The peer's share of the sizes."""
        peer = self.installed.peer
        return self.bench.sizes.for_slower(drain=peer.drain_share, submit=peer.submit_share, trip=peer.trip_share)

    @property
    def has_bulk(self) -> bool:
        """True if it has a bulk call."""
        return self.installed.peer.has_bulk

    def prepare(self) -> None:
        """Do nothing: workers and clients create what they need."""

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[PeerDriver]:
        """Start the client process, which connects."""
        peer = self.installed.peer
        with running(
            f"{peer.name}-client",
            ["benchmarks.peers.client", peer.app],
            folder=self.bench.folder,
            env={URL_VARIABLE: self.bench.server.url, SIZE_VARIABLE: str(self.bench.payload_bytes)},
            talks=True,
            python=str(self.installed.python),
            at_once=True,
        ) as process:
            process.hear("ready")
            yield PeerDriver(process)

    @contextlib.contextmanager
    def worker_processes(self, processes: int) -> Iterator[PeerWorkers]:
        """Start the processes and wait until all are at the gate."""
        peer = self.installed.peer
        with contextlib.ExitStack() as stack:
            gate = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.bench.folder)))
            env = {URL_VARIABLE: self.bench.server.url, GATE_VARIABLE: str(gate), **self.env}
            workers = tuple(
                stack.enter_context(
                    running(
                        f"{peer.name}-{number}",
                        peer.worker,
                        folder=self.bench.folder,
                        env=env,
                        python=str(self.installed.python),
                        at_once=True,
                    )
                )
                for number in range(processes)
            )
            wait_until(lambda: waiting_at(gate) == processes, what=f"{processes} workers at the gate", children=workers)
            yield PeerWorkers(workers, gate)

    def remaining(self) -> int:
        """Count the unfinished tasks."""
        return self.installed.peer.remaining(self.bench.meter)
