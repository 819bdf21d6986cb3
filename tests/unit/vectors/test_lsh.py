"""Buckets of vectors: the same on every machine, with and without numpy, and similar vectors share them."""

from __future__ import annotations

import math
import random
from array import array

import numpy as np
import pytest

from orchestrator.vectors import lsh
from orchestrator.vectors.encoding import encode_vector
from orchestrator.vectors.lsh import (
    CODES_BYTES,
    MAX_PROBES,
    TABLES,
    bucket_codes,
    nearest_buckets,
    probe_count,
    rank_codes,
)


def vector(seed: int, dims: int) -> bytes:
    """A vector that depends on the seed."""
    chance = random.Random(seed)
    return encode_vector("vector", [chance.gauss(0, 1) for _ in range(dims)])


@pytest.mark.parametrize(
    ("dims", "codes"),
    [
        (1, "0247010002b703d5003d028802da03be"),
        (3, "021b0326017500d902d600910263018e"),
        (384, "01750128024603f6005602de006a03e3"),
    ],
)
def test_codes_never_change(dims: int, codes: str) -> None:
    """Stored codes stay those of their vectors in later versions, on other machines and without numpy."""
    floats = array("f", [(37 * i % 101) - 50 for i in range(dims)])
    assert bucket_codes(encode_vector("vector", floats)).hex() == codes


@pytest.mark.parametrize("dims", [1, 2, 5, 64, 384])
def test_codes_without_numpy(dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without numpy puts a vector into the same buckets."""
    vectors = [vector(seed, dims) for seed in range(20)]
    with_numpy = [bucket_codes(each) for each in vectors]
    monkeypatch.setattr(lsh, "HAS_NUMPY", False)
    assert [bucket_codes(each) for each in vectors] == with_numpy
    assert {len(codes) for codes in with_numpy} == {CODES_BYTES}


@pytest.mark.parametrize("dims", [1, 2, 16, 384])
def test_a_search_reads_its_own_buckets_first(dims: int) -> None:
    """The first bucket of each table is that of the vector, at any length of it."""
    asked = vector(3, dims)
    scaled = encode_vector("vector", [1e-20 * each for each in np.frombuffer(asked, "<f4").tolist()])
    codes = bucket_codes(asked)
    own = [(table, int.from_bytes(codes[2 * table : 2 * table + 2], "big")) for table in range(TABLES)]
    assert nearest_buckets(asked, 1) == own
    assert nearest_buckets(scaled, 1) == own
    buckets = nearest_buckets(asked, MAX_PROBES)
    assert len(set(buckets)) == MAX_PROBES * TABLES


def test_the_number_of_buckets() -> None:
    """A search of more vectors reads fewer buckets of each table, so that it finds about as many candidates."""
    assert [probe_count(size) for size in (0, 1000, 10_000, 100_000, 10_000_000)] == [MAX_PROBES] * 3 + [10, 1]


def test_codes_of_similar_vectors_come_first() -> None:
    """Codes rank vectors about as their angles do."""
    asked = np.frombuffer(vector(1, 64), "<f4")
    chance = np.random.default_rng(2)
    vectors = [asked * (i / 100) + chance.standard_normal(64) * (1 - i / 100) for i in range(101)]
    ranked = rank_codes(asked.tobytes(), [bucket_codes(each.astype("<f4").tobytes()) for each in vectors])
    assert set(ranked[:20]) >= set(range(90, 101))
    assert np.mean(ranked[:30]) > 80


def test_recall_on_clustered_vectors() -> None:
    """Nine of the ten most similar of 10,000 clustered vectors are in the buckets, and among the best 800 by code."""
    chance, dims, size, questions = np.random.default_rng(1), 128, 10_000, 20
    centres = chance.standard_normal((200, dims))
    centres /= np.linalg.norm(centres, axis=1)[:, None]
    noise = chance.standard_normal((size + questions, dims)) * 0.6 / math.sqrt(dims)
    vectors = (centres[chance.integers(0, 200, size + questions)] + noise).astype("<f4")
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    codes = [bucket_codes(each.tobytes()) for each in vectors[:size]]
    tables = np.frombuffer(b"".join(codes), ">u2").reshape(size, TABLES)
    found = candidates = 0
    for asked in vectors[size:]:
        best = set(np.argsort(-(vectors[:size] @ asked))[:10].tolist())
        hit = np.zeros(size, bool)
        for table, code in nearest_buckets(asked.tobytes(), probe_count(size)):
            hit |= tables[:, table] == code
        places = np.flatnonzero(hit)
        ranked = rank_codes(asked.tobytes(), [codes[place] for place in places])[:800]
        found += len(best & {places[place] for place in ranked})
        candidates += len(places)
    assert found / questions / 10 >= 0.95
    assert candidates / questions < size / 2
