"""Defines what an embedder is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors, so that texts which are alike have vectors in about the same direction.

    Any class with these members is one: a model in this process, or the client of a service. Shipped are
    `WordLlamaEmbedder` and `HashedNgrams`.
    """

    @property
    def name(self) -> str:
        """Name of the space of its vectors. It changes when new vectors cannot be compared with earlier ones."""
        ...

    @property
    def dims(self) -> int:
        """Number of dimensions of each vector."""
        ...

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float] | bytes]:
        """Return a vector for each text, in order: numbers, or 32-bit floats as little-endian bytes.

        A vector of zeros says that a text has nothing to compare, as an empty one.
        """
        ...
