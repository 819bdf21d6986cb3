"""Searches the vector set of a memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput, ServerRefused, StoreError
from orchestrator.core.reading import read_whole
from orchestrator.memory.narrowing import MAX_EFFORT
from orchestrator.memory.searcher import Candidates, Hit
from orchestrator.memory.vector_indexing import removal
from orchestrator.store.keys import VECTOR_SET, VECTORS, VECTORS_META, VECTORS_PENDING
from orchestrator.vectors.encoding import dims_of
from orchestrator.vectors.vector_set import (
    VISIBLE,
    element_of,
    filter_expression,
    parse_elements,
    search_command,
    split_element,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.memory.conditions import Conditions
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.rungs import Rung

_NOTES: Final = 100
"""Notes about vectors to be added that a search reads, to propose these vectors, too."""
_MAX_LACKING: Final = 0.01
"""Share of the vectors from which on the set answers no search, if they are missing in it."""
_MAX_DISCARDED: Final = 100
"""Elements that one search removes: each one takes about as long as a search of its own."""
_LEAST_EFFORT: Final = 200
_EFFORT: Final = 1.2
"""A filtered search looks at this many times the vectors that would do if fitting ones were spread evenly."""


class VectorSetSearch:
    """Asks the server, which walks a graph of the vectors."""

    rung: Rung = "vectorset"
    most: int = 2000

    async def nearest(self, scope: ScopedStore, vector: bytes, count: int, conditions: Conditions) -> Candidates | None:
        """Return the nearest vectors, and those that a client is about to add; None if the set lacks many."""
        keys, row = scope.keys, conditions.row
        pending_key = keys.key(VECTORS_PENDING)
        expression = filter_expression(
            kinds=row.kinds, actions=row.actions, since=conditions.since, until=conditions.until
        )
        if not expression and scope.settings.memory.vector_delete == "mark":
            expression = VISIBLE
        effort = min(max(round(_EFFORT * count / conditions.share), _LEAST_EFFORT), 2 * MAX_EFFORT)
        search = search_command(keys.key(VECTOR_SET), vector, count, expression=expression, effort=effort)
        try:
            # In this order a vector that is added meanwhile is not taken for a missing one.
            stored, pending, notes, size, found = await scope.read_many(
                [
                    ("HLEN", keys.key(VECTORS)),
                    ("HLEN", pending_key),
                    ("HRANDFIELD", pending_key, _NOTES, "WITHVALUES"),
                    ("VCARD", keys.key(VECTOR_SET)),
                    search,
                ],
                aside=True,
            )
        except ServerRefused as refused:
            if scope.store.capabilities.refused(refused):
                return None
            await _check_space(scope, vector)
            # A late writer has made the set, which the next change of the memory or its upkeep removes; or a program
            # has put a key of another type in its place, which `orc keys check` names.
            if any(word in str(refused) for word in ("dimension", "WRONGTYPE")):
                return None
            raise
        added = [split_element(name) for name, change in zip(notes[::2], notes[1::2], strict=True) if change == b"add"]
        lacking = stored - size - len(added)
        if lacking > _MAX_LACKING * stored:
            return None
        hits = [Hit(id_, number) for number, id_ in (*parse_elements(found), *added)]
        # A search may find less than there is: parts of the graph can be out of reach among equal vectors.
        more = size > (max(count, effort) if expression else count)
        return Candidates(hits, more=more, complete=lacking <= 0 and pending <= _NOTES)

    async def discard(self, scope: ScopedStore, stale: Sequence[Hit]) -> None:
        """Remove elements. A number is given out once, so that none of them becomes valid again."""
        commands = [removal(scope, element_of(hit.number, hit.id)) for hit in stale[:_MAX_DISCARDED]]
        # A user without the right to remove them, or a lost reply: a later search removes them.
        with suppress(StoreError):
            await scope.store.pipeline_aside(commands)


async def _check_space(scope: ScopedStore, vector: bytes) -> None:
    """Raise InvalidInput if the stored vectors have another number of dimensions."""
    space = await scope.read("HGET", scope.keys.key(VECTORS_META), "space")
    dims = 0 if space is None else read_whole(space.partition(b":")[0])
    if dims not in {0, dims_of(vector)}:
        raise InvalidInput(f"the vector has {dims_of(vector)} dimensions, and those of this memory have {dims}")
