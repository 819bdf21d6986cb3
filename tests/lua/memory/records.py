"""The memory of an agent for script tests: short calls with the wrappers behind them, a clock that a test moves."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from hashlib import sha1
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.core.settings import MemorySettings
from orchestrator.locks.fenced_writer import CallerRow
from orchestrator.memory import scripts
from orchestrator.memory.headers import RecordHeader, decode_header
from orchestrator.memory.scripts import CircleRow, EmbedRow, MemoryChange, NarrowRow, QueryRow, RecordRow, UpdateRow
from orchestrator.store.keys import VECTORS, VECTORS_PENDING
from orchestrator.vectors.encoding import split_stored
from tests.lua.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.memory.scripts import FoundRecords, MemoryReply, Narrowed
    from orchestrator.vectors.encoding import StoredVector

TIERS = ("stm", "im")
OUTBOX_MS = 100_000_000


@dataclass(frozen=True)
class Shown:
    """The lock that a change presents, and its value."""

    lock: str = ""
    value: str = ""


def record(id_: str, step: int = 1, **columns: Any) -> RecordRow:
    """A row with few columns."""
    usual: dict[str, Any] = {
        "made": 0, "kind": "state", "action": "", "cell": "", "subject": "", "simulation": "", "type": "",
        "importance": 0.0, "ttl_ms": 0, "version": 0, "x": False, "y": False, "meta": b"", "content": b"1",
    }  # fmt: skip
    return RecordRow(id=id_, step=step, **{**usual, **columns})


class Records(Scope):
    """One memory on one server."""

    def __init__(self, url: str, prefix: str, id_: str = "ed", *, kind: str = "agent", **settings: Any) -> None:
        super().__init__(url, prefix, kind, id_)
        self.settings = MemorySettings(**settings)
        self._ops = itertools.count()

    def change(self, op: str | None = None, shown: Shown = Shown()) -> MemoryChange:
        """The head of a change."""
        op = f"auto{next(self._ops)}" if op is None else op
        caller = CallerRow(op, shown.lock, shown.value, "ed")
        return MemoryChange(self.keys, caller, scripts.pack_limits(self.settings))

    def store_rows(
        self, *rows: RecordRow, tier: str = "stm", op: str | None = None, shown: Shown = Shown()
    ) -> MemoryReply:
        """Store records."""
        return self.call(scripts.store(self.change(op, shown), tier=tier, rows=rows))

    def put(self, id_: str, step: int = 1, *, tier: str = "stm", **columns: Any) -> str:
        """Store one record; return the word of its row, or of the refusal."""
        reply = self.store_rows(record(id_, step, **columns), tier=tier)
        return reply.rest[0].decode() if reply.status in {"ok", "duplicate"} else reply.status

    def update(
        self,
        id_: str,
        *,
        newer_than: int = 0,
        importance: str = "",
        content: bytes = b"",
        op: str | None = None,
        shown: Shown = Shown(),
    ) -> MemoryReply:
        """Update a record."""
        row = UpdateRow(id_, newer_than, importance, content)
        return self.call(scripts.update(self.change(op, shown), row=row))

    def embed(
        self,
        *contents: tuple[str, bytes],
        vector: bytes = bytes(8),
        space: str = "2:e",
        op: str | None = None,
        shown: Shown = Shown(),
    ) -> MemoryReply:
        """Give records a vector that was made of these contents."""
        rows = [
            EmbedRow(id_, sha1(content, usedforsecurity=False).hexdigest(), vector, bytes(4), space, 1)
            for id_, content in contents
        ]
        return self.call(scripts.embed(self.change(op, shown), rows=rows))

    def drop_vectors(self, *ids: str, op: str | None = None, shown: Shown = Shown()) -> MemoryReply:
        """Remove vectors."""
        return self.call(scripts.drop_vectors(self.change(op, shown), ids=ids))

    def touch(self, *ids: str, op: str | None = None, shown: Shown = Shown()) -> MemoryReply:
        """Count an access."""
        return self.call(scripts.touch(self.change(op, shown), ids=ids))

    def remove(self, *ids: str, op: str | None = None, shown: Shown = Shown()) -> MemoryReply:
        """Remove records."""
        return self.call(scripts.remove(self.change(op, shown), ids=ids))

    def supersede(self, id_: str, by: str = "", *, op: str | None = None, shown: Shown = Shown()) -> MemoryReply:
        """Take a record out of recalls, or put it back."""
        return self.call(scripts.supersede(self.change(op, shown), id_=id_, by=by))

    def select(self, *ids: str, selection: str = "f", at: int = 0) -> int:
        """Select records as they are now."""
        headers = self.headers("stm") | self.headers("im")
        rows = [(headers[id_].version if id_ in headers else 1, id_) for id_ in ids]
        return self.call(scripts.select(self.keys, selection=selection, at=at, rows=rows))

    def forget(
        self, selection: str = "f", *, most: int = 100, op: str | None = None, shown: Shown = Shown()
    ) -> MemoryReply:
        """Remove the next records of a selection."""
        return self.call(scripts.forget(self.change(op, shown), selection=selection, most=most))

    def erase(
        self, subject: str, *, for_ms: int = 1_200_000, most: int = 100, op: str | None = None, shown: Shown = Shown()
    ) -> MemoryReply:
        """Remove the records about a person."""
        return self.call(scripts.erase(self.change(op, shown), subject=subject, for_ms=for_ms, most=most))

    def erase_outbox(
        self, subject: str, *, after: str = "0-0", most: int = 100, op: str | None = None, shown: Shown = Shown()
    ) -> MemoryReply:
        """Remove the records about a person from the outbox."""
        return self.call(scripts.erase_outbox(self.change(op, shown), subject=subject, after=after, most=most))

    def find(
        self,
        *,
        tiers: Sequence[str] = TIERS,
        kinds: Sequence[str] = (),
        actions: Sequence[str] = (),
        subject: str = "",
        steps: tuple[int | None, int | None] = (None, None),
        importance: float | None = None,
        order: str = "new",
        offset: int = 0,
        every: int = 1,
        limit: int = 100,
        most: int = 10_000,
        resume: bytes = b"",
    ) -> FoundRecords:
        """Run a query."""
        lo = "-inf" if steps[0] is None else str(steps[0])
        hi = "+inf" if steps[1] is None else f"({steps[1] + 1}"
        least = "" if importance is None else repr(importance)
        row = QueryRow(tiers, kinds, actions, subject, lo, hi, least, order, offset, every, limit, most, resume)
        return self.call(scripts.query(self.keys, row=row))

    def ids(self, **conditions: Any) -> list[str]:
        """The ids that a query finds."""
        return [found.id for found in self.find(**conditions).records]

    def narrow(
        self,
        *,
        tiers: Sequence[str] = TIERS,
        kinds: Sequence[str] = (),
        actions: Sequence[str] = (),
        subject: str = "",
        steps: tuple[int | None, int | None] = (None, None),
        importance: float | None = None,
        few: int = 500,
        most: int = 2500,
    ) -> Narrowed:
        """Find few records, or count many."""
        lo = "-inf" if steps[0] is None else str(steps[0])
        hi = "+inf" if steps[1] is None else f"({steps[1] + 1}"
        least = "" if importance is None else repr(importance)
        row = NarrowRow(tiers, kinds, actions, subject, lo, hi, least, few, most)
        return self.call(scripts.narrow(self.keys, row=row))

    def near(
        self, cells: Sequence[str], x: float, y: float, radius: float, *, limit: int = 100, most: int = 10_000
    ) -> FoundRecords:
        """Find the records in a circle."""
        return self.call(scripts.near(self.keys, row=CircleRow(TIERS, cells, x, y, radius, limit, most)))

    def transition(
        self, *, age_ms: int = 1000, least: float = 0.0, skip: int = 0, limit: int = 100,
        op: str | None = None, shown: Shown = Shown(),
    ) -> MemoryReply:  # fmt: skip
        """Move short-term records that are due."""
        call = scripts.transition(self.change(op, shown), age_ms=age_ms, least=least, skip=skip, limit=limit)
        return self.call(call)

    def offload(
        self, *, age_ms: int = 0, limit: int = 100, skip: int = 0, op: str | None = None, shown: Shown = Shown()
    ) -> MemoryReply:
        """Move intermediate records to the outbox."""
        change = self.change(op, shown)
        return self.call(scripts.offload(change, age_ms=age_ms, limit=limit, skip=skip, ttl_ms=OUTBOX_MS))

    def acknowledge(
        self, *rows: tuple[str, str], subject: str = "", op: str | None = None, shown: Shown = Shown()
    ) -> MemoryReply:
        """Remove saved records from the outbox."""
        return self.call(scripts.acknowledge(self.change(op, shown), rows=[(*row, subject) for row in rows]))

    def sweep(self, tier: str, part: str, *ids: str, op: str | None = None, shown: Shown = Shown()) -> MemoryReply:
        """Check members of a key."""
        return self.call(scripts.sweep(self.change(op, shown), tier=tier, part=part, ids=[id_.encode() for id_ in ids]))

    def settle(self, *rows: tuple[bytes, int]) -> int:
        """Remove notes."""
        return self.call(scripts.settle(self.keys, rows=rows))

    def settle_vectors(self, *rows: tuple[bytes, str]) -> tuple[int, list[bytes]]:
        """Remove notes about the vector set."""
        return self.call(scripts.settle_vectors(self.keys, rows=rows))

    def check_vectors(
        self, *ids: str, part: str = "emb", codes: bytes = b"", indexed: bool = False, repair: bool = True
    ) -> list[tuple[int, str]]:
        """Check members of a key of vectors."""
        rows = [(id_.encode(), codes) for id_ in ids]
        call = scripts.check_vectors(self.keys, part=part, rows=rows, indexed=indexed, repair=repair)
        return [(row, code) for row, code in self.call(call)]

    def vector_notes(self) -> dict[str, str]:
        """The notes about the vector set."""
        flat = self.store.execute("HGETALL", self.keys.key(VECTORS_PENDING))
        return {note.decode(): change.decode() for note, change in zip(flat[::2], flat[1::2], strict=True)}

    def outbox(self) -> list[tuple[str, str]]:
        """Id and entry of each record in the outbox."""
        entries = self.store.execute("XRANGE", self.keys.key("ltm:out"), "-", "+")
        return [(fields[fields.index(b"i") + 1].decode(), entry.decode()) for entry, fields in entries]

    def notes(self) -> dict[bytes, list[Any]]:
        """The notes about indices of simulations."""
        flat = self.store.execute("HGETALL", self.keys.key("sim:pending"))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {note: msgspec.msgpack.decode(packed) for note, packed in pairs if note}

    # The truth --------------------------------------------------------------------------------------------------------

    def headers(self, tier: str) -> dict[str, RecordHeader]:
        """The headers of a tier by id."""
        flat = self.store.execute("HGETALL", self.keys.key(f"{tier}:hdr"))
        return {id_.decode(): decode_header(packed) for id_, packed in zip(flat[::2], flat[1::2], strict=True)}

    def contents(self, tier: str) -> dict[str, bytes]:
        """The contents of a tier by id."""
        flat = self.store.execute("HGETALL", self.keys.key(f"{tier}:rec"))
        return {id_.decode(): content for id_, content in zip(flat[::2], flat[1::2], strict=True)}

    def vectors(self) -> dict[str, StoredVector]:
        """The vectors by id of their record."""
        flat = self.store.execute("HGETALL", self.keys.key(VECTORS))
        return {id_.decode(): split_stored(value) for id_, value in zip(flat[::2], flat[1::2], strict=True)}

    def entries(self, suffix: str) -> dict[str, float]:
        """A sorted set."""
        flat = self.store.execute("ZRANGE", self.keys.key(suffix), 0, -1, "WITHSCORES")
        return {id_.decode(): float(score) for id_, score in zip(flat[::2], flat[1::2], strict=True)}

    def contradictions(self) -> list[str]:
        """Differences between the records and the entries of all indices; none may ever be seen."""
        return [problem for tier in TIERS for problem in self._contradictions(tier)]

    def _contradictions(self, tier: str) -> Iterator[str]:
        headers, contents = self.headers(tier), self.contents(tier)
        if contents.keys() != headers.keys():
            yield f"{tier}: content without header, or the other way: {contents.keys() ^ headers.keys()}"
            return
        size = sum(len(id_.encode()) + len(contents[id_]) + len(headers[id_].meta.encode()) for id_ in contents)
        stored = self.vectors()
        if other := {id_ for id_, header in headers.items() if header.vector != stored.get(id_, (0,))[0]}:
            yield f"{tier}: the vectors of {other} are not those of their headers"
        size += sum(len(stored[id_][1]) for id_, header in headers.items() if header.vector)
        counted = int(self.store.execute("HGET", self.keys.key(f"{tier}:meta"), "bytes") or 0)
        if counted != size:
            yield f"{tier}: {counted} bytes counted, {size} held"
        expected: dict[str, dict[str, float]] = {}
        for id_, header in headers.items():
            for part, score in entries_of(header).items():
                expected.setdefault(f"{tier}:{part}", {})[id_] = score
        stem = f"{self.keys.root}:{tier}:"
        parts = {name.removeprefix(f"{self.keys.root}:") for name in self.names() if name.startswith(stem)}
        for part in sorted((parts | expected.keys()) - {f"{tier}:{part}" for part in ("rec", "hdr", "acc", "meta")}):
            if (held := self.entries(part)) != expected.get(part, {}):
                yield f"{part} has {held}, expected {expected.get(part, {})}"
        accessed = {id_.decode() for id_ in self.store.execute("HKEYS", self.keys.key(f"{tier}:acc"))}
        if accessed - headers.keys():
            yield f"{tier}: accesses of missing records {accessed - headers.keys()}"


def entries_of(header: RecordHeader) -> dict[str, float]:
    """The index entries that a record must have: index -> score."""
    entries = {"exp": float(header.deadline)}
    if header.subject:
        entries[f"subj:{header.subject}"] = header.score
    if not header.superseded:
        entries |= {"time": header.score, "imp": header.importance, f"kind:{header.kind}": header.score}
        entries |= {f"act:{header.action}": header.score} if header.action else {}
        entries |= {f"cell:{header.cell}": header.score} if header.cell else {}
    return entries


def use_every_script(records: Records, shown: Shown = Shown()) -> None:
    """Call every script of memories, with every kind of key."""
    columns = {"action": "go", "cell": "0_0", "subject": "u", "x": 1.0, "y": 2.0, "importance": 0.5, "meta": b"{}"}
    for _ in range(2):
        for number in range(4):
            row = record(f"r{number}", number, **columns)
            assert records.store_rows(row, shown=shown).status == "ok"
        assert records.store_rows(record("long", 9, **columns), tier="im", shown=shown).status == "ok"
        assert records.update("r3", importance="0.75", content=b"[]", shown=shown).status == "ok"
        assert records.touch("r3", "long", shown=shown).rest == (2,)
        assert records.find(kinds=["state"], actions=["go"], subject="u", importance=0.1, steps=(0, 9)).records
        assert records.near(["0_0"], 0, 0, 9).records
        assert records.narrow(kinds=["state"], actions=["go"], subject="u", importance=0.1, steps=(0, 9)).ids
        assert records.remove("r2", shown=shown).rest == (1,)
        assert records.supersede("r0", "r3", shown=shown).status == "ok"
        assert records.supersede("r0", shown=shown).status == "ok"
        assert records.select("r1", selection=f"f{records.now_us}") == 1
        assert records.forget(f"f{records.now_us}", shown=shown).rest == (0, 1, 0)
        assert records.erase("other", shown=shown).rest == (0, 0)
        assert records.erase_outbox("other", shown=shown).rest == (0, b"")
        vectors = record("v", vector=bytes(8), codes=bytes(4), space="2:", indexed=1)
        assert records.store_rows(vectors, tier="im", shown=shown).vectors_pending
        made = [(note.encode(), "rem") for note in records.vector_notes()]
        assert records.settle_vectors(*made) == (0, [])
        assert records.check_vectors("v", codes=bytes(4)) == []
        assert records.check_vectors("gone", part="lsh:0.0") == []
        assert records.call(scripts.check_vector_set(records.keys, most=9, repair=True)).stale == []
        records.remove("v", shown=shown)
        assert records.embed(("r3", b"[]"), shown=shown).rest[1:] == (b"r3",)
        assert records.drop_vectors("r3", shown=shown).rest == (1,)
        use_tiers(records, shown, **columns)
        records.sleep(60_000)


def use_tiers(records: Records, shown: Shown, **columns: Any) -> None:
    """Call every script that moves or checks records."""
    assert records.store_rows(record("s", 5, simulation="run", type="wolf", **columns), shown=shown).listings_pending
    notes = [(note, values[0]) for note, values in records.notes().items()]
    assert records.settle(*notes) == 0
    records.sleep(1000)
    assert records.transition(shown=shown).rest[0] >= 1
    assert records.sweep("im", "hdr", "s", "gone", shown=shown).rest == (0, 0, 0, 0)
    assert records.offload(limit=2, shown=shown).rest[0] == 2
    assert records.acknowledge(*records.outbox()[:1], shown=shown).rest == (1,)
    assert records.contradictions() == []
