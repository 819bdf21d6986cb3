"""One typed wrapper per script in `lua/agent_state/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orchestrator.store.calls import Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.keys import ScopeKeys


class FieldRow(NamedTuple):
    """One change of a field, in the column order of `lua/agent_state/change.lua`; `mode` is set or bump."""

    field: str
    mode: str
    value: bytes


class Changed(NamedTuple):
    """What was answered: ok and duplicate with the new numbers, or fenced, full, number with what stands in the way."""

    status: str
    rest: tuple[str, ...]


def change(
    keys: ScopeKeys, *, op: str, rows: Sequence[FieldRow], most: int, lock: str = "", token: str = ""
) -> Call[Changed]:
    """Change fields of an agent's state: all or none."""

    def parse(reply: list[bytes]) -> Changed:
        status, *rest = (part.decode() for part in reply)
        return Changed(status, tuple(rest))

    packed = pack_rows([(row.field, row.mode, opaque(row.value)) for row in rows])
    args: Arguments = {"scope": keys.root, "op": op, "lock": lock, "token": token, "rows": packed, "most": most}
    return Call("agent_state/change", args, parse)
