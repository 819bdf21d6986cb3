"""Chooses how vectors are indexed and searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from orchestrator.core.errors import ConfigError
from orchestrator.vectors.encoding import space_of
from orchestrator.vectors.lsh import bucket_codes

if TYPE_CHECKING:
    from orchestrator.store.capabilities import Capabilities

Rung: TypeAlias = Literal["vectorset", "lsh", "exact"]
"""A way to search vectors: a vector set of the server, buckets, or a comparison with all of them."""


class VectorColumns(NamedTuple):
    """Columns of a vector in a call of a script.

    Attributes:
        vector: 32-bit floats, little-endian; empty: no vector.
        codes: bucket in each table, two bytes each; empty: no buckets.
        space: space of the vector.
        indexed: 1 if the vector set has to follow.
    """

    vector: bytes = b""
    codes: bytes = b""
    space: str = ""
    indexed: int = 0


@dataclass(frozen=True, slots=True)
class VectorIndexing:
    """Way in which a client indexes the vectors that it stores.

    Attributes:
        rung: index that it keeps.
        embedder: name of the embedder that makes the vectors; empty when the caller brings them.
    """

    rung: Rung = "exact"
    embedder: str = ""

    def codes(self, vector: bytes) -> bytes:
        """Return the bucket of a vector in each table, two bytes each; empty when no buckets are kept."""
        return bucket_codes(vector) if self.rung == "lsh" else b""

    def columns(self, vector: bytes) -> VectorColumns:
        """Return the columns that a row of a script has for a vector, which may be empty."""
        if not vector:
            return VectorColumns()
        return VectorColumns(vector, self.codes(vector), space_of(vector, self.embedder), int(self.rung == "vectorset"))


NO_INDEXING: Final = VectorIndexing()


def choose_rung(wanted: str, has: Capabilities) -> Rung:
    """Return the index to keep.

    Args:
        wanted: `memory.vector_rung`.
        has: what the server can do.

    Raises:
        ConfigError: the server has no vector sets.
    """
    if wanted == "vectorset" and not has.vector_sets:
        raise ConfigError(
            "memory.vector_rung is vectorset, and this server has no vector sets, or its user may not use them (VADD, "
            "VSIM); install Redis 8.0 or newer, see `orc doctor`, or set memory.vector_rung to auto"
        )
    if wanted == "auto":
        return "vectorset" if has.vector_sets else "lsh"
    assert wanted in {"vectorset", "lsh", "exact"}
    return wanted  # type: ignore[return-value]
