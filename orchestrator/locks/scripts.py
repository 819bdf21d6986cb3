"""One typed wrapper per script in `lua/locks/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.locks.model import LockInfo, LockProof, TakeReply, TakeStatus, info
from orchestrator.store.calls import Arguments, Call, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.keys import ScopeKeys


def take(
    keys: ScopeKeys,
    *,
    lock: str,
    nonce: str,
    owner: str,
    ttl_ms: int,
    wait_ms: int = 0,
    woken: bool = False,
    now_us: str = "",
) -> Call[TakeReply]:
    """Take a named lock, or note that somebody waits for it."""
    args: Arguments = {
        "scope": keys.root,
        "lock": lock,
        "nonce": nonce,
        "owner": owner,
        "ttl_ms": ttl_ms,
        "wait_ms": wait_ms,
        "woken": "1" if woken else "",
        "now_arg": now_us,
    }
    return Call("locks/take", args, _taken)


def claim(
    keys: ScopeKeys,
    *,
    lock: str,
    task: str,
    generation: str,
    nonce: str,
    ttl_ms: int,
    wait_ms: int = 0,
    woken: bool = False,
    now_us: str = "",
) -> Call[TakeReply]:
    """Take the execution lock of an attempt; a higher generation of the same task takes over."""
    args: Arguments = {
        "scope": keys.root,
        "lock": lock,
        "task": task,
        "generation": generation,
        "nonce": nonce,
        "ttl_ms": ttl_ms,
        "wait_ms": wait_ms,
        "woken": "1" if woken else "",
        "now_arg": now_us,
    }
    return Call("locks/claim", args, _taken)


def renew(keys: ScopeKeys, *, rows: Sequence[tuple[str, str, int]], now_us: str = "") -> Call[list[tuple[bool, str]]]:
    """Give locks their whole time again; rows are (lock, value, ttl in ms).

    Answers (whether it is kept, what the lock holds now) for each.
    """

    def parse(reply: list[bytes]) -> list[tuple[bool, str]]:
        found = zip(*[iter(reply)] * 2, strict=True)
        return [(word == b"kept", present.decode()) for word, present in found]

    return Call("locks/renew", {"scope": keys.root, "rows": pack_rows(rows), "now_arg": now_us}, parse)


def drop(keys: ScopeKeys, *, rows: Sequence[tuple[str, str]], now_us: str = "") -> Call[list[bool]]:
    """Give locks up, or leave those who wait for them; rows are (lock, nonce). Answers which were held."""
    return Call("locks/drop", {"scope": keys.root, "rows": pack_rows(rows), "now_arg": now_us}, _released)


def free(keys: ScopeKeys, *, rows: Sequence[tuple[str, str, str]], now_us: str = "") -> Call[list[bool]]:
    """Release execution locks of dead attempts; rows are (lock, task, generation). Answers which were held."""
    return Call("locks/free", {"scope": keys.root, "rows": pack_rows(rows), "now_arg": now_us}, _released)


def await_for(proof: LockProof, *, tasks: Sequence[str]) -> Call[bool]:
    """Note that the holder of an execution lock waits for tasks; False: it is not the holder."""
    args: Arguments = {
        "scope": proof.keys.root,
        "lock": proof.lock,
        "value": proof.value,
        "rows": pack_rows([(task,) for task in tasks]),
    }
    return Call("locks/await_for", args, lambda reply: bool(reply == b"noted"))


def peek(keys: ScopeKeys, *, lock: str = "", limit: int = 500, now_us: str = "") -> Call[list[LockInfo]]:
    """See who holds a lock, or all locks of a scope."""

    def parse(reply: list[Any]) -> list[LockInfo]:
        found = zip(*[iter(reply)] * 4, strict=True)
        return [info(name.decode(), value.decode(), left_ms, waiting) for name, value, left_ms, waiting in found]

    return Call("locks/peek", {"scope": keys.root, "lock": lock, "limit": limit, "now_arg": now_us}, parse)


def _taken(reply: list[Any]) -> TakeReply:
    word, value, *left_ms = reply
    return TakeReply(TakeStatus(word.decode()), value.decode(), *left_ms)


def _released(reply: list[bytes]) -> list[bool]:
    return [word == b"released" for word in reply]
