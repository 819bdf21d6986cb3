"""Steps of the upkeep of scopes: the supervisor takes them while it scans the scopes of a prefix.

A step gets a scope that has a key of its kind. It is bounded, safe beside writers, and safe to repeat, because two
pools of a prefix have two leading supervisors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from orchestrator.memory.upkeep import tend_memory
from orchestrator.memory.vector_indexing import index_vectors
from orchestrator.store.key_kinds import MEMORIES
from orchestrator.store.keys import PENDING, VECTORS_PENDING, ScopeKeys
from orchestrator.store.scoped import ScopedStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.services import Services

Step: TypeAlias = "Callable[[Services, ScopeKeys], Awaitable[int]]"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """One step.

    Attributes:
        name: a word for the log.
        kind: suffix of the kind of key that a scope must have, as in the table of keys.
        run: takes the step for one scope; returns the number of changes.
    """

    name: str
    kind: str
    run: Step


async def _tend_memory(services: Services, keys: ScopeKeys) -> int:
    return await tend_memory(services.store, services.settings, keys) if keys.kind in MEMORIES else 0


async def _index_vectors(services: Services, keys: ScopeKeys) -> int:
    return await index_vectors(ScopedStore(services.store, keys, services.settings))


UPKEEP: Final[tuple[Upkeep, ...]] = (
    Upkeep("memory", ScopeKeys.tier_part("stm", "exp"), _tend_memory),
    Upkeep("memory", ScopeKeys.tier_part("im", "exp"), _tend_memory),
    Upkeep("memory", PENDING, _tend_memory),
    Upkeep("vectors", VECTORS_PENDING, _index_vectors),
)
"""All steps."""
