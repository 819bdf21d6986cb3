"""Wraps the scripts in `lua/boards/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.reading import read_text, read_whole
from orchestrator.store.calls import Arguments, Call

if TYPE_CHECKING:
    from orchestrator.store.keys import ScopeKeys


class AddReply(NamedTuple):
    """Reply: counted, duplicate or full; the day and the member's count."""

    status: str
    day: str = ""
    total: int = 0


def add(keys: ScopeKeys, *, op: str, member: str, by: int, most: int, now_us: str = "") -> Call[AddReply]:
    """Add to the count of a member on today's board."""

    def parse(reply: list[Any]) -> AddReply:
        status, *rest = (read_text(part) for part in reply)
        return AddReply(status, rest[0], read_whole(rest[1])) if rest else AddReply(status)

    args: Arguments = {"scope": keys.root, "op": op, "member": member, "by": by, "most": most, "now_arg": now_us}
    return Call("boards/add", args, parse)
