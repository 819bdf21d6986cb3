"""Converts records of memory to rows of scripts, and stored records back."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from orchestrator.core.durations import from_instant_ms, to_ms
from orchestrator.core.errors import DamagedData, InvalidInput
from orchestrator.core.ids import check_text, decode_foreign, encode_foreign, new_short_id
from orchestrator.core.reading import MISREAD, read_json, read_readable
from orchestrator.memory.headers import decode_header
from orchestrator.memory.model import MAX_STEP, Record, StoredRecord
from orchestrator.memory.scripts import RecordRow
from orchestrator.simulations.simulation import cell_of
from orchestrator.vectors.encoding import encode_vector
from orchestrator.vectors.rungs import NO_INDEXING, VectorIndexing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.locks.fenced_writer import FencedWriter
    from orchestrator.memory.model import Json, Tier

MAX_VERSION: Final = 2**52
"""Highest version that a caller may give, so that versions can still rise."""


def encode_record(
    writer: FencedWriter, record: Record, *, cell_size: float, indexing: VectorIndexing = NO_INDEXING
) -> RecordRow:
    """Check a record, and convert it to a row.

    Args:
        writer: of the memory.
        record: the record.
        cell_size: width of a cell of the index by position.
        indexing: how its vector is indexed.

    Raises:
        InvalidInput: an invalid value; the message names it.
    """
    if not isinstance(record, Record):
        raise InvalidInput(f"give a Record, as Record(step=1, kind='note', content=...), not a {type(record).__name__}")
    id_ = new_short_id() if record.id is None else check_text("id", record.id)
    if not is_whole(record.step) or abs(record.step) > MAX_STEP:
        raise InvalidInput(f"step must be a whole number up to 2^40, not {record.step!r:.80}")
    version = 0 if record.version is None else check_version(record.version)
    subject, keys = record.subject, writer.scope.keys
    if keys.kind == "user":
        if subject not in {None, keys.id}:
            raise InvalidInput(
                f"a record in the memory of {keys.words} is about that user, not about {subject!r:.80}; "
                "store it in the memory of an agent or a domain, which holds records about any person"
            )
        subject = keys.id
    if keys.kind != "agent" and record.simulation is not None:
        raise InvalidInput(f"the states of a simulation are in memories of agents, not of {keys.words}")
    ttl_ms = 0 if record.ttl is None else max(1, to_ms("ttl", record.ttl))
    x, y = (False, False) if record.position is None else check_position(record.position)
    vector = b"" if record.embedding is None else encode_vector(f"embedding of record {id_!r}", record.embedding)
    return RecordRow(
        id=id_,
        made=int(record.id is None),
        step=record.step,
        kind=encode_foreign("kind", record.kind),
        action="" if record.action is None else encode_foreign("action", record.action),
        cell="" if record.position is None else cell_of(x, y, cell_size),
        subject="" if subject is None else encode_foreign("subject", subject),
        simulation="" if record.simulation is None else encode_foreign("simulation", record.simulation),
        type="" if record.agent_type is None else encode_foreign("agent_type", record.agent_type),
        importance=check_number("importance", record.importance),
        ttl_ms=ttl_ms,
        version=version,
        x=x,
        y=y,
        meta=writer.encode(f"meta of record {id_!r}", dict(record.meta)) if record.meta else b"",
        content=writer.encode(f"content of record {id_!r}", record.content),
        **indexing.columns(vector)._asdict(),
    )


def decode_records(found: Sequence[tuple[str, str, bytes, bytes]]) -> tuple[StoredRecord, ...]:
    """Convert stored records to values: tier, id, header and content of each. Damaged ones are left out, and logged."""
    try:
        # One document, so that the decoder is called once.
        contents = read_json(b"[" + b",".join([content for _, _, _, content in found]) + b"]")
        return tuple(
            [
                _record(tier, id_, packed, content)
                for (tier, id_, packed, _), content in zip(found, contents, strict=True)
            ]
        )
    except (DamagedData, *MISREAD):
        return tuple(read_readable(decode_found, found))


def decode_found(found: tuple[str, str, bytes, bytes]) -> StoredRecord:
    """Convert a stored record to a value: tier, id, header and content."""
    return decode_record(*found)


def decode_record(tier: str, id_: str, packed: bytes, content: bytes) -> StoredRecord:
    """Convert a stored record to a value."""
    return _record(tier, id_, packed, read_json(content))


def _record(tier: str, id_: str, packed: bytes, content: Json) -> StoredRecord:
    header = decode_header(packed)
    position = None if header.x is False else (float(header.x), float(header.y))
    return StoredRecord(
        id=id_,
        tier=cast("Tier", tier),
        step=math.floor(header.score),
        kind=_decode_name(header.kind),
        content=content,
        version=header.version,
        importance=header.importance,
        action=_decode_name(header.action) if header.action else None,
        position=position,
        subject=_decode_name(header.subject) if header.subject else None,
        simulation=_decode_name(header.simulation) if header.simulation else None,
        agent_type=_decode_name(header.type) if header.type else None,
        meta=read_json(header.meta.encode()) if header.meta else {},
        stored=from_instant_ms(header.stored),
        expires=from_instant_ms(header.deadline),
        superseded_by=header.superseded or None,
        has_vector=header.vector > 0,
    )


def check_position(position: Any) -> tuple[float, float]:
    """Return a position as two floats.

    Raises:
        InvalidInput: not two finite numbers.
    """
    try:
        x, y = position
    except (TypeError, ValueError):
        raise InvalidInput(f"a position is two numbers, not {position!r:.80}") from None
    return check_number("x", x), check_number("y", y)


def check_number(what: str, value: Any) -> float:
    """Return a finite number as a float.

    Raises:
        InvalidInput: it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e300:
        raise InvalidInput(f"{what} must be a finite number up to 1e300, not {value!r:.80}")
    return float(value) + 0.0


def check_version(version: Any) -> int:
    """Return a version that a caller may give.

    Raises:
        InvalidInput: not a whole number from 1 to 2^52.
    """
    if not is_whole(version) or not 1 <= version <= MAX_VERSION:
        raise InvalidInput(f"a version is a whole number from 1 to 2^52, not {version!r:.80}")
    return int(version)


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


@lru_cache(maxsize=1024)
def _decode_name(encoded: str) -> str:
    # Most records share a few kinds, actions and simulations.
    return decode_foreign(encoded)
