"""Holds the vectors of a memory in one matrix, and finds the nearest ones. Needs numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from orchestrator.vectors.encoding import NUMBER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

ROW_BYTES: Final = 250
"""What a vector takes beside its floats: its id and its number, and their places in a list and two dicts."""
_TABLE_BYTES: Final = 1000
_AT_ONCE: Final = 512
"""Rows in one product: BLAS starts threads for larger ones, which wait for each other on a busy machine."""
_SAME: Final = 2e-6
"""Scores of 32-bit floats that differ by less are compared again with 64 bits."""


class VectorTable:
    """The vectors of a memory with length 1, one per row, and the ids and numbers that belong to them."""

    __slots__ = ("_ids", "_matrix", "_numbers", "_rows", "dims")

    def __init__(self, dims: int) -> None:
        self.dims: Final = dims
        self._ids: list[bytes] = []
        self._numbers: list[int] = []
        self._rows: dict[bytes, int] = {}
        self._matrix: NDArray[np.float32] = np.empty((0, dims), np.float32)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes in memory."""
        return _TABLE_BYTES + self._matrix.nbytes + ROW_BYTES * len(self._ids)

    def reserve(self, count: int) -> None:
        """Make room for that number of rows, so that loading them copies none."""
        if count > len(self._matrix):
            larger = np.empty((count, self.dims), np.float32)
            larger[: len(self._matrix)] = self._matrix
            self._matrix = larger

    def put(self, ids: Sequence[bytes], stored: Sequence[bytes]) -> bool:
        """Put vectors in place of earlier ones of their ids, as `emb` holds them. False: one is of another space."""
        width = NUMBER_BYTES + 4 * self.dims
        if any(len(value) != width for value in stored):
            return False
        raw = np.frombuffer(b"".join(stored), dtype=np.uint8).reshape(len(stored), width)
        numbers = np.ascontiguousarray(raw[:, :NUMBER_BYTES]).view("<f8")[:, 0]
        floats = np.ascontiguousarray(raw[:, NUMBER_BYTES:]).view("<f4").astype(np.float64)
        floats /= np.linalg.norm(floats, axis=1)[:, None]
        places = []
        for id_, number in zip(ids, numbers.tolist(), strict=True):
            place = self._rows.get(id_)
            if place is None:
                place = self._rows[id_] = len(self._ids)
                self._ids.append(id_)
                self._numbers.append(0)
            self._numbers[place] = int(number)
            places.append(place)
        if len(self) > len(self._matrix):
            self.reserve(len(self) + len(self) // 4)
        self._matrix[places] = floats
        return True

    def drop(self, ids: Iterable[bytes]) -> None:
        """Remove the vectors of ids, if there are any; the last row takes each free place."""
        for id_ in ids:
            place = self._rows.pop(id_, None)
            if place is None:
                continue
            last, number = self._ids.pop(), self._numbers.pop()
            if place < len(self._ids):
                self._ids[place], self._numbers[place], self._rows[last] = last, number, place
                self._matrix[place] = self._matrix[len(self._ids)]

    def nearest(self, vector: bytes, count: int) -> list[tuple[bytes, int]]:
        """Return ids and numbers of the `count` vectors with the smallest angle, those of one angle by id."""
        size = len(self)
        asked = np.frombuffer(vector, dtype="<f4").astype(np.float64)
        asked /= np.linalg.norm(asked)
        short, scores = asked.astype(np.float32), np.empty(size, np.float32)
        for first in range(0, size, _AT_ONCE):
            np.dot(self._matrix[first : min(first + _AT_ONCE, size)], short, out=scores[first : first + _AT_ONCE])
        if count < size:
            least = -np.partition(-scores, count - 1)[count - 1]
            places = np.flatnonzero(scores >= least - _SAME)
        else:
            places = np.arange(size)
        exact = np.concatenate(
            [self._matrix[places[i : i + _AT_ONCE]].astype(np.float64) @ asked for i in range(0, len(places), _AT_ONCE)]
            or [np.empty(0)]
        )
        ranked = zip(np.round(-exact, 7).tolist(), (self._ids[place] for place in places), places, strict=True)
        return [(id_, self._numbers[place]) for _, id_, place in sorted(ranked)[:count]]
