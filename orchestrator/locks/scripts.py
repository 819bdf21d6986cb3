"""Wraps the scripts in `lua/locks/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.reading import read_text, read_word
from orchestrator.locks.model import DropReply, LockInfo, LockProof, TakeReply, TakeStatus, info
from orchestrator.store.calls import Arguments, Call, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.keys import ScopeKeys

_NO_HOLDER: Final[tuple[Any, ...]] = (0, b"", 0)


def take(
    keys: ScopeKeys,
    *,
    lock: str,
    nonce: str,
    owner: str,
    ttl_ms: int,
    wait_ms: int = 0,
    woken: bool = False,
    listens: bool = False,
    now_us: str = "",
) -> Call[TakeReply]:
    """Take a named lock, or register as a waiter."""
    args: Arguments = {
        "scope": keys.root,
        "lock": lock,
        "nonce": nonce,
        "owner": owner,
        "ttl_ms": ttl_ms,
        "wait_ms": wait_ms,
        "woken": "1" if woken else "",
        "listens": "1" if listens else "",
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
    listens: bool = False,
    pool: str = "",
    now_us: str = "",
) -> Call[TakeReply]:
    """Take the execution lock of an attempt. A higher generation of the same task takes it over.

    With `pool` the task joins the line of an exclusive lock that is held.
    """
    args: Arguments = {
        "scope": keys.root,
        "lock": lock,
        "task": task,
        "generation": generation,
        "nonce": nonce,
        "ttl_ms": ttl_ms,
        "wait_ms": wait_ms,
        "woken": "1" if woken else "",
        "pool_name": pool,
        "listens": "1" if listens else "",
        "now_arg": now_us,
    }
    return Call("locks/claim", args, _taken)


def enter(
    keys: ScopeKeys, *, task: str, nonce: str, wait_ms: int, listens: bool = False, now_us: str = ""
) -> Call[TakeReply]:
    """Ask whether the exclusive lock of a scope admits changes of other owners, or register as a waiter."""
    args: Arguments = {
        "scope": keys.root,
        "task": task,
        "nonce": nonce,
        "wait_ms": wait_ms,
        "listens": "1" if listens else "",
        "now_arg": now_us,
    }
    return Call("locks/enter", args, _taken)


def renew(keys: ScopeKeys, *, rows: Sequence[tuple[str, str, int]], now_us: str = "") -> Call[list[tuple[bool, str]]]:
    """Restart the lifetime of locks, given as (lock, value, ttl in ms).

    Returns (whether it is kept, what the lock holds now) for each.
    """

    def parse(reply: list[bytes]) -> list[tuple[bool, str]]:
        found = zip(*[iter(reply)] * 2, strict=True)
        return [(word == b"kept", read_text(present)) for word, present in found]

    return Call("locks/renew", {"scope": keys.root, "rows": pack_rows(rows), "now_arg": now_us}, parse)


def drop(keys: ScopeKeys, *, rows: Sequence[tuple[str, str]], now_us: str = "") -> Call[list[DropReply]]:
    """Release locks or stop waiting for them, given as (lock, nonce)."""
    return Call("locks/drop", {"scope": keys.root, "rows": pack_rows(rows), "now_arg": now_us}, _released)


def free(keys: ScopeKeys, *, rows: Sequence[tuple[str, str, str]], now_us: str = "") -> Call[list[DropReply]]:
    """Release execution locks of dead attempts, given as (lock, task, generation)."""
    return Call("locks/free", {"scope": keys.root, "rows": pack_rows(rows), "now_arg": now_us}, _released)


def await_for(proof: LockProof, *, pool: str, tasks: Sequence[str]) -> Call[list[str] | None]:
    """Record the tasks that the holder of an execution lock waits for.

    Returns those of them that waited in the line of the lock, to be woken; None if the lock has another holder.
    """

    def parse(reply: list[bytes]) -> list[str] | None:
        status, *woken = reply
        return [read_text(member) for member in woken] if status == b"noted" else None

    args: Arguments = {
        "scope": proof.keys.root,
        "lock": proof.lock,
        "value": proof.value,
        "pool_name": pool,
        "rows": pack_rows([(task,) for task in tasks]),
    }
    return Call("locks/await_for", args, parse)


def peek(keys: ScopeKeys, *, lock: str = "", limit: int = 500, now_us: str = "") -> Call[list[LockInfo]]:
    """List the holder of a lock, or all held locks of a scope."""

    def parse(reply: list[Any]) -> list[LockInfo]:
        found = zip(*[iter(reply)] * 4, strict=True)
        return [info(read_text(name), read_text(value), left_ms, waiting) for name, value, left_ms, waiting in found]

    return Call("locks/peek", {"scope": keys.root, "lock": lock, "limit": limit, "now_arg": now_us}, parse)


def _taken(reply: list[Any]) -> TakeReply:
    word, value, *rest = reply
    left_ms, wake, ahead = [*rest, *_NO_HOLDER[len(rest) :]]
    return TakeReply(read_word(TakeStatus, word), read_text(value), left_ms, read_text(wake), ahead)


def _released(reply: list[bytes]) -> list[DropReply]:
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return [DropReply(word == b"released", read_text(wake)) for word, wake in pairs]
