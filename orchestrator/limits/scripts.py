"""Wraps the scripts in `lua/limits/`, one function per script."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.reading import read_text, read_whole, read_word
from orchestrator.store.calls import Arguments, Call, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from orchestrator.limits.providers import ProviderLimit
    from orchestrator.store.keys import PoolKeys, ProviderKeys, ScopeKeys


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


class CallStatus(StrEnum):
    """Reply to a call of a provider that wants to begin."""

    TAKEN = "taken"
    FULL = "full"
    BLOCKED = "blocked"


class CallReply(NamedTuple):
    """Reply of `take`.

    Attributes:
        wait_us: of `full`: until it may fit; 0: unknown.
        until_ms: of `blocked`: its end by the server's clock; 0: until an operator clears it.
        left_ms: of `blocked`: time until then; 0: until an operator clears it.
        what: the limit without room, or the state of the provider.
        told: stored value of the state.
    """

    status: CallStatus
    wait_us: int
    until_ms: int
    what: str
    told: bytes
    left_ms: int = 0


def take(
    keys: ProviderKeys,
    *,
    name: str,
    call: str,
    tokens: int,
    definition: ProviderLimit,
    lease_ms: int,
    by: str,
    now_us: str = "",
) -> Call[CallReply]:
    """Begin a call of a provider."""

    def parse(reply: list[Any]) -> CallReply:
        status, number, what, told = read_word(CallStatus, reply[0]), reply[1], read_text(reply[2]), reply[3]
        blocked = status is CallStatus.BLOCKED
        left_ms = reply[4] if blocked else 0
        return CallReply(status, 0 if blocked else number, number if blocked else 0, what, told, left_ms)

    args: Arguments = {
        "pool": keys.root,
        "name": name,
        "call": call,
        "tokens": tokens,
        "definition": pack_rows([definition.row]),
        "shared": "1" if definition.shared else "",
        "lease_ms": lease_ms,
        "by": by,
        "now_arg": now_us,
    }
    return Call("limits/take", args, parse)


class SettleStatus(StrEnum):
    """Reply to the end of a call of a provider."""

    SETTLED = "settled"
    REOPENED = "reopened"
    GONE = "gone"


class CallSettled(NamedTuple):
    """Reply of `settle`: the end in ms of the block that the failure caused, or 0."""

    status: SettleStatus
    broken_ms: int


def settle(
    keys: ProviderKeys,
    *,
    name: str,
    call: str,
    used: int,
    tokens_us: int,
    outcome: str,
    told: bytes = b"",
    shared: bool = False,
    now_us: str = "",
) -> Call[CallSettled]:
    """End a call of a provider; `used`: its tokens, -1 for those that it reserved; `shared`: pools share it."""
    args: Arguments = {
        "pool": keys.root,
        "name": name,
        "call": call,
        "used": used,
        "tokens_us": tokens_us,
        "outcome": outcome,
        "told": told,
        "shared": "1" if shared else "",
        "now_arg": now_us,
    }
    return Call("limits/settle", args, lambda reply: CallSettled(read_word(SettleStatus, reply[0]), reply[1]))


def renew(
    keys: ProviderKeys, *, name: str, calls: Sequence[tuple[str, int]], lease_ms: int, now_us: str = ""
) -> Call[int]:
    """Extend the leases of up to 500 calls of a provider, each with its `at_once`; return how many have one then."""
    args: Arguments = {
        "pool": keys.root,
        "name": name,
        "rows": pack_rows(calls),
        "lease_ms": lease_ms,
        "now_arg": now_us,
    }
    return Call("limits/renew", args, read_whole)


class BlockReply(NamedTuple):
    """Reply of `block`.

    Attributes:
        until_ms: the end of the state; 0: until an operator clears it; -1: the told end has passed, nothing changed.
        left_ms: time until the end; 0: until an operator clears it.
    """

    until_ms: int
    left_ms: int = 0

    @property
    def has_passed(self) -> bool:
        """Return whether the told end has passed."""
        return self.until_ms < 0


def block(
    keys: ProviderKeys, *, name: str, state: str, told: bytes, for_ms: int = 0, until_ms: int = 0, now_us: str = ""
) -> Call[BlockReply]:
    """Keep all calls from a provider."""
    args: Arguments = {
        "pool": keys.root,
        "name": name,
        "state": state,
        "for_ms": for_ms,
        "until_ms": until_ms,
        "told": told,
        "now_arg": now_us,
    }
    return Call("limits/block", args, lambda reply: BlockReply(*reply))


def clear(keys: ScopeKeys, *, name: str) -> Call[bool]:
    """End all states of a provider that pools share; return whether there were any."""
    return Call("limits/clear", {"scope": keys.root, "name": name}, bool)


def follow(
    keys: PoolKeys,
    *,
    name: str,
    states: Sequence[tuple[str, msgspec.Raw]],
    shown: str = "",
    cleared: bytes = b"",
    now_us: str = "",
) -> Call[bool]:
    """Copy what keeps calls from a provider that pools share into a pool; return whether it has changed.

    `states` has the fields of `blocked:NAME` in the scope, `shown` the limits as they are listed, `cleared` the mark of
    the command to clear that has been carried out.
    """
    args: Arguments = {
        "pool": keys.root,
        "name": name,
        "shown": shown,
        "rows": pack_rows(states),
        "cleared": cleared,
        "now_arg": now_us,
    }
    return Call("limits/follow", args, lambda reply: read_text(reply) == "changed")
