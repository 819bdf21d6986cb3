"""Reads memories."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.core.reading import read_whole
from orchestrator.memory import queries
from orchestrator.memory.model import StoredRecord  # noqa: TC001 - public dataclasses keep their types resolvable
from orchestrator.store.scoped import bind_scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from orchestrator.memory.model import MemoryQuery, Recall, RecordAccess
    from orchestrator.memory.owner import MemoryOwner
    from orchestrator.services import Services

PAGE_BYTES: Final = 1024 * 1024
"""Bytes of the contents of a page, because to decode them keeps the event loop from other work."""
_CURSOR: Final = re.compile(r"(-?\d{1,13})/(\d{1,6})", re.ASCII)


async def list_records(services: Services, owner: MemoryOwner, query: MemoryQuery) -> Recall:
    """Read the records of a memory that meet all conditions.

    Raises:
        InvalidInput: not an owner, or an invalid condition.
    """
    return await queries.recall(bind_scope(services.store, services.settings, *owner), query)


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Some records of a memory.

    Attributes:
        records: those that match, the latest steps first.
        cursor: for the next page; None at the end.
        looked: number of index entries that the server looked at.
        complete: False if it stopped at its bound, so that more records may match.
    """

    records: tuple[StoredRecord, ...]
    cursor: str | None
    looked: int
    complete: bool


async def read_record_page(
    services: Services, owner: MemoryOwner, query: MemoryQuery, *, after: str | None = None
) -> RecordPage:
    """Read the next records of a memory that meet all conditions, in the order `new`.

    Args:
        services: of the pool.
        owner: of the memory.
        query: its `limit` is the number of records of a page, which has fewer if they have more than `PAGE_BYTES`.
        after: cursor of the page before.

    Raises:
        InvalidInput: not an owner, an invalid condition, or no cursor.
    """
    step, seen = (None, 0) if after is None else _parse_cursor(after)
    wanted = query if step is None else replace(query, until=step if query.until is None else min(query.until, step))
    scope = bind_scope(services.store, services.settings, *owner)
    found, more = await queries.recall_part(scope, replace(wanted, order="new"), offset=seen, most_bytes=PAGE_BYTES)
    cursor = None
    if more and found.records:
        # Continues at a step, not at a rank, because records end and are added meanwhile.
        last = found.records[-1].step
        of_last = sum(record.step == last for record in found.records)
        cursor = f"{last}/{of_last + (seen if last == step else 0)}"
    return RecordPage(found.records, cursor, found.scanned, found.complete)


def _parse_cursor(text: str) -> tuple[int, int]:
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidInput(f"cursor {ascii(text)[:80]} is not one of a memory; give one as it was returned")
    return read_whole(found[1]), read_whole(found[2])


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
