"""The details of a job's receipts are read back as they were written; other text counts nothing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.control.outcomes import NOTHING, in_words, progress, read_progress, read_words
from tests.helpers.cases import each_case

NAMES = st.sampled_from(["requeued", "unknown", "not ended", "no task"])
DAMAGED = [
    "",
    "x",
    "x/y z",
    "/",
    "9" * 5000,
    "1, 2",
    "²/³ ² x",
    NOTHING,
    "-1 requeued",
    "1.5 requeued",
    f"{10**15} requeued",
]
ENDS = st.dictionaries(NAMES, st.integers(1, 10**15 - 1)).map(Counter)


@given(ENDS, st.integers(0, 10**15 - 1), st.integers(0, 10**15))
def test_round_trip(ends: Counter[str], at: int, total: int) -> None:
    """Counts and names come back, names of two words and the largest number too."""
    assert read_words(in_words(ends)) == ends
    assert read_progress(progress(at, total, ends)) == (at, ends)


@each_case("detail", DAMAGED)
def test_other_text(detail: str) -> None:
    """What is no count and a name is left out, and raises nothing: the leader reads it before each job."""
    assert read_words(detail) == Counter()
    assert read_progress(detail) == (0, Counter())
    assert read_words(f"{detail}, 2 requeued") == Counter(requeued=2)
