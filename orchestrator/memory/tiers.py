"""Moves records between tiers, and from the intermediate tier to long-term storage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import decode_foreign, encode_foreign
from orchestrator.core.reading import json_reader, read_json, read_text, read_whole
from orchestrator.memory import scripts
from orchestrator.memory.encoding import is_whole
from orchestrator.memory.headers import RecordHeader, decode_header
from orchestrator.memory.model import MAX_LIMIT, Record
from orchestrator.secondary.model import StoredItem
from orchestrator.store.keys import OUTBOX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.memory.writer import MemoryWriter
    from orchestrator.secondary.model import SecondaryStore
    from orchestrator.store.scoped import ScopedStore

RESOURCE: Final = "memory"
"""Resource of the records of an agent in long-term storage; the scope is the root of the agent's keys."""
_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class TransitionReport:
    """Result of `Memory.transition`.

    Attributes:
        moved: number of records that moved to the intermediate tier.
        stayed: number of records of the age that are less important than `memory.keep_importance`, or superseded.
        complete: False if more records may have to move.
    """

    moved: int
    stayed: int
    complete: bool


class _Entry(msgspec.Struct, frozen=True):
    """A record in long-term storage.

    Attributes:
        embedding: its vector, 32-bit floats, little-endian; items of older programs have none.
        space: space of the vector.
    """

    id: str
    step: int
    kind: str
    content: msgspec.Raw
    importance: float
    version: int
    stored_ms: int
    action: str | None = None
    position: tuple[float, float] | None = None
    subject: str | None = None
    simulation: str | None = None
    agent_type: str | None = None
    superseded_by: str | None = None
    accesses: int = 0
    meta: msgspec.Raw = msgspec.Raw(b"{}")
    embedding: bytes | None = None
    space: str = ""


_encode_entry: Final = msgspec.json.Encoder().encode
_decode_entry: Final = json_reader(_Entry)


async def move_due(writer: MemoryWriter, limit: int) -> TransitionReport:
    """Move short-term records that are due to the intermediate tier.

    Raises:
        InvalidInput: not a limit.
        MemoryFull: the intermediate tier is full.
    """
    _check_limit(limit)
    settings = writer.settings
    moved = stayed = 0
    # Records that stay are at the front of the index. At most ten times the limit of them are passed.
    while True:
        make_call = partial(
            scripts.transition,
            age_ms=round(settings.stm_age_s * 1000),
            least=settings.keep_importance,
            skip=stayed,
            limit=min(limit - moved, _AT_ONCE),
        )
        reply = await writer.change(make_call, None)
        moved, stayed, more = moved + reply.rest[0], stayed + reply.rest[1], bool(reply.rest[2])
        if not more or moved >= limit or stayed >= 10 * limit:
            return TransitionReport(moved, stayed, complete=not more)


async def save_old(writer: MemoryWriter, sink: SecondaryStore, *, older_than_ms: int, limit: int) -> int:
    """Move intermediate records to long-term storage, and return how many it has saved.

    Raises:
        InvalidInput: not a limit.
        SecondaryStoreError: the storage failed; the records wait in the outbox.
    """
    _check_limit(limit)
    saved, passed, done, ttl_ms = 0, 0, False, round(writer.settings.outbox_ttl_s * 1000)
    while saved < limit:
        part = min(limit - saved, _AT_ONCE)
        # What an earlier call has left comes first, so that the outbox holds no more than the calls under way.
        entries = await writer.scope.read("XRANGE", writer.scope.keys.key(OUTBOX), "-", "+", "COUNT", part)
        if not entries:
            if done:
                break
            make_call = partial(scripts.offload, age_ms=older_than_ms, limit=part, skip=passed, ttl_ms=ttl_ms)
            reply = await writer.change(make_call, None)
            passed, done = passed + reply.rest[1], not reply.rest[2]
            if done and not reply.rest[0]:
                break
            continue
        items = [_item(read_text(entry), fields) for entry, fields in entries]
        await sink.save(writer.scope.keys.root, RESOURCE, items)
        rows = [
            (item.id, read_text(entry), encode_foreign("subject", item.subject) if item.subject else "")
            for item, (entry, _) in zip(items, entries, strict=True)
        ]
        reply = await writer.change(partial(scripts.acknowledge, rows=rows), None)
        # A `delete`, `forget` or `erase` beside the save looked for these in the storage too early.
        gone = set(reply.rest[1:])
        for item, (entry, _) in zip(items, entries, strict=True):
            if entry in gone:
                await sink.delete(writer.scope.keys.root, RESOURCE, [item.id], upto=item.version)
        saved += len(items) - len(gone)
    return saved


async def load_saved(
    scope: ScopedStore, sink: SecondaryStore, since: int | None, *, embedder: str | None
) -> AsyncIterator[Record]:
    """Iterate over the records that long-term storage has, by step, without superseded ones.

    Args:
        scope: of the memory.
        sink: the storage.
        since: first step; None for all.
        embedder: name of the embedder whose vectors are wanted; None for all vectors.
    """
    async for item in sink.load(scope.keys.root, RESOURCE, None if since is None else since - 1):
        entry = _decode_entry(item.data)
        # Stored again, it would be recalled beside the record that replaces it.
        if entry.superseded_by is not None:
            continue
        yield Record(
            id=entry.id,
            step=entry.step,
            kind=entry.kind,
            content=read_json(entry.content),
            importance=entry.importance,
            action=entry.action,
            position=entry.position,
            subject=entry.subject,
            simulation=entry.simulation,
            agent_type=entry.agent_type,
            meta=read_json(entry.meta),
            embedding=entry.embedding if embedder in {None, entry.space.partition(":")[2]} else None,
        )


def _item(entry: str, flat: list[bytes]) -> StoredItem:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    header, id_ = decode_header(fields[b"h"]), read_text(fields[b"i"])
    stored = _stored_entry(id_, header, fields)
    # Versions of records begin again when an id comes back; ids of entries only rise.
    ms, _, number = entry.partition("-")
    version = (read_whole(ms) << 10) + min(read_whole(number), 1023)
    return StoredItem(id_, stored.step, version, _encode_entry(stored), stored.subject or "")


def _stored_entry(id_: str, header: RecordHeader, fields: dict[bytes, bytes]) -> _Entry:
    return _Entry(
        id=id_,
        step=math.floor(header.score),
        kind=decode_foreign(header.kind),
        content=msgspec.Raw(fields[b"d"]),
        importance=header.importance,
        version=header.version,
        stored_ms=header.stored,
        action=_name(header.action),
        position=None if header.x is False else (float(header.x), float(header.y)),
        subject=_name(header.subject),
        simulation=_name(header.simulation),
        agent_type=_name(header.type),
        superseded_by=header.superseded or None,
        accesses=read_whole(fields[b"a"].partition(b" ")[0]),
        meta=msgspec.Raw(header.meta.encode() or b"{}"),
        embedding=fields.get(b"v"),
        space=read_text(fields.get(b"s", b"")),
    )


def _name(encoded: str) -> str | None:
    return decode_foreign(encoded) if encoded else None


def _check_limit(limit: Any) -> None:
    if not is_whole(limit) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit must be a whole number from 1 to {MAX_LIMIT}, not {limit!r:.80}")
