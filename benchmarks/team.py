"""What a measured system must offer, so that one way of measuring serves the raw loop and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from benchmarks.processes import Child


class Client(Protocol):
    """A connected client; each method does one kind of traffic as fast as it goes."""

    async def submit_one_by_one(self, count: int) -> None:
        """Submit tasks, each after the answer to the one before."""

    async def submit_at_once(self, count: int) -> None:
        """Submit tasks with a hundred under way at any moment."""

    async def submit_many(self, count: int) -> None:
        """Submit tasks in calls of a thousand."""

    async def submit_stamped(self, number: int) -> None:
        """Submit one task whose handler notes how long it waited."""

    async def round_trip(self, number: int) -> None:
        """Submit one task and wait for its result."""


class Crew(Protocol):
    """Running processes of a system: those that run handlers, and those that serve them."""

    @property
    def workers(self) -> Sequence[Child]:
        """The processes that run handlers."""

    @property
    def helpers(self) -> Sequence[Child]:
        """The processes that do not, such as a supervisor; they may start with `go`."""

    def go(self) -> None:
        """Let the waiting processes begin."""


class Team(Protocol):
    """A system that stores tasks and runs them."""

    def prepare(self) -> None:
        """Create on the empty server what must be there before the first task."""

    def client(self) -> AbstractAsyncContextManager[Client]:
        """Connect a client."""

    def crew(self, processes: int) -> AbstractContextManager[Crew]:
        """Start worker processes that are ready and wait; they end with the block."""

    def remaining(self) -> int:
        """Count the tasks that are not finished, cheaply enough to be asked a hundred times a second."""
