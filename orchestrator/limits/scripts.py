"""Wraps the scripts in `lua/limits/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.reading import read_text, read_whole
from orchestrator.store.calls import Arguments, Call

if TYPE_CHECKING:
    from orchestrator.store.keys import ScopeKeys


class Checked(NamedTuple):
    """Reply: allowed, duplicate or refused; the number in the window; us until a refused call would fit."""

    status: str
    used: int
    retry_us: int


def check(
    keys: ScopeKeys, *, op: str, most: int, window_us: int, cost: int, sums: bool, now_us: str = ""
) -> Call[Checked]:
    """Take room in a window. `sums` says that no program of the pool still counts one member per unit."""

    def parse(reply: list[Any]) -> Checked:
        return Checked(read_text(reply[0]), reply[1], reply[2])

    args: Arguments = {
        "scope": keys.root,
        "op": op,
        "most": most,
        "window_us": window_us,
        "cost": cost,
        "sums": read_whole(sums),
        "now_arg": now_us,
    }
    return Call("limits/check", args, parse)
