"""Counts of attempts in a worker: what a batch holds, and how far a quantile of log2 buckets is from the true one."""

from __future__ import annotations

import math
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.agents.timings import OUTCOMES, Durations, Timings, sum_cells
from orchestrator.tasks.model import Delivery, Envelope, VerdictKind
from orchestrator.workers.runtime.attempt import Attempt
from orchestrator.workers.runtime.timings import MAX_ROWS, AttemptTimings

START_MS = 1_800_000_000_000
_IDS = count()


def ended(
    *,
    submitted_ms: int = START_MS,
    begun_s: float = 0.0,
    ran_s: float | None = 0.5,
    attempt: int = 1,
    skill: str = "sum",
) -> Attempt:
    """An attempt that has ended."""
    digits = f"{submitted_ms:012x}"
    id_ = f"{digits[:8]}-{digits[8:]}-7000-8000-{next(_IDS):012x}"
    found = Attempt(Delivery("ed", "1-1", id_, "1", attempt, 0, b""), 1.0)
    found.envelope = Envelope(skill, b"{}")
    found.begun_s, found.ran_s = begun_s, ran_s
    return found


def taken(timings: AttemptTimings) -> dict[tuple[str, str], Timings]:
    """The next batch, stored."""
    _, rows = timings.next_batch()
    timings.batch_stored()
    return {(agent, skill): sum_cells([cells]) for agent, skill, cells in rows}


@pytest.fixture
def timings() -> AttemptTimings:
    """Counters whose server clock is at `START_MS` when the monotonic clock is at 0."""
    timings = AttemptTimings()
    timings.set_clock(START_MS + 1000, 0.9, 1.1)
    return timings


def test_times(timings: AttemptTimings) -> None:
    """A first attempt waits from its submit to its begin, by the clock of the server; a later one only runs."""
    timings.record(ended(begun_s=3.0, ran_s=0.1), VerdictKind.SUCCEEDED)
    timings.record(ended(begun_s=4.0, ran_s=0.2, attempt=2), VerdictKind.RETRY)
    (found,) = taken(timings).values()
    assert found.outcomes == {"succeeded": 1, "failed": 1}
    assert (found.waited.count, found.waited.total_ms) == (1, 3000)
    assert (found.ran.count, found.ran.total_ms, found.ran.mean_ms) == (2, 300, 150.0)


def test_a_task_that_was_not_ready_at_its_submit(timings: AttemptTimings) -> None:
    """It waits from the time at which it was ready, also in a later attempt; without that time its wait is unknown."""
    timings.record(ended(begun_s=9.0), VerdictKind.SUCCEEDED, ready_ms=START_MS + 8000)
    timings.record(ended(begun_s=9.0, attempt=2), VerdictKind.SUCCEEDED, ready_ms=START_MS + 7000)
    timings.record(ended(begun_s=9.0), VerdictKind.SUCCEEDED, ready_ms=0)
    (found,) = taken(timings).values()
    assert (found.waited.count, found.waited.total_ms, found.ran.count) == (2, 3000, 3)


def test_clock_of_the_client_ahead(timings: AttemptTimings) -> None:
    """A submit that seems to be later than the begin has waited for 0 ms."""
    timings.record(ended(submitted_ms=START_MS + 60_000, begun_s=1.0), VerdictKind.SUCCEEDED)
    (found,) = taken(timings).values()
    assert (found.waited.total_ms, found.waited.buckets[0]) == (0, 1)


def test_attempts_without_a_handler(timings: AttemptTimings) -> None:
    """A released attempt is none; refused arguments are an outcome without times; a lost attempt has run."""
    for kind in (VerdictKind.RELEASED, VerdictKind.AWAIT_LOCK):
        timings.record(ended(ran_s=None), kind)
    timings.record(ended(ran_s=None), VerdictKind.INVALID)
    timings.record(ended(skill=""), VerdictKind.DEAD)
    timings.record(ended(), None)
    (found,) = taken(timings).values()
    assert found.outcomes == {"invalid": 1, "lost": 1}
    assert found.ran.count == 1


def test_every_verdict_has_an_outcome(timings: AttemptTimings) -> None:
    """All verdicts of handlers are counted."""
    for kind in VerdictKind:
        timings.record(ended(), kind)
    timings.record(ended(), None)
    (found,) = taken(timings).values()
    assert set(found.outcomes) == set(OUTCOMES)


def test_a_batch_is_sent_until_it_is_stored(timings: AttemptTimings) -> None:
    """A batch without an answer is sent again as it was; what ends meanwhile goes into the next."""
    timings.record(ended(), VerdictKind.SUCCEEDED)
    first = timings.next_batch()
    timings.record(ended(), VerdictKind.SUCCEEDED)
    timings.record(ended(skill="other"), VerdictKind.SUCCEEDED)
    assert timings.next_batch() == first
    timings.batch_stored()
    number, rows = timings.next_batch()
    assert (number, len(rows)) == (first[0] + 1, 2)
    timings.batch_stored()
    assert timings.next_batch()[1] == []


def test_busy_pairs_take_turns(timings: AttemptTimings) -> None:
    """Each batch is bounded, and pairs that always have counts leave room for the others."""
    names = [f"s{number:03}" for number in range(2 * MAX_ROWS + 5)]
    seen = set[str]()
    for _ in range(3):
        for name in names:
            timings.record(ended(skill=name), VerdictKind.SUCCEEDED)
        _, rows = timings.next_batch()
        assert len(rows) == MAX_ROWS
        seen |= {skill for _, skill, _ in rows}
        timings.batch_stored()
    assert seen == set(names)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(times=st.lists(st.floats(0, 10**7), min_size=1, max_size=200), share=st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_error_of_a_quantile(timings: AttemptTimings, times: list[float], share: float) -> None:
    """The quantile of the buckets is above the true one, and at most twice as high, or 1 ms."""
    for ms in times:
        timings.record(ended(ran_s=ms / 1000), VerdictKind.SUCCEEDED)
    (counted,) = taken(timings).values()
    found = counted.ran.quantile_ms(share)
    true_ms = sorted(ms / 1000 * 1000 for ms in times)[math.ceil(len(times) * share) - 1]
    assert found is not None
    assert true_ms < found <= max(1, 2 * true_ms)


def test_no_attempts() -> None:
    """Without attempts there is no time."""
    assert (Durations().quantile_ms(0.5), Durations().mean_ms) == (None, None)
