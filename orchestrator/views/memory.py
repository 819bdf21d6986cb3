"""Reads memories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import NotFound
from orchestrator.memory import queries
from orchestrator.store.scoped import bind_scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from orchestrator.memory.model import MemoryQuery, Recall, RecordAccess, StoredRecord
    from orchestrator.memory.owner import MemoryOwner
    from orchestrator.services import Services


async def list_records(services: Services, owner: MemoryOwner, query: MemoryQuery) -> Recall:
    """Read the records of a memory that meet all conditions.

    Raises:
        InvalidInput: not an owner, or an invalid condition.
    """
    return await queries.recall(bind_scope(services.store, services.settings, *owner), query)


async def read_record(services: Services, owner: MemoryOwner, id_: str) -> tuple[StoredRecord, RecordAccess | None]:
    """Read a record, and how often it was touched; superseded ones too.

    Raises:
        InvalidInput: not an owner.
        NotFound: no such record, or it has expired.
    """
    scope = bind_scope(services.store, services.settings, *owner)
    (found,) = await queries.read_records(scope, [id_], None)
    if found is None:
        raise NotFound(f"{owner.words} has no record {id_!r}; `orc memory list` lists those that there are")
    return found, (await queries.read_accesses(scope, [id_])).get(id_)


async def read_all_records(services: Services, owner: MemoryOwner) -> AsyncGenerator[list[StoredRecord]]:
    """Yield all records of a memory, superseded ones too, in pages: by tier, those that expire first in front.

    Raises:
        InvalidInput: not an owner.
    """
    async for page in queries.read_pages(bind_scope(services.store, services.settings, *owner)):
        yield page


async def count_records(services: Services, agents: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the number of records of each agent by tier; agents without records are left out."""
    scopes = [bind_scope(services.store, services.settings, "agent", agent) for agent in agents]
    counts = await queries.count_records(scopes)
    return {agent: tiers for agent, tiers in zip(agents, counts, strict=True) if any(tiers.values())}
