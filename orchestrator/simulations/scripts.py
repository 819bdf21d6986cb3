"""Wraps the scripts in `lua/simulations/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.reading import read_text
from orchestrator.store.calls import Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.keys import ScopeKeys


class ListingRow(NamedTuple):
    """A change of one state in the indices, in the column order of `lua/simulations/index.lua`.

    Attributes:
        number: number of the change, higher than that of any earlier change of the state.
        listed: 1 to list the state, 0 to remove it.
        type: encoded type of the agent; may be empty.
        cell: cell of the plane; empty without a position.
        deadline: ms at which the record expires.
    """

    agent: str
    state: str
    number: int
    listed: int
    step: int
    type: str
    cell: str
    x: float
    y: float
    deadline: int


class PushReply(NamedTuple):
    """Reply: `ok` or `duplicate`, number of items in the buffer, number of dropped ones."""

    status: str
    length: int
    dropped: int


def index(keys: ScopeKeys, *, rows: Sequence[ListingRow], ttl_ms: int) -> Call[int]:
    """List up to 500 states, or remove them; return how many changed."""
    args: Arguments = {"scope": keys.root, "rows": pack_rows(rows), "ttl_ms": ttl_ms, "now_arg": ""}
    return Call("simulations/index", args, int)


def push(keys: ScopeKeys, *, op: str, entity: str, texts: Sequence[bytes], cap: int, ttl_ms: int) -> Call[PushReply]:
    """Append up to 500 JSON texts to the buffer of an entity (its encoded name)."""

    def parse(reply: list[Any]) -> PushReply:
        return PushReply(read_text(reply[0]), reply[1], reply[2])

    rows = pack_rows([(opaque(text),) for text in texts])
    args: Arguments = {"scope": keys.root, "op": op, "entity": entity, "rows": rows, "cap": cap, "ttl_ms": ttl_ms}
    return Call("simulations/push", args, parse)
