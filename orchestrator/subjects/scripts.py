"""Wraps the scripts in `lua/subjects/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orchestrator.store.calls import Call, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.keys import ScopeKeys


class PlaceRow(NamedTuple):
    """A place and how long it may hold text, in the column order of `lua/subjects/note.lua`."""

    place: str
    keep_ms: int


def note(keys: ScopeKeys, *, rows: Sequence[PlaceRow]) -> Call[str]:
    """Note up to 500 places of a person; the reply is ok, or erased."""
    return Call("subjects/note", {"scope": keys.root, "rows": pack_rows(rows), "now_arg": ""}, bytes.decode)


def refuse(keys: ScopeKeys, *, for_ms: int) -> Call[int]:
    """Refuse to note places of a person for a time; the reply is the number of places."""
    return Call("subjects/refuse", {"scope": keys.root, "for_ms": for_ms, "now_arg": ""}, int)


def leave(keys: ScopeKeys, *, places: Sequence[str]) -> Call[int]:
    """Remove up to 500 places of a person; the reply is the number that remains."""
    return Call("subjects/leave", {"scope": keys.root, "rows": pack_rows([(place,) for place in places])}, int)
