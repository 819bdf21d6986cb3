"""Wraps the script `tasks/why`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.store.calls import Arguments, Call
from orchestrator.why.facts import parse_findings

if TYPE_CHECKING:
    from orchestrator.store.keys import PoolKeys
    from orchestrator.why.facts import Findings


def why(keys: PoolKeys, *, id_: str, limit: int = 100, now_us: str = "") -> Call[Findings | None]:
    """Find what a task waits for, looking at `limit` agents at most; None: the task is unknown. Changes nothing."""
    args: Arguments = {"pool": keys.root, "id": id_, "limit": limit, "now_arg": now_us}
    return Call("tasks/why", args, lambda reply: parse_findings(id_, reply))
