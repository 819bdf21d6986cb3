"""Sizes of the measures of one run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.bench.measures import AT_ONCE, MANY, ONE_BY_ONE

# A drain counts the first tasks separately, and the rest must still form a queue.
_FEWEST_DRAINED = 1_500


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of tasks and seconds; the quick sizes give rougher figures."""

    rounds: int
    drain_tasks: int
    submits_one_by_one: int
    submits_at_once: int
    submits_many: int
    round_trips: int
    steady_s: float
    pick_up_s: float
    rest_s: float
    vectors: tuple[int, ...]
    vector_calls: int
    vector_waits_s: float

    def submits(self, kind: str) -> int:
        """Return the number of tasks of one pass of this kind."""
        return {ONE_BY_ONE: self.submits_one_by_one, AT_ONCE: self.submits_at_once, MANY: self.submits_many}[kind]

    def with_payload(self, payload_bytes: int) -> Sizes:
        """Return sizes for bodies of this size, so that all tasks together stay in memory."""

        def fit(count: int, total_bytes: int, fewest: int) -> int:
            return min(count, max(fewest, total_bytes // payload_bytes))

        return replace(
            self,
            drain_tasks=fit(self.drain_tasks, 300_000_000, 300),
            submits_one_by_one=fit(self.submits_one_by_one, 60_000_000, 100),
            submits_at_once=fit(self.submits_at_once, 100_000_000, 200),
            submits_many=fit(self.submits_many, 150_000_000, 200),
            round_trips=min(self.round_trips, 150),
        )

    def for_slower(self, *, drain: float, submit: float, trip: float) -> Sizes:
        """Return a share of these sizes for a slower system."""
        return replace(
            self,
            drain_tasks=min(self.drain_tasks, max(_FEWEST_DRAINED, round(drain * self.drain_tasks))),
            submits_one_by_one=round(submit * self.submits_one_by_one),
            submits_at_once=round(submit * self.submits_at_once),
            submits_many=round(submit * self.submits_many),
            round_trips=round(trip * self.round_trips),
            pick_up_s=min(self.pick_up_s, 3.0),
            rest_s=min(self.rest_s, 6.0),
        )


FULL = Sizes(
    rounds=3,
    drain_tasks=50_000,
    submits_one_by_one=3_000,
    submits_at_once=10_000,
    submits_many=25_000,
    round_trips=300,
    steady_s=5.0,
    pick_up_s=4.0,
    rest_s=20.0,
    vectors=(10_000, 100_000),
    vector_calls=400,
    vector_waits_s=8.0,
)
QUICK = Sizes(
    rounds=1,
    drain_tasks=10_000,
    submits_one_by_one=1_000,
    submits_at_once=5_000,
    submits_many=10_000,
    round_trips=150,
    steady_s=2.5,
    pick_up_s=2.0,
    rest_s=6.0,
    vectors=(10_000,),
    vector_calls=100,
    vector_waits_s=3.0,
)
