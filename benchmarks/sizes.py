"""How much one run measures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.bench.measures import AT_ONCE, MANY, ONE_BY_ONE

# A drain counts the first thousand tasks apart, and the rest must still be a queue.
_FEWEST_DRAINED = 1_500


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; the quick ones are for a first look, their figures are rougher."""

    rounds: int
    drain_tasks: int
    submits_one_by_one: int
    submits_at_once: int
    submits_many: int
    round_trips: int
    pick_up_s: float
    rest_s: float

    def submits(self, kind: str) -> int:
        """How many tasks one pass of this kind of traffic submits."""
        return {ONE_BY_ONE: self.submits_one_by_one, AT_ONCE: self.submits_at_once, MANY: self.submits_many}[kind]

    def for_slower(self, *, drain: float, submit: float, trip: float) -> Sizes:
        """Shares of these sizes, for a system whose passes would take too long otherwise."""
        return replace(
            self,
            drain_tasks=max(_FEWEST_DRAINED, round(drain * self.drain_tasks)),
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
    pick_up_s=4.0,
    rest_s=20.0,
)
QUICK = Sizes(
    rounds=1,
    drain_tasks=10_000,
    submits_one_by_one=1_000,
    submits_at_once=5_000,
    submits_many=10_000,
    round_trips=150,
    pick_up_s=2.0,
    rest_s=6.0,
)
