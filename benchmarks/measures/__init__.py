"""The measures by name, in the order in which they run; each lives in a module of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.measures import cost, drain, latency, limits, peers, pickup, rest, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.figures import Figure
    from benchmarks.harness import Bench

MEASURES: dict[str, Callable[[Bench], Iterable[Figure]]] = {
    "peers": peers.measure,
    "drain": drain.measure,
    "submit": submit.measure,
    "latency": latency.measure,
    "pickup": pickup.measure,
    "cost": cost.measure,
    "limits": limits.measure,
    "rest": rest.measure,
}
# The peers install an environment of their own, so they run only when they are asked for.
BY_DEFAULT = [name for name in MEASURES if name != "peers"]
