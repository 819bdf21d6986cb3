"""Vectors to store and to ask with: clustered random ones, and those of real texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.corpus import embed_texts, load_corpus
from orchestrator.embedding.wordllama import WordLlamaEmbedder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from orchestrator import Embedder

NEIGHBOURS: Final = 10
_DIMS, _CLUSTERS, _NOISE = 384, 200, 0.6
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Cloud:
    """Vectors of length 1, as rows.

    Attributes:
        stored: the vectors to store.
        asked: the vectors to ask with, of the same kind.
    """

    name: str
    stored: NDArray[np.float32]
    asked: NDArray[np.float32]

    @property
    def size(self) -> int:
        """Number of stored vectors."""
        return len(self.stored)

    def truth(self, chosen: NDArray[np.bool_] | None = None) -> Truth:
        """Compare all stored vectors, or the chosen ones, with the asked ones."""
        scores, nearest = self.asked @ self.stored.T, min(NEIGHBOURS, self.size)
        if chosen is not None:
            scores[:, ~chosen] = -np.inf
            nearest = min(nearest, int(chosen.sum()))
        return Truth(scores, nearest, np.partition(scores, -nearest, axis=1)[:, -nearest])


@dataclass(frozen=True, slots=True)
class Truth:
    """Exact scores of all vectors for each asked one, the number of the nearest, and the score of the last of these."""

    scores: NDArray[np.float32]
    nearest: int
    last: NDArray[np.float32]

    def recall(self, found: Sequence[Sequence[int]]) -> float:
        """Return the share of the nearest vectors that was found. Vectors as near as the last one count too."""
        hits = [
            int((self.scores[asked, list(set(numbers))] >= self.last[asked] - _ROUNDING).sum())
            for asked, numbers in enumerate(found)
        ]
        return sum(min(count, self.nearest) for count in hits) / (self.nearest * len(found))


def clustered(size: int, asked: int = 200) -> Cloud:
    """Return vectors around 200 directions, the same ones in each run.

    The noise has 0.6 times the length of a direction in all dimensions, so that the neighbours of a vector within its
    cluster differ by less than the error of an 8-bit index.
    """
    source = np.random.default_rng(16)
    centres = _unit(source.standard_normal((_CLUSTERS, _DIMS), dtype=np.float32))
    rows = size + asked
    noise = source.standard_normal((rows, _DIMS), dtype=np.float32) * np.float32(_NOISE / _DIMS**0.5)
    vectors = _unit(centres[source.integers(0, _CLUSTERS, rows)] + noise)
    return Cloud("clustered", vectors[asked:], vectors[:asked])


def of_texts(size: int, asked: int = 200, embedder: Embedder | None = None) -> Cloud:
    """Return the vectors of real texts, by the shipped model unless another embedder is given."""
    corpus, embedder = load_corpus(size, asked), embedder or WordLlamaEmbedder()
    return Cloud("texts", _unit(embed_texts(embedder, corpus.texts)), _unit(embed_texts(embedder, corpus.questions)))


class Planes:
    """Random hyperplanes, which put a vector into one bucket of each table."""

    def __init__(self, dims: int, *, tables: int = 8, bits: int = 12) -> None:
        normals = np.random.default_rng(2).standard_normal((tables * bits, dims), dtype=np.float32)
        self._normals = normals
        self._weights = 1 << np.arange(bits)
        self._shape = (-1, tables, bits)

    def buckets(self, vectors: NDArray[np.float32]) -> list[list[str]]:
        """Return the names of the buckets of each vector."""
        codes = ((vectors @ self._normals.T) > 0).reshape(self._shape) @ self._weights
        return [[f"{table}.{code}" for table, code in enumerate(row)] for row in codes.tolist()]


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths == 0, 1, lengths)).astype("<f4")
