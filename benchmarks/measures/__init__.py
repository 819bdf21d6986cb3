"""The measures by name, in the order in which they run; each lives in a module of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.measures import cost, drain, latency, limits, pickup, rest, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.figures import Figure
    from benchmarks.harness import Bench

MEASURES: dict[str, Callable[[Bench], Iterable[Figure]]] = {
    "drain": drain.measure,
    "submit": submit.measure,
    "latency": latency.measure,
    "pickup": pickup.measure,
    "cost": cost.measure,
    "limits": limits.measure,
    "rest": rest.measure,
}
