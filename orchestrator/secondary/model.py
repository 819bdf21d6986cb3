"""Declares the interface of a second storage, which keeps copies of messages and records outside of Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

REMOVALS_KEPT_S: Final = 24 * 3600.0
"""Time for which a store refuses late saves of removed items."""


@dataclass(frozen=True, slots=True)
class StoredItem:
    """A message or a record in a second storage.

    Attributes:
        id: id of the item in its resource.
        number: its place; items are loaded by number, and by id where the numbers are equal.
        version: number of the change that made it; of two items of one id the store keeps the higher version.
        data: content, which the store does not read.
        subject: person that it is about; empty if there is none. `erase` removes the items of a person.
    """

    id: str
    number: int
    version: int
    data: bytes
    subject: str = ""


class SecondaryStore(Protocol):
    """Keeps items by scope and resource. Any number of processes may use it at the same time.

    A `scope` is the root of the keys of a session or agent; a `resource` is a chat or a tier of memory in it. Every
    change may be sent again, late and in any order: a save never replaces a higher version, and never brings back
    what a `delete` of the last day removed `upto` the same or a higher version. A save that returned is on disk.

    All methods raise `SecondaryStoreError` when the storage fails; nothing is changed then. A kill in the middle of a
    save may leave some of its items, which a repeat completes.
    """

    def load(self, scope: str, resource: str, after: int | None = None) -> AsyncIterator[StoredItem]:
        """Iterate over the items with numbers above `after`, or all items, in the order of their numbers."""
        ...

    async def save(self, scope: str, resource: str, items: Sequence[StoredItem]) -> None:
        """Add `items`, and replace those of a lower version."""
        ...

    async def delete(self, scope: str, resource: str, ids: Iterable[str] | None, *, upto: int) -> int:
        """Remove the items with these `ids`, or all of the resource, `upto` a version. Return their number.

        Their content leaves the disk.
        """
        ...

    async def erase(self, subject: str) -> int:
        """Remove all items about a `subject`, in all scopes. Return their number. Their content leaves the disk."""
        ...

    async def aclose(self) -> None:
        """Close the files. The next call opens them again."""
        ...
