"""Wraps the scripts in `lua/memory/`, one function per script."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.reading import read_text, read_whole
from orchestrator.store.calls import Argument, Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.settings import MemorySettings
    from orchestrator.locks.fenced_writer import CallerRow
    from orchestrator.store.keys import ScopeKeys


class RecordRow(NamedTuple):
    """One record, in the column order of `lua/memory/store.lua`.

    Names are encoded as in keys; empty texts and False stand for what a record lacks.

    Attributes:
        vector: 32-bit floats, little-endian.
        codes: bucket in each table, two bytes each; empty: no buckets.
        space: space of the vector.
        indexed: 1 if the vector set has to follow.
    """

    id: str
    made: int
    step: int
    kind: str
    action: str
    cell: str
    subject: str
    simulation: str
    type: str
    importance: float
    ttl_ms: int
    version: int
    x: float | bool
    y: float | bool
    meta: bytes
    content: bytes
    vector: bytes = b""
    codes: bytes = b""
    space: str = ""
    indexed: int = 0


class QueryRow(NamedTuple):
    """A query, in the column order of `lua/memory/query.lua`; bounds are texts as ZRANGE takes them."""

    tiers: Sequence[str]
    kinds: Sequence[str]
    actions: Sequence[str]
    subject: str
    lo: str
    hi: str
    importance: str
    order: str
    offset: int
    every: int
    limit: int
    most: int
    resume: bytes = b""


class NarrowRow(NamedTuple):
    """Conditions, in the column order of `lua/memory/narrow.lua`, and how many entries it may look at."""

    tiers: Sequence[str]
    kinds: Sequence[str]
    actions: Sequence[str]
    subject: str
    lo: str
    hi: str
    importance: str
    few: int
    most: int


class CircleRow(NamedTuple):
    """A circle, in the column order of `lua/memory/near.lua`, with the cells that it touches; no cells: all records."""

    tiers: Sequence[str]
    cells: Sequence[str]
    x: float
    y: float
    radius: float
    limit: int
    most: int


class UpdateRow(NamedTuple):
    """An update of a record, in the column order of `lua/memory/update.lua`; an empty text leaves what is stored."""

    id: str
    newer_than: int
    importance: str
    content: bytes
    vector: bytes = b""
    codes: bytes = b""
    space: str = ""
    indexed: int = 0


class EmbedRow(NamedTuple):
    """A vector for a record, in the column order of `lua/memory/embed.lua`.

    Attributes:
        digest: SHA-1 of the stored content that the vector is of, in hex.
    """

    id: str
    digest: str
    vector: bytes
    codes: bytes
    space: str
    indexed: int


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """The arguments that every change of a memory begins with."""

    keys: ScopeKeys
    caller: CallerRow
    limits: bytes


@dataclass(frozen=True, slots=True)
class MemoryReply:
    """Reply to a change: `ok` or `duplicate` with the results, or why nothing was changed.

    Attributes:
        listings_pending: whether indices of simulations may have to follow.
        vectors_pending: whether the vector set may have to follow.
    """

    status: str
    rest: tuple[Any, ...]
    listings_pending: bool = False
    vectors_pending: bool = False


class Narrowed(NamedTuple):
    """Reply to a question for few records: their ids, or numbers of records that meet conditions, -1 for none asked."""

    ids: list[str] | None
    records: int = 0
    in_tiers: int = 0
    in_steps: int = -1
    of_kinds: int = -1
    of_actions: int = -1
    of_subject: int = -1
    of_importance: int = -1


class FoundRecord(NamedTuple):
    """A record as Redis stores it."""

    tier: str
    id: str
    header: bytes
    content: bytes


class FoundRecords(NamedTuple):
    """Reply to a query."""

    complete: bool
    scanned: int
    resume: bytes
    records: list[FoundRecord]


@cache
def pack_limits(settings: MemorySettings) -> bytes:
    """Pack the lifetimes and caps of memories."""
    lifetimes = (round(settings.stm_ttl_s * 1000), round(settings.im_ttl_s * 1000))
    return pack_rows([(*lifetimes, settings.max_stm_records, settings.max_im_records, settings.max_bytes)])


def store(change: MemoryChange, *, tier: str, rows: Sequence[RecordRow]) -> Call[MemoryReply]:
    """Store up to 100 records in a tier, in order."""
    packed = pack_rows([[opaque(column) if isinstance(column, bytes) else column for column in row] for row in rows])
    return _call("store", change, limits=change.limits, tier=tier, rows=packed)


def update(change: MemoryChange, *, row: UpdateRow) -> Call[MemoryReply]:
    """Change importance, content or vector of a record, which must exist."""
    packed = pack_rows([[opaque(column) if isinstance(column, bytes) else column for column in row]])
    return _call("update", change, limits=change.limits, row=packed)


def embed(change: MemoryChange, *, rows: Sequence[EmbedRow]) -> Call[MemoryReply]:
    """Give up to 100 records without a vector the one of their content."""
    packed = pack_rows([[opaque(column) if isinstance(column, bytes) else column for column in row] for row in rows])
    return _call("embed", change, limits=change.limits, rows=packed)


def drop_vectors(change: MemoryChange, *, ids: Sequence[str]) -> Call[MemoryReply]:
    """Remove the vectors of up to 100 records."""
    return _call("drop_vectors", change, rows=pack_rows([(id_,) for id_ in ids]))


def touch(change: MemoryChange, *, ids: Sequence[str]) -> Call[MemoryReply]:
    """Count an access to up to 500 records."""
    return _call("touch", change, rows=pack_rows([(id_,) for id_ in ids]))


def remove(change: MemoryChange, *, ids: Sequence[str]) -> Call[MemoryReply]:
    """Remove up to 500 records with all their entries."""
    return _call("remove", change, rows=pack_rows([(id_,) for id_ in ids]))


def supersede(change: MemoryChange, *, id_: str, by: str) -> Call[MemoryReply]:
    """Take a record out of all recalls because another one replaces it; an empty `by` puts it back."""
    return _call("supersede", change, id=id_, by=by)


def select(keys: ScopeKeys, *, selection: str, at: int, rows: Sequence[tuple[int, str]]) -> Call[int]:
    """Add up to 500 records (version, id) to a selection, and return the number of records in it."""
    args: Arguments = {"scope": keys.root, "selection": selection, "at": at, "rows": pack_rows(rows)}
    return Call("memory/select", args, int)


def forget(change: MemoryChange, *, selection: str, most: int) -> Call[MemoryReply]:
    """Remove the next records of a selection, at most 100."""
    return _call("forget", change, selection=selection, most=most)


def erase(change: MemoryChange, *, subject: str, for_ms: int, most: int) -> Call[MemoryReply]:
    """Remove up to 500 records about a person, and refuse new ones for a time."""
    return _call("erase", change, subject=subject, for_ms=for_ms, most=most)


def erase_outbox(change: MemoryChange, *, subject: str, after: str, most: int) -> Call[MemoryReply]:
    """Remove records about a person from up to 100 entries of the outbox."""
    return _call("erase_outbox", change, subject=subject, after=after, most=most)


def query(keys: ScopeKeys, *, row: QueryRow) -> Call[FoundRecords]:
    """Find the records that meet all conditions."""
    packed = pack_rows([(*row[:-1], opaque(row.resume))])
    return Call("memory/query", {"scope": keys.root, "query": packed, "now_arg": ""}, _parse_found)


def narrow(keys: ScopeKeys, *, row: NarrowRow) -> Call[Narrowed]:
    """Return the records that meet all conditions if they are few, else how many meet each one."""

    def parse(reply: list[Any]) -> Narrowed:
        few, *rest = reply
        return Narrowed([read_text(id_) for id_ in rest]) if few else Narrowed(None, *rest)

    return Call("memory/narrow", {"scope": keys.root, "query": pack_rows([row])}, parse)


def near(keys: ScopeKeys, *, row: CircleRow) -> Call[FoundRecords]:
    """Find the records inside a circle, the nearest first."""
    return Call("memory/near", {"scope": keys.root, "circle": pack_rows([row]), "now_arg": ""}, _parse_found)


def transition(change: MemoryChange, *, age_ms: int, least: float, skip: int, limit: int) -> Call[MemoryReply]:
    """Move up to 500 short-term records to the intermediate tier."""
    return _call("transition", change, limits=change.limits, age_ms=age_ms, least=repr(least), skip=skip, limit=limit)


def offload(change: MemoryChange, *, age_ms: int, limit: int, skip: int, ttl_ms: int) -> Call[MemoryReply]:
    """Move up to 100 intermediate records to the outbox."""
    return _call("offload", change, age_ms=age_ms, limit=limit, skip=skip, ttl_ms=ttl_ms)


def acknowledge(change: MemoryChange, *, rows: Sequence[tuple[str, str, str]]) -> Call[MemoryReply]:
    """Remove up to 500 saved records from the outbox: (id, entry, encoded subject)."""
    return _call("acknowledge", change, rows=pack_rows(rows))


def sweep(change: MemoryChange, *, tier: str, part: str, ids: Sequence[bytes]) -> Call[MemoryReply]:
    """Check up to 200 members of one key of a tier."""
    return _call("sweep", change, tier=tier, part=part, rows=pack_rows([(opaque(id_),) for id_ in ids]))


def settle(keys: ScopeKeys, *, rows: Sequence[tuple[bytes, int]]) -> Call[int]:
    """Remove up to 500 notes about indices of simulations: (note, number). Return how many are left."""
    packed = pack_rows([(opaque(note), number) for note, number in rows])
    return Call("memory/settle", {"scope": keys.root, "rows": packed}, int)


class SettledVectors(NamedTuple):
    """Changes of the vector set that are left.

    Attributes:
        left: number of notes.
        lacking: the notes, of those in the call, about vectors that Redis said it had added and has dropped.
    """

    left: int
    lacking: list[bytes]


def settle_vectors(keys: ScopeKeys, *, rows: Sequence[tuple[bytes, str]]) -> Call[SettledVectors]:
    """Remove up to 500 notes about changes (`add` or `rem`) of the vector set."""
    packed = pack_rows([(opaque(note), change) for note, change in rows])
    return Call("memory/settle_vectors", {"scope": keys.root, "rows": packed}, _settled_vectors)


def _settled_vectors(reply: Any) -> SettledVectors:
    left, *lacking = reply
    return SettledVectors(read_whole(left), lacking)


class VectorFinding(NamedTuple):
    """A finding of `check_vectors`.

    Attributes:
        row: index of the row; -1: the memory.
    """

    row: int
    code: str


def check_vectors(
    keys: ScopeKeys, *, part: str, rows: Sequence[tuple[bytes, bytes]], indexed: bool, repair: bool, now_us: str = ""
) -> Call[list[VectorFinding]]:
    """Check up to 100 members of a key of vectors: (id, codes of its buckets, empty where none are kept)."""
    args: Arguments = {
        "scope": keys.root,
        "part": part,
        "rows": pack_rows([(opaque(id_), opaque(codes)) for id_, codes in rows]),
        "indexed": str(int(indexed)),
        "repair": str(int(repair)),
        "now_arg": now_us,
    }

    def parse(reply: list[Any]) -> list[VectorFinding]:
        return [VectorFinding(row - 1, read_text(code)) for row, code in zip(reply[::2], reply[1::2], strict=True)]

    return Call("memory/check_vectors", args, parse)


class VectorSetSample(NamedTuple):
    """Counts of a vector set, and a sample of its elements.

    Attributes:
        elements: number of elements of the vector set.
        vectors: number of stored vectors.
        notes: number of noted changes.
        stale: elements of the sample that are not the vector of a record.
    """

    elements: int
    vectors: int
    notes: int
    stale: list[bytes]


def check_vector_set(keys: ScopeKeys, *, most: int, repair: bool) -> Call[VectorSetSample]:
    """Look at up to 500 random elements of the vector set."""

    def parse(reply: list[Any]) -> VectorSetSample:
        elements, vectors, notes, *stale = reply
        return VectorSetSample(elements, vectors, notes, stale)

    return Call("memory/check_vector_set", {"scope": keys.root, "most": most, "repair": str(int(repair))}, parse)


def _call(verb: str, change: MemoryChange, **args: Argument) -> Call[MemoryReply]:
    head: Arguments = {"scope": change.keys.root, "caller": pack_rows([change.caller])}

    def parse(reply: list[Any]) -> MemoryReply:
        status, *rest = reply
        if status == b"ok":
            return MemoryReply(
                "ok", tuple(rest[:-1]), listings_pending=bool(rest[-1] & 1), vectors_pending=bool(rest[-1] & 2)
            )
        again = status == b"duplicate"
        return MemoryReply(read_text(status), tuple(rest), listings_pending=again, vectors_pending=again)

    return Call(f"memory/{verb}", {**head, **args, "now_arg": ""}, parse)


def _parse_found(reply: list[Any]) -> FoundRecords:
    complete, scanned, resume, *flat = reply
    # A key that Redis has evicted leaves entries without a record.
    found = [
        FoundRecord(read_text(tier), read_text(id_), header, content)
        for tier, id_, header, content in zip(*[iter(flat)] * 4, strict=True)
        if header and content
    ]
    return FoundRecords(bool(complete), scanned, resume, found)
