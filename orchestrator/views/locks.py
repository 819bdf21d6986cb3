"""Reads the locks of one scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import NotFound

if TYPE_CHECKING:
    from orchestrator.locks.model import LockInfo
    from orchestrator.locks.named import Locks


async def find_lock(locks: Locks, name: str) -> LockInfo:
    """Read a held lock by the name that `Locks.list` gives it.

    Raises:
        NotFound: it is not held.
    """
    # A named lock may have the name of an execution lock, and is meant then.
    for lock in (await locks.peek(name), *await locks.list()):
        if lock is not None and lock.name == name and lock.nonce:
            return lock
    raise NotFound(f"lock {name!r} of {locks.scope} is not held; see `orc locks list {locks.scope}`")
