"""The client of the benchmarks; also runs under a peer's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import payload
from orchestrator.bench.measures import TaskClient

if TYPE_CHECKING:
    from collections.abc import Callable

RESULT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Calls(TaskClient):
    """Submits the tasks of the benchmarks; a client without `result` has a `round_trip` of its own."""

    arguments: Callable[[int], dict[str, Any]] = field(
        default_factory=lambda: payload.sized_arguments(payload.size_of_client())
    )
    bulk: int = field(default_factory=lambda: payload.bulk_of(payload.size_of_client()))

    async def submit_stamped(self, number: int) -> None:
        """Submit one task that carries the time."""
        await self.submit(payload.stamped(number))
