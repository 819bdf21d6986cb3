"""The protocol of a payload store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

BATCH: Final = 500
"""Objects that one step of a sweep lists at most."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object, as a sweep lists it.

    Attributes:
        name: below the part of the store that belongs to the pool.
        size: bytes.
        modified_s: time of its write, seconds since 1970, by the clock of the store.
    """

    name: str
    size: int
    modified_s: float


class PayloadStore(Protocol):
    """Keeps immutable objects by name. All methods raise `PayloadStoreUnavailable` when the store does not work.

    Attributes:
        address: its place, for people, without credentials.
    """

    @property
    def address(self) -> str:
        """Its place, for people, without credentials."""
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Store an object as a whole or not at all. It is durable afterwards. A repeat replaces it with the same."""
        ...

    async def get(self, name: str, *, max_bytes: int) -> bytes:
        """Read an object, at most one byte more than `max_bytes` of it.

        Raises:
            PayloadMissing: there is none.
        """
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are gone are no error."""
        ...

    async def names_below(self, folder: str) -> list[str]:
        """List the names that begin with a folder of `reference.folder_of`."""
        ...

    def sweep(self) -> AsyncIterator[Sequence[StoredObject]]:
        """List all objects of the pool in steps of up to `BATCH`, unfinished writes included."""
        ...
