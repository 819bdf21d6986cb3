"""Cost of tracing: of the check in a process that does not trace, and of the spans of a drain and of submits."""

from __future__ import annotations

import contextlib
import sys
import timeit
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.drains import drain
from benchmarks.figures import Figure, figure_of
from benchmarks.goals import at_most
from benchmarks.ours.agents import SPANS_VARIABLE
from benchmarks.ours.spans import DroppingExporter, with_spans
from benchmarks.ours.team import OurTeam
from benchmarks.traffic_runs import submit_rate
from orchestrator.bench.measures import MANY, ONE_BY_ONE
from orchestrator.tracing.active import active

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from benchmarks.harness import Bench
    from benchmarks.server_cost import Drain
    from benchmarks.traffic import LocalDriver

_CHECKS = 200_000
_NS, _US = 1e9, 1e6
_API = "opentelemetry.trace"


@dataclass(frozen=True, slots=True)
class TracedTeam(OurTeam):
    """The same team with spans in the client; `env` switches them on in the workers."""

    provider: TracerProvider | None = None

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[LocalDriver]:
        """Connect."""
        with with_spans(self.provider):
            async with OurTeam.client(self) as driver:
                yield driver


def measure(bench: Bench) -> Iterator[Figure]:
    """Compare the same team with and without spans, in turns."""
    with with_spans(None):
        loaded = _check_ns()
        api = sys.modules.pop(_API)
        try:
            absent = _check_ns()
        finally:
            sys.modules[_API] = api
    yield figure_of("tracing", "check without OpenTelemetry", "ns", [absent], goals=(at_most(500),))
    yield figure_of("tracing", "check without a tracer provider", "ns", [loaded], goals=(at_most(1000),))
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(DroppingExporter()))
    try:
        yield from _with_and_without(bench, provider)
    finally:
        provider.shutdown()


def _with_and_without(bench: Bench, provider: TracerProvider) -> Iterator[Figure]:
    plain, traced = OurTeam(bench), TracedTeam(bench, env={SPANS_VARIABLE: "1"}, provider=provider)
    drains: dict[str, list[Drain]] = bench.in_turns(
        {name: partial(drain, bench, team, processes=1) for name, team in (("plain", plain), ("traced", traced))}
    )
    rates = {name: [one.rate_per_s for one in runs] for name, runs in drains.items()}
    yield figure_of("tracing", "drain with spans", "tasks/s", rates["traced"], rates["plain"])
    cpu = {name: [one.worker_cpu_s / one.timed_tasks * _US for one in runs] for name, runs in drains.items()}
    yield figure_of("tracing", "worker CPU per task with spans", "µs", cpu["traced"], cpu["plain"])
    yield figure_of("tracing", "worker CPU per task without spans", "µs", cpu["plain"])
    for kind in (ONE_BY_ONE, MANY):
        submits: dict[str, list[float]] = bench.in_turns(
            {
                name: partial(submit_rate, team, kind, team.sizes.submits(kind))
                for name, team in (("plain", plain), ("traced", traced))
            },
            rounds_factor=3,
        )
        yield figure_of("tracing", f"submit with spans, {kind}", "tasks/s", submits["traced"], submits["plain"])


def _check_ns() -> float:
    """Time of one check: each attempt, each submit and each script call makes one."""
    assert active() is None
    return min(timeit.repeat(active, number=_CHECKS, repeat=5)) / _CHECKS * _NS
