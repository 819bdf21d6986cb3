"""The measures by name, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.measures import (
    agents,
    blocked,
    chat,
    cost,
    delivery,
    dispatch,
    drain,
    durability,
    ended,
    fleet,
    handler_processes,
    lanes,
    latency,
    limits,
    limits_by_name,
    locks,
    memory,
    moved,
    payload_sizes,
    pickup,
    recovery,
    rest,
    scale,
    scrape,
    sessions,
    shared_state,
    steady,
    submit,
    tracing,
    vectors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.figures import Figure
    from benchmarks.harness import Bench

MEASURES: dict[str, Callable[[Bench], Iterable[Figure]]] = {
    "drain": drain.measure,
    "submit": submit.measure,
    "latency": latency.measure,
    "steady": steady.measure,
    "cost": cost.measure,
    "ended": ended.measure,
    "payload-sizes": payload_sizes.measure,
    "pickup": pickup.measure,
    "limits": limits.measure,
    "lanes": lanes.measure,
    "sessions": sessions.measure,
    "locks": locks.measure,
    "shared-state": shared_state.measure,
    "chat": chat.measure,
    "memory": memory.measure,
    "vectors": vectors.measure,
    "delivery": delivery.measure,
    "limits-by-name": limits_by_name.measure,
    "processes": handler_processes.measure,
    "rest": rest.measure,
    "agents": agents.measure,
    "scrape": scrape.measure,
    "tracing": tracing.measure,
    "recovery": recovery.measure,
    "crowds": recovery.measure_crowds,
    "moved": moved.measure,
    "scale": scale.measure,
    "blocked": blocked.measure,
    "dispatch": dispatch.measure,
    "durability": durability.measure,
    "fleet": fleet.measure,
}
# Only on request, because they take minutes.
ON_REQUEST = {"vectors", "crowds", "scale", "blocked", "dispatch", "durability", "fleet"}
BY_DEFAULT = [name for name in MEASURES if name not in ON_REQUEST]
MAIN = ("drain", "submit", "latency", "cost", "ended", "payload-sizes")
"""Also measured on a server with its own defaults, unless the run names its measures."""
