"""Compares vectors, with numpy if it is installed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from operator import mul
from typing import TYPE_CHECKING, Final

from orchestrator.vectors.encoding import NUMBER_BYTES, decode_floats

if TYPE_CHECKING:
    from collections.abc import Sequence

HAS_NUMPY: Final = find_spec("numpy") is not None


def cosines(vector: bytes, others: Sequence[bytes]) -> list[float]:
    """Return the cosine of the angle between a vector and each of others of its space, from -1 to 1."""
    return _cosines_by_numpy(vector, others) if HAS_NUMPY else _cosines(vector, others)


def rank_stored(vector: bytes, stored: Sequence[bytes]) -> list[int]:
    """Return the places of stored vectors of one space, the most similar to a vector first, else in their order.

    Args:
        vector: 32-bit floats, little-endian.
        stored: values of `emb`.
    """
    if not HAS_NUMPY:
        scores = _cosines(vector, [value[NUMBER_BYTES:] for value in stored])
        return sorted(range(len(scores)), key=lambda place: -round(scores[place], 6))
    import numpy as np

    # Its length must not change what rounding makes equal.
    asked = np.frombuffer(vector, dtype="<f4").astype(np.float64)
    asked = (asked / np.linalg.norm(asked)).astype(np.float32)
    rows = np.frombuffer(b"".join(stored), dtype=np.uint8).reshape(len(stored), NUMBER_BYTES + len(vector))
    floats = rows[:, NUMBER_BYTES:].view("<f4")
    # Not a product of matrices, for which BLAS starts threads that wait for each other on a busy machine.
    ranks = np.einsum("ij,j->i", floats, asked) / np.sqrt(np.einsum("ij,ij->i", floats, floats))
    # Vectors with one direction may differ in the last digit.
    order: list[int] = np.argsort(-np.round(ranks, 6), kind="stable").tolist()
    return order


def _cosines(vector: bytes, others: Sequence[bytes]) -> list[float]:
    asked = decode_floats(vector)
    asked_length = math.sqrt(sum(map(mul, asked, asked)))
    found = []
    for floats in others:
        other = decode_floats(floats)
        length = math.sqrt(sum(map(mul, other, other))) * asked_length
        found.append(max(-1.0, min(1.0, sum(map(mul, asked, other)) / length)))
    return found


def _cosines_by_numpy(vector: bytes, others: Sequence[bytes]) -> list[float]:
    import numpy as np

    if not others:
        return []
    asked = np.frombuffer(vector, dtype="<f4").astype(np.float64)
    matrix = np.frombuffer(b"".join(others), dtype="<f4").reshape(len(others), -1).astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix) * np.einsum("i,i", asked, asked))
    found: list[float] = np.clip(np.einsum("ij,j->i", matrix, asked) / lengths, -1.0, 1.0).tolist()
    return found
