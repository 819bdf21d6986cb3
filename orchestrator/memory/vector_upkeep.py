"""Gives records the vectors that they lack, and removes vectors, in bounded steps."""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_json, read_text, read_whole
from orchestrator.memory import scripts
from orchestrator.memory.encoding import is_whole
from orchestrator.memory.headers import decode_header
from orchestrator.memory.model import TIERS
from orchestrator.memory.vector_indexing import NewVector
from orchestrator.memory.writer import MAX_CALL_BYTES, MAX_ROWS
from orchestrator.store.keys import VECTORS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from orchestrator.memory.headers import RecordHeader
    from orchestrator.memory.scripts import MemoryReply
    from orchestrator.memory.text_vectors import TextVectors
    from orchestrator.memory.writer import MemoryWriter
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.rungs import VectorIndexing

MAX_EMBEDDED: Final = 100_000
_SCANNED: Final = 200


class _Bare(NamedTuple):
    """A record without a vector."""

    id: str
    header: RecordHeader
    content: bytes


async def embed_missing(writer: MemoryWriter, texts: TextVectors, indexing: VectorIndexing, limit: Any) -> int:
    """Embed the contents of up to `limit` records that have no vector; return their number.

    Raises:
        InvalidInput: an invalid limit, or the stored vectors are of another space.
        EmbeddingError: the embedder failed; the records before have their vectors.
    """
    if not is_whole(limit) or not 1 <= limit <= MAX_EMBEDDED:
        raise InvalidInput(f"limit must be a whole number from 1 to {MAX_EMBEDDED}, not {limit!r:.80}")
    embedded = 0
    async for found in _bare_records(writer.scope):
        for part in _parts(found[: limit - embedded], texts.embedder.dims):
            vectors = await texts.of_contents([read_json(bare.content) for bare in part])
            made = [(bare, vector) for bare, vector in zip(part, vectors, strict=True) if vector]
            embedded += await _store(writer, indexing, made) if made else 0
        if embedded >= limit:
            break
    return embedded


async def drop_vectors(writer: MemoryWriter) -> int:
    """Remove all vectors, 100 in a step; return their number."""
    dropped, cursor, key = 0, "0", writer.scope.keys.key(VECTORS)
    while True:
        at, flat = await writer.scope.read("HSCAN", key, cursor, "COUNT", MAX_ROWS)
        ids = [read_text(id_) for id_ in flat[::2]]
        for first in range(0, len(ids), MAX_ROWS):
            part = ids[first : first + MAX_ROWS]

            def make(change: scripts.MemoryChange, part: Sequence[str] = part) -> Any:
                return scripts.drop_vectors(change, ids=part)

            dropped += read_whole((await writer.change(make, None, "change-memory")).rest[0])
        cursor = read_text(at)
        if cursor == "0":
            return dropped


async def _store(writer: MemoryWriter, indexing: VectorIndexing, made: Sequence[tuple[_Bare, bytes]]) -> int:
    rows = [
        scripts.EmbedRow(bare.id, sha1(bare.content, usedforsecurity=False).hexdigest(), *indexing.columns(vector))
        for bare, vector in made
    ]

    def new_vectors(reply: MemoryReply) -> list[NewVector]:
        number, *ids = reply.rest
        embedded = {read_text(id_) for id_ in ids}
        return [
            NewVector(
                bare.id, read_whole(number), vector, bare.header.kind, bare.header.action, int(bare.header.score // 1)
            )
            for bare, vector in made
            if bare.id in embedded
        ]

    reply = await writer.change(lambda change: scripts.embed(change, rows=rows), None, new_vectors=new_vectors)
    return len(reply.rest) - 1


async def _bare_records(scope: ScopedStore) -> AsyncIterator[list[_Bare]]:
    """Yield the records without a vector, some at a time."""
    keys = scope.keys
    for tier in TIERS:
        cursor, seen = "0", set[str]()
        while True:
            at, flat = await scope.read("HSCAN", keys.key(keys.tier_part(tier, "hdr")), cursor, "COUNT", _SCANNED)
            headers = {read_text(id_): decode_header(packed) for id_, packed in zip(flat[::2], flat[1::2], strict=True)}
            bare = [id_ for id_, header in headers.items() if not header.vector and id_ not in seen]
            seen.update(bare)
            if bare:
                contents = await scope.read("HMGET", keys.key(keys.tier_part(tier, "rec")), *bare)
                found = zip(bare, contents, strict=True)
                yield [_Bare(id_, headers[id_], content) for id_, content in found if content is not None]
            cursor = read_text(at)
            if cursor == "0":
                break


def _parts(records: Sequence[_Bare], dims: int) -> Iterator[list[_Bare]]:
    """Split records in parts that one call may have: it compares the contents, and takes the vectors."""
    part, size = list[_Bare](), 0
    for record in records:
        bytes_ = len(record.content) + 4 * dims
        if part and (len(part) == MAX_ROWS or size + bytes_ > MAX_CALL_BYTES):
            yield part
            part, size = [], 0
        part.append(record)
        size += bytes_
    if part:
        yield part
