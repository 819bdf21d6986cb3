"""Wraps the script `lua/tasks/why.lua`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.store.calls import Arguments, Call
from orchestrator.why.facts import parse_findings

if TYPE_CHECKING:
    from orchestrator.store.keys import PoolKeys
    from orchestrator.why.facts import Findings


def why(keys: PoolKeys, *, id_: str, limit: int = 100, now_us: str = "") -> Call[Findings | None]:
    """Return what a task waits for, or None if it is unknown. Reads at most `limit` agents."""
    args: Arguments = {"pool": keys.root, "id": id_, "limit": limit, "now_arg": now_us}
    return Call("tasks/why", args, lambda reply: parse_findings(id_, reply))
