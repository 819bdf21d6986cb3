"""Rankings of vectors are the same with numpy and without."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.vectors import ranking
from orchestrator.vectors.encoding import encode_vector

SOME = st.lists(
    st.lists(st.integers(-50, 50), min_size=3, max_size=3).filter(any), min_size=1, max_size=30
)  # fmt: skip


@given(SOME)
def test_with_and_without_numpy(vectors: list[list[int]]) -> None:
    """Both ways find the same scores, and rank stored vectors by them."""
    pytest.importorskip("numpy")
    asked, *others = [encode_vector("v", vector) for vector in (vectors[0], *vectors)]
    scores = ranking._cosines(asked, others)
    assert ranking._cosines_by_numpy(asked, others) == pytest.approx(scores, abs=1e-12)
    assert scores[0] == pytest.approx(1)
    order = ranking.rank_stored(asked, [struct.pack("<d", 7) + other for other in others])
    assert [scores[place] for place in order] == pytest.approx(sorted(scores, reverse=True), abs=1e-6)


@pytest.mark.parametrize("length", [1e-37, 1e-8, 1e-4, 1e8, 1e37])
def test_the_length_does_not_count(length: float) -> None:
    """Short and long vectors rank as those with length 1 do, as questions and as stored ones."""
    chance = random.Random(1)
    asked, *others = [[chance.gauss(0, 1) for _ in range(8)] for _ in range(50)]
    stored = [struct.pack("<d", 7) + encode_vector("v", other) for other in others]
    other_length = [struct.pack("<d", 7) + encode_vector("v", [x * length for x in other]) for other in others]
    expected = ranking.rank_stored(encode_vector("v", asked), stored)
    assert ranking.rank_stored(encode_vector("v", [x * length for x in asked]), stored) == expected
    assert ranking.rank_stored(encode_vector("v", asked), other_length) == expected


def test_none() -> None:
    """No vector has no score."""
    assert ranking.cosines(encode_vector("v", [1]), []) == []
