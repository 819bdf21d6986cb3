"""A table of vectors ranks as a comparison of all vectors does."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.vectors.encoding import encode_vector
from orchestrator.vectors.ranking import cosines
from orchestrator.vectors.table import VectorTable


def stored(number: int, vector: bytes) -> bytes:
    """A value of `emb`."""
    return struct.pack("<d", number) + vector


def some_vector(chance: random.Random, dims: int) -> bytes:
    """A vector of any length; many have the same direction as others."""
    if chance.random() < 0.3:
        return encode_vector("v", [10.0 ** chance.randint(-20, 20)] * dims)
    return encode_vector("v", [chance.gauss(0, 1) for _ in range(dims)])


@given(st.integers(0, 10_000), st.integers(1, 64), st.integers(1, 30))
def test_any_changes(seed: int, dims: int, count: int) -> None:
    """After any puts and drops, the nearest vectors are those of a comparison of all, with ties by id."""
    chance, table, expected = random.Random(seed), VectorTable(dims), dict[bytes, tuple[int, bytes]]()
    for number in range(1, 20):
        ids = [b"%d" % chance.randrange(40) for _ in range(chance.randrange(8))]
        if chance.random() < 0.4:
            table.drop(ids)
            for id_ in ids:
                expected.pop(id_, None)
        elif ids:
            vectors = [some_vector(chance, dims) for _ in ids]
            assert table.put(ids, [stored(number, vector) for vector in vectors])
            expected |= {id_: (number, vector) for id_, vector in zip(ids, vectors, strict=True)}
    asked = some_vector(chance, dims)
    scores = dict(zip(expected, cosines(asked, [vector for _, vector in expected.values()]), strict=True))
    found = table.nearest(asked, count)
    assert len(table) == len(expected)
    assert len(found) == min(count, len(expected))
    assert all(expected[id_][0] == number for id_, number in found)
    best = sorted(scores, key=lambda id_: (-round(scores[id_], 5), id_))
    assert [round(scores[id_], 5) for id_, _ in found] == pytest.approx([round(scores[id_], 5) for id_ in best[:count]])


def test_ties() -> None:
    """Of many vectors with one direction, those with the lowest ids are found, in their order."""
    table = VectorTable(384)
    vector = np.random.default_rng(1).standard_normal(384).astype("<f4")
    ids = [b"%04d" % number for number in range(3000)]
    random.Random(1).shuffle(ids)
    table.put(ids, [stored(1, (vector * (1 + i % 7)).tobytes()) for i in range(3000)])
    assert [id_ for id_, _ in table.nearest(vector.tobytes(), 20)] == [b"%04d" % number for number in range(20)]


def test_another_space() -> None:
    """A vector with another number of dimensions is refused before any is put."""
    table = VectorTable(2)
    assert not table.put([b"a", b"b"], [stored(1, bytes(8)), stored(1, bytes(12))])
    assert len(table) == 0
    assert table.nearest(encode_vector("v", [1, 2]), 3) == []


def test_what_a_table_takes() -> None:
    """The bytes count the matrix and what belongs to each row."""
    table = VectorTable(100)
    table.reserve(1000)
    assert table.nbytes >= 400_000
    table.put([b"a"], [stored(1, np.ones(100, "<f4").tobytes())])
    assert table.nbytes >= 400_200
