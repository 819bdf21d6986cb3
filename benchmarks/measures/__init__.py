"""The measures by name, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.measures import (
    blocked,
    cost,
    delivery,
    dispatch,
    drain,
    durability,
    lanes,
    latency,
    limits,
    limits_by_name,
    locks,
    moved,
    pickup,
    recovery,
    rest,
    scale,
    scrape,
    sessions,
    shared_state,
    submit,
    tracing,
)

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
    "lanes": lanes.measure,
    "sessions": sessions.measure,
    "locks": locks.measure,
    "shared-state": shared_state.measure,
    "delivery": delivery.measure,
    "limits-by-name": limits_by_name.measure,
    "rest": rest.measure,
    "scrape": scrape.measure,
    "tracing": tracing.measure,
    "recovery": recovery.measure,
    "moved": moved.measure,
    "scale": scale.measure,
    "blocked": blocked.measure,
    "dispatch": dispatch.measure,
    "durability": durability.measure,
}
# Only on request, because they take minutes.
ON_REQUEST = {"scale", "blocked", "dispatch", "durability"}
BY_DEFAULT = [name for name in MEASURES if name not in ON_REQUEST]
