"""Writes what a process counts itself: its version, memory and processor time, the delays of its event loop."""

from __future__ import annotations

import platform
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.formats import FORMAT, program_version
from orchestrator.monitoring.catalogue import LAG_BUCKETS_S
from orchestrator.services import count_cache_loads, count_cached_bytes, count_reconnects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.monitoring.exposition import Page

LAG: str = "orc_loop_lag_seconds"


class ProcessCounts(NamedTuple):
    """Counts of a process.

    Attributes:
        reconnects: connections that were opened again.
        cached_bytes: bytes of vectors that it keeps.
        cache_loads: reads of all vectors of a memory.
    """

    reconnects: int
    cached_bytes: int
    cache_loads: int

    @classmethod
    def of_process(cls) -> ProcessCounts:
        """Return the counts of this process."""
        return cls(count_reconnects(), count_cached_bytes(), count_cache_loads())


def add_process(page: Page, role: str, *, silent_loops: int, counts: ProcessCounts | None = None) -> None:
    """Add version, loops, connections and kept vectors of this process, or of several whose counts are given."""
    counts = counts or ProcessCounts.of_process()
    page.add("orc_build_info", 1, program_version(), platform.python_version(), str(FORMAT), role)
    page.add("orc_silent_loops", silent_loops)
    page.add("orc_redis_reconnects_total", counts.reconnects)
    page.add("orc_vector_cache_bytes", counts.cached_bytes)
    page.add("orc_vector_cache_loads_total", counts.cache_loads)


def add_lag(page: Page, counts: Sequence[int], sum_s: float) -> None:
    """Add the delays of an event loop; `counts` are per bucket, the last one is above all ends."""
    below = list(accumulate(counts))
    for end, count in zip((*LAG_BUCKETS_S, "+Inf"), below, strict=True):
        page.add_part(LAG, "_bucket", count, f'le="{end}"')
    page.add_part(LAG, "_sum", round(sum_s, 6))
    page.add_part(LAG, "_count", below[-1])


def standard_metrics(pid: int | None = None) -> bytes:
    """Return the metrics `process_*` that programs have in common; `pid`: of another process."""
    from prometheus_client import generate_latest

    return generate_latest(_registry(pid))


@cache
def _registry(pid: int | None) -> Any:
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry, pid=lambda: pid or "self")
    return registry
