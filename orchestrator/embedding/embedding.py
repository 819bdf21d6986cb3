"""Asks an embedder, and checks what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import EmbeddingError, InvalidInput
from orchestrator.vectors.encoding import dims_of, encode_vector

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from orchestrator.embedding.model import Embedder


async def embed_texts(embedder: Embedder, texts: Sequence[str]) -> list[bytes]:
    """Return the vectors of texts, in one call of the embedder; empty for each text that has nothing to compare.

    Raises:
        EmbeddingError: the embedder failed, or returned something else.
    """
    if not texts:
        return []

    def failure(what: str) -> EmbeddingError:
        return EmbeddingError(embedder.name, len(texts), what)

    try:
        found = list(await embedder.embed(list(texts)))
    except Exception as failed:
        # Errors of models quote the texts.
        raise failure(f"{type(failed).__name__}: {failed!s:.200}") from failed
    if len(found) != len(texts):
        raise failure(f"it returned {len(found)} vectors")
    try:
        vectors = [_encode(f"vector {number}", vector) for number, vector in enumerate(found)]
    except (InvalidInput, TypeError) as invalid:
        raise failure(f"its {invalid}") from invalid
    if others := {dims_of(vector) for vector in vectors if vector} - {embedder.dims}:
        raise failure(f"a vector has {min(others)} dimensions, and the embedder says {embedder.dims}")
    return vectors


def _encode(what: str, vector: Any) -> bytes:
    try:
        empty = not any(vector)
    except ValueError:  # rows of an array of more dimensions
        raise InvalidInput(f"{what} must be numbers or float32 bytes, not {vector!r:.80}") from None
    # Zeros point nowhere.
    return b"" if empty else encode_vector(what, vector)
