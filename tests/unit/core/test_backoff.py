"""Delays grow to a cap, and jitter spreads them over the whole range."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import RetryCallState, Retrying

from orchestrator.core.backoff import QUICK_RETRIES, ExponentialBackoff, Pauses
from orchestrator.core.errors import InvalidInput, ServerUnavailable
from orchestrator.store.failures import NotHere
from orchestrator.store.retry import make_wait


def test_the_ceiling_doubles_up_to_the_cap() -> None:
    """One, two, four seconds and so on, never more than the cap."""
    backoff = ExponentialBackoff(base_s=1, cap_s=10)
    assert [backoff.ceiling_s(n) for n in range(6)] == [0, 1, 2, 4, 8, 10]


@given(st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_delays_lie_below_the_ceiling(failures: int, drawn: float) -> None:
    """Whatever is drawn, and however often a task failed, the delay lies between zero and the ceiling."""
    backoff = ExponentialBackoff()
    assert 0 <= backoff.delay_s(failures, lambda: drawn) <= backoff.ceiling_s(failures) <= backoff.cap_s


def test_jitter_is_full() -> None:
    """A crowd that fails together is spread over the whole range."""
    source = random.Random(7).random
    delays = [ExponentialBackoff(base_s=8, cap_s=8).delay_s(1, source) for _ in range(1000)]
    assert min(delays) < 0.2
    assert max(delays) > 7.8
    assert 3.5 < sum(delays) / 1000 < 4.5


@pytest.mark.parametrize("wrong", [{"base_s": -1.0}, {"base_s": 2.0, "cap_s": 1.0}, {"factor": 0.5}])
def test_impossible_back_offs_are_refused(wrong: dict[str, float]) -> None:
    """A cap below the base, negative and shrinking delays are mistakes."""
    with pytest.raises(InvalidInput, match="back-off needs"):
        ExponentialBackoff(**wrong)


def test_a_lasting_refusal_is_not_asked_often() -> None:
    """Pauses that a failure bounds stay short for the first ones, also after an outage; then they grow as usual."""
    pauses = Pauses(cap_s=1.0)
    for _ in range(50):
        pauses.next_s(ServerUnavailable("gone"))
    for _ in range(2):
        assert max(pauses.next_s(NotHere("a replica")) for _ in range(QUICK_RETRIES)) <= 0.2
        assert max(pauses.next_s(NotHere("a replica")) for _ in range(50)) > 0.5
        pauses.reset()


def test_a_repeated_call_waits_longer_for_a_lasting_refusal() -> None:
    """As above, for the pauses of `repeat`."""
    wait, state = make_wait(), RetryCallState(Retrying(), None, (), {})
    state.set_exception((NotHere, NotHere("a replica"), None))
    state.attempt_number = 10
    assert max(wait(state) for _ in range(QUICK_RETRIES)) <= 0.2
    assert max(wait(state) for _ in range(50)) > 0.5
