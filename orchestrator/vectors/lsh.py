"""Sorts vectors into buckets, so that a search reads the buckets around a vector instead of all vectors.

80 planes through the origin are the same for all vectors with the same number of dimensions, on every machine. The
sides of ten of them, on which a vector lies, are the number of its bucket in one of 8 tables. Vectors with a small
angle between them share most sides. A search reads the bucket of the vector in each table, and those on the other
side of the planes that are near: the number of buckets depends on the number of vectors, so that about as many
candidates are found.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_256
from itertools import combinations
from operator import mul
from typing import TYPE_CHECKING, Final

from orchestrator.vectors.encoding import decode_floats, dims_of
from orchestrator.vectors.ranking import HAS_NUMPY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

TABLES: Final = 8
BITS: Final = 10
CODES_BYTES: Final = 2 * TABLES
PROBED_ENTRIES: Final = 8000
"""Entries that the buckets of a search have about, if vectors are spread evenly."""
MAX_PROBES: Final = 16
"""Buckets of a table that a search reads at most."""
_MAX_FLIPPED: Final = 3


def bucket_codes(vector: bytes) -> bytes:
    """Return the bucket of a vector in each table, two bytes each, the high one first."""
    dims = dims_of(vector)
    if HAS_NUMPY:
        sides = (_products(vector) > 0).tolist()
    else:
        floats = decode_floats(vector).tolist()
        sides = [sum(map(mul, plane, floats)) > 0 for plane in _planes(dims)]
    number = 0
    for table in range(TABLES):
        code = 0
        for side in sides[table * BITS : (table + 1) * BITS]:
            code = 2 * code + side
        number = number << 16 | code
    return number.to_bytes(CODES_BYTES, "big")


def probe_count(vectors: int) -> int:
    """Return how many buckets of each table a search reads in a memory with that number of vectors."""
    return max(1, min(MAX_PROBES, PROBED_ENTRIES * 2**BITS // (TABLES * max(vectors, 1))))


def nearest_buckets(vector: bytes, count: int) -> list[tuple[int, int]]:
    """Return the `count` buckets of each table in which similar vectors are the likeliest: table and code.

    Needs numpy.
    """
    import numpy as np

    products = _distances(vector).reshape(TABLES, BITS)
    codes = (products > 0) @ (1 << np.arange(BITS - 1, -1, -1))
    flips, sides = _flips()
    costs = (products * products) @ sides.T
    return [
        (table, int(codes[table] ^ flips[flip]))
        for table in range(TABLES)
        for flip in np.argsort(costs[table], kind="stable")[:count]
    ]


def rank_codes(vector: bytes, codes: Sequence[bytes]) -> list[int]:
    """Return the places of the codes, those of the most similar vectors first. Needs numpy.

    A plane counts as much as the vector is distant from it, because near planes part vectors by chance.
    """
    import numpy as np

    products = _distances(vector).reshape(TABLES, BITS)
    bits = (np.arange(2**BITS)[:, None] >> np.arange(BITS - 1, -1, -1)) & 1
    likeness = (2 * bits - 1) @ products.T
    found = np.frombuffer(b"".join(codes), dtype=">u2").reshape(-1, TABLES) & (2**BITS - 1)
    scores = likeness[found, np.arange(TABLES)].sum(1)
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order


@lru_cache(maxsize=8)
def _planes(dims: int) -> list[list[float]]:
    """Return the planes, which have whole numbers: the sums of four bytes are spread like a bell, around 0."""
    raw, numbers = _plane_bytes(dims), [float(number) for number in range(-510, 511)]
    sums = [numbers[a + b + c + d] for a, b, c, d in zip(raw[::4], raw[1::4], raw[2::4], raw[3::4], strict=True)]
    return [sums[first : first + dims] for first in range(0, len(sums), dims)]


@lru_cache(maxsize=8)
def _plane_matrix(dims: int) -> NDArray[np.float64]:
    import numpy as np

    raw = np.frombuffer(_plane_bytes(dims), dtype=np.uint8).reshape(TABLES * BITS, dims, 4)
    found: NDArray[np.float64] = raw.sum(2, dtype=np.float64) - 510
    return found


def _plane_bytes(dims: int) -> bytes:
    return shake_256(f"redis-orchestrator planes {dims}".encode()).digest(4 * TABLES * BITS * dims)


def _products(vector: bytes) -> NDArray[np.float64]:
    import numpy as np

    return _plane_matrix(dims_of(vector)) @ np.frombuffer(vector, dtype="<f4").astype(np.float64)


def _distances(vector: bytes) -> NDArray[np.float64]:
    """Return the distances of a vector, taken with length 1, from each plane, negative on one side."""
    import numpy as np

    lengths = np.maximum(np.linalg.norm(_plane_matrix(dims_of(vector)), axis=1), 1)
    floats = np.frombuffer(vector, dtype="<f4").astype(np.float64)
    found: NDArray[np.float64] = _products(vector) / lengths / np.linalg.norm(floats)
    return found


@lru_cache(maxsize=1)
def _flips() -> tuple[list[int], NDArray[np.float64]]:
    """Return the changes of up to three sides: as bits of a code, and as rows with a 1 per changed side."""
    import numpy as np

    chosen = [flipped for count in range(_MAX_FLIPPED + 1) for flipped in combinations(range(BITS), count)]
    rows = np.zeros((len(chosen), BITS))
    for row, flipped in enumerate(chosen):
        rows[row, list(flipped)] = 1
    return [sum(1 << (BITS - 1 - side) for side in flipped) for flipped in chosen], rows
