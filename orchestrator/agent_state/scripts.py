"""Wraps the scripts in `lua/agent_state/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orchestrator.core.reading import read_text
from orchestrator.store.calls import Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.locks.fenced_writer import CallerRow
    from orchestrator.store.keys import ScopeKeys


class FieldRow(NamedTuple):
    """One change of a field, in the column order of `lua/agent_state/change.lua`; `mode` is set or bump."""

    field: str
    mode: str
    value: bytes


class Changed(NamedTuple):
    """Reply: `ok` or `duplicate` with the new numbers; else why nothing was changed, with the field or lock value."""

    status: str
    rest: tuple[bytes, ...]


def change(keys: ScopeKeys, *, caller: CallerRow, rows: Sequence[FieldRow], most: int) -> Call[Changed]:
    """Change fields of an agent's state: all or none."""

    def parse(reply: list[bytes]) -> Changed:
        status, *rest = reply
        return Changed(read_text(status), tuple(rest))

    args: Arguments = {
        "scope": keys.root,
        "caller": pack_rows([caller]),
        "rows": pack_rows([(row.field, row.mode, opaque(row.value)) for row in rows]),
        "most": most,
    }
    return Call("agent_state/change", args, parse)
