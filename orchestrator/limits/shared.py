"""Copies what keeps calls from a provider that pools share, from the scope of its limit into a pool (protocol rule 41).

The scope decides about calls. The copy keeps tasks of agents that have the limit in their queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import StoreError
from orchestrator.limits import scripts
from orchestrator.limits.providers import STATES
from orchestrator.store.calls import opaque
from orchestrator.store.keys import PoolKeys, ScopeKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.keys import ProviderKeys
    from orchestrator.store.store import Store

COPIED: Final = (*STATES, "trial")
"""Fields of `blocked:NAME` that a pool copies."""
CLEARED: Final = "cleared"
"""Field of the copy: an operator has cleared the provider, and its scope is not cleared yet."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of the copy that a pool has of a shared provider with its scope.

    Attributes:
        differs: whether the copy of the pool is not that of the scope.
        cleared: the mark of a command to clear the provider that the scope has not followed; None: there is none.
    """

    differs: bool
    cleared: bytes | None


def scope_of(keys: PoolKeys, name: str) -> ScopeKeys:
    """Return the keys of the limit of a provider that all pools of the prefix share."""
    return ScopeKeys(keys.prefix, "limit", name)


def keys_of(keys: PoolKeys, name: str, *, shared: bool) -> ProviderKeys:
    """Return the keys that count the calls of a provider: those of the pool, or of the scope."""
    return scope_of(keys, name) if shared else keys


def differs(scope: Sequence[bytes | None], pool: Sequence[bytes | None]) -> bool:
    """Return whether a pool lacks what the scope has: their values of `COPIED`.

    A trial without a call is a start that the pool awaits itself.
    """
    awaits = scope[-1] is None and pool[-1] is not None and pool[-1].endswith(b" ")
    return scope[:-1] != pool[:-1] or (scope[-1] != pool[-1] and not awaits)


async def compare(store: Store, keys: PoolKeys, names: Sequence[str]) -> list[Compared | StoreError]:
    """Compare the copies of the pool with the scopes, in one round trip.

    A key of another type is an error, as is a scope whose server, of a cluster, does not answer.

    Raises:
        StoreError: the server of the pool did not answer.
    """
    # The pool comes first: a pipeline fails as a whole only if the first server that it asks does not answer.
    asked: list[Sequence[Argument]] = [("HMGET", keys.blocked(name), *COPIED, CLEARED) for name in names]
    asked += [("HMGET", scope_of(keys, name).blocked(name), *COPIED) for name in names]
    replies = await store.pipeline(asked)
    found: list[Compared | StoreError] = []
    for pool, scope in zip(replies[: len(names)], replies[len(names) :], strict=True):
        failure = next((reply for reply in (scope, pool) if isinstance(reply, StoreError)), None)
        found.append(failure or Compared(differs(scope, pool[:-1]), pool[-1]))
    return found


async def copy_states(
    store: Store, keys: PoolKeys, name: str, *, shown: str = "", cleared: bytes = b"", retry_for_s: float = 0.0
) -> bool:
    """Copy the states of a provider into the pool; return whether the pool has changed.

    Args:
        store: of the pool.
        keys: of the pool.
        name: the limit.
        shown: its limits as the pool lists them; empty: as they are.
        cleared: value of `CLEARED` that the scope has followed.
        retry_for_s: how long calls are repeated while Redis does not answer.

    Raises:
        StoreError: Redis did not answer, or a key has another type.
    """
    found = await store.execute("HMGET", scope_of(keys, name).blocked(name), *COPIED)
    states = [(field, opaque(value)) for field, value in zip(COPIED, found, strict=True) if value is not None]
    call = scripts.follow(keys, name=name, states=states, shown=shown, cleared=cleared)
    return await store.call(call, retry_for_s=retry_for_s)
