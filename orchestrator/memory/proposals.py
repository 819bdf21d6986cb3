"""Checks the vectors that an index proposes against the stored headers, and reads the records of the best ones."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.core.reading import read_whole
from orchestrator.memory.encoding import decode_record
from orchestrator.memory.exact_search import check_dims
from orchestrator.memory.headers import decode_header
from orchestrator.memory.model import TIERS
from orchestrator.store.keys import VECTORS
from orchestrator.store.paging import parts, split_command
from orchestrator.vectors.cache import parse_revision, revision_commands
from orchestrator.vectors.encoding import split_stored
from orchestrator.vectors.ranking import cosines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.memory.conditions import Conditions
    from orchestrator.memory.model import StoredRecord, Tier
    from orchestrator.memory.searcher import Hit
    from orchestrator.store.calls import Argument
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.vectors.cache import Revision


class LiveHit(NamedTuple):
    """A proposed record that counts.

    Attributes:
        id: id of the record.
        tier: tier that holds it.
        number: number of its vector.
        header: its header.
        content: its content; None if it was not read.
        score: cosine of the stored vector.
    """

    id: str
    tier: Tier
    number: int
    header: bytes
    content: bytes | None
    score: float


class CheckedHits(NamedTuple):
    """Proposed vectors: those that count, the most similar first, those that no record has, and what all are now."""

    live: list[LiveHit]
    stale: list[Hit]
    revision: Revision | None


async def check_hits(
    scope: ScopedStore,
    vector: bytes,
    hits: Sequence[Hit],
    conditions: Conditions,
    *,
    front: int = 0,
    any_number: bool = False,
) -> CheckedHits:
    """Return the proposed vectors that count, those that are stale, and what the vectors are at this moment.

    Args:
        scope: of the memory.
        vector: 32-bit floats, little-endian.
        hits: proposed vectors.
        conditions: conditions that the records must meet.
        front: number of hits in front whose contents are read, too.
        any_number: whether a hit stands for its record even if that has another vector by now, which then counts.
    """
    if not hits:
        return CheckedHits([], [], None)
    keys, ids = scope.keys, list(dict.fromkeys(hit.id for hit in hits))
    columns = [keys.key(VECTORS), *(keys.key(keys.tier_part(tier, "hdr")) for tier in TIERS)]
    commands: list[Sequence[Argument]] = [("MULTI",), ("TIME",)]
    for key in columns:
        commands += split_command(("HMGET", key), ids)
    if front:
        commands += [("HMGET", keys.key(keys.tier_part(tier, "rec")), *ids[:front]) for tier in TIERS]
    state = revision_commands(scope)
    time, *replies = (await scope.read_many([*commands, *state, ("EXEC",)]))[-1]
    revision, count = parse_revision(replies[-len(state) :]), len(parts(ids))
    stored, *headers = (list(chain.from_iterable(replies[at * count : (at + 1) * count])) for at in range(len(columns)))
    contents = replies[len(columns) * count : -len(state)]
    now_ms = now_ms_of(time)
    numbers: dict[str, set[int]] = {}
    for hit in hits:
        numbers.setdefault(hit.id, set()).add(hit.number)
    current: dict[str, int] = {}
    found, vectors = list[LiveHit](), list[bytes]()
    for i, (id_, value) in enumerate(zip(ids, stored, strict=True)):
        for at, tier in enumerate(TIERS):
            packed = headers[at][i]
            if packed is None:
                continue
            header = decode_header(packed)
            current[id_] = number = read_whole(header.vector)
            proposed = any_number or number in numbers[id_]
            if value is None or not proposed or not conditions.meets(header, tier, now_ms):
                continue
            vector_number, floats = split_stored(value)
            if vector_number == number:
                check_dims(vector, floats)
                content = contents[at][i] if i < front else None
                found.append(LiveHit(id_, tier, number, packed, content, 0))
                vectors.append(floats)
    live = [each._replace(score=score) for each, score in zip(found, cosines(vector, vectors), strict=True)]
    # Vectors with one direction may differ in the last digit.
    live.sort(key=lambda each: (-round(each.score, 9), each.id))
    return CheckedHits(live, [hit for hit in hits if hit.number != current.get(hit.id)], revision)


async def read_best(scope: ScopedStore, best: Sequence[LiveHit], conditions: Conditions) -> list[StoredRecord | None]:
    """Return the records of the best ones, None for each that another call has changed meanwhile.

    Contents that are lacking are read in one more round trip.
    """
    keys = scope.keys
    complete = {each.id: each for each in best if each.content is not None}
    lacking = [each for each in best if each.content is None]
    if lacking:
        commands: list[Sequence[Argument]] = [("MULTI",), ("TIME",)]
        for tier in TIERS:
            parts = (keys.key(keys.tier_part(tier, part)) for part in ("hdr", "rec"))
            commands += [("HMGET", key, *[each.id for each in lacking]) for key in parts]
        time, *replies = (await scope.read_many([*commands, ("EXEC",)]))[-1]
        now_ms = now_ms_of(time)
        for tier, headers, contents in zip(TIERS, replies[::2], replies[1::2], strict=True):
            for each, packed, content in zip(lacking, headers, contents, strict=True):
                if packed is None or content is None:
                    continue
                header = decode_header(packed)
                if header.vector == each.number and conditions.meets(header, tier, now_ms):
                    complete[each.id] = each._replace(tier=tier, header=packed, content=content)
    return [_decode(complete.get(each.id)) for each in best]


def _decode(found: LiveHit | None) -> StoredRecord | None:
    if found is None or found.content is None:
        return None
    return decode_record(found.tier, found.id, found.header, found.content)


def now_ms_of(time: Sequence[bytes]) -> int:
    """Convert a reply to TIME."""
    return read_whole(time[0]) * 1000 + read_whole(time[1]) // 1000
