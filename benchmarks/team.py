"""What a measured system must offer, so that one way of measuring serves the raw loop, the peers and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from benchmarks.processes import Child
    from benchmarks.sizes import Sizes


class Client(Protocol):
    """A connected client; each method does one kind of traffic as fast as it goes."""

    async def submit_one_by_one(self, count: int) -> None:
        """Submit tasks, each after the answer to the one before."""

    async def submit_at_once(self, count: int) -> None:
        """Submit tasks with a hundred under way at any moment."""

    async def submit_many(self, count: int) -> None:
        """Submit tasks in calls of a thousand, or the next best way that there is."""

    def submit_stamped(self, number: int) -> Coroutine[None, None, None]:
        """Submit one task whose handler notes how long it waited."""

    async def round_trip(self, number: int) -> None:
        """Submit one task and wait for its result."""


class Driver(Protocol):
    """Makes traffic with a client, which may live in another process, and times it there."""

    async def load(self, count: int) -> None:
        """Submit tasks as fast as the client can."""

    async def submit_rate(self, kind: str, count: int) -> float:
        """Submits per second of one kind of traffic."""

    async def round_trips_ms(self, count: int) -> list[float]:
        """Time from submit to result of tasks that come one at a time."""

    async def steady_stream(self, rate_per_s: int, count: int) -> None:
        """Submit stamped tasks at a steady rate, whatever the answers do."""


class WorkerProcesses(Protocol):
    """Running processes of a system: those that run handlers, and those that serve them."""

    @property
    def workers(self) -> Sequence[Child]:
        """The processes that run handlers."""

    @property
    def helpers(self) -> Sequence[Child]:
        """The processes that do not, such as a supervisor; they may start with `start`."""

    def start(self) -> None:
        """Let the waiting processes begin."""


class Team(Protocol):
    """A system that stores tasks and runs them."""

    @property
    def sizes(self) -> Sizes:
        """How much is asked of this system; a slow one is asked less, so that its passes take no longer."""

    @property
    def has_bulk(self) -> bool:
        """Whether one call submits many tasks."""

    def prepare(self) -> None:
        """Create on the empty server what must be there before the first task."""

    def client(self) -> AbstractAsyncContextManager[Driver]:
        """Connect a client."""

    def worker_processes(self, processes: int) -> AbstractContextManager[WorkerProcesses]:
        """Start worker processes that are ready and wait; they end with the block."""

    def remaining(self) -> int:
        """Count the tasks that are not finished, cheaply enough to be asked a hundred times a second."""
