"""Protocol of a measured system, so that the raw loop, the peers and ours share the measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from benchmarks.processes import Child
    from benchmarks.sizes import Sizes


class Client(Protocol):
    """A connected client; each method makes one kind of traffic."""

    async def submit_one_by_one(self, count: int) -> None:
        """Submit tasks, each after the answer to the one before."""

    async def submit_at_once(self, count: int) -> None:
        """Submit tasks with a hundred in flight."""

    async def submit_many(self, count: int) -> None:
        """Submit tasks in calls of a thousand, or the closest that the system has."""

    def submit_stamped(self, number: int) -> Coroutine[None, None, None]:
        """Submit one task whose handler records its waiting time."""

    async def round_trip(self, number: int) -> None:
        """Submit one task and wait for its result."""


class Driver(Protocol):
    """Makes and times traffic with a client, which may run in another process."""

    async def load(self, count: int) -> None:
        """Submit tasks as fast as possible."""

    async def submit_rate(self, kind: str, count: int) -> float:
        """Return submits per second of one kind of traffic."""

    async def round_trips_ms(self, count: int) -> list[float]:
        """Return the times from submit to result of tasks that run one at a time."""

    async def steady_stream(self, rate_per_s: int, count: int) -> None:
        """Submit stamped tasks at a steady rate, independent of results."""


class WorkerProcesses(Protocol):
    """Running processes of a system."""

    @property
    def workers(self) -> Sequence[Child]:
        """Processes that run handlers."""

    @property
    def helpers(self) -> Sequence[Child]:
        """Other processes, such as a supervisor; `start` may start them."""

    def start(self) -> None:
        """Let the waiting processes begin."""


class Team(Protocol):
    """A system that stores tasks and runs them."""

    @property
    def sizes(self) -> Sizes:
        """Sizes for this system; a slow system gets smaller ones."""

    @property
    def has_bulk(self) -> bool:
        """True if one call submits many tasks."""

    def prepare(self) -> None:
        """Create the keys that must exist before the first task."""

    def client(self) -> AbstractAsyncContextManager[Driver]:
        """Connect a client."""

    def worker_processes(self, processes: int) -> AbstractContextManager[WorkerProcesses]:
        """Start worker processes that are ready and wait; they end with the block."""

    def remaining(self) -> int:
        """Count the unfinished tasks, cheaply enough for a hundred calls a second."""
