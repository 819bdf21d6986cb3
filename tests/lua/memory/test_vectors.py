"""Scripts that give records vectors later, and take them away: only the vector of the present content is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import ServerRefused
from orchestrator.store.keys import VECTOR_SET, VECTORS, VECTORS_META, VECTORS_PENDING
from tests.lua.memory.records import Shown, record

if TYPE_CHECKING:
    from tests.lua.memory.records import Records

pytestmark = pytest.mark.every_server

VECTOR = bytes(range(1, 9))


def notes(records: Records) -> dict[bytes, bytes]:
    """The noted changes of the vector set."""
    flat = records.store.execute("HGETALL", records.keys.key(VECTORS_PENDING))
    return dict(zip(flat[::2], flat[1::2], strict=True))


def settle(records: Records) -> int:
    """Remove all notes; return how many are left."""
    left, _ = records.settle_vectors(*[(note, change.decode()) for note, change in notes(records).items()])
    return left


def state(records: Records) -> tuple[object, ...]:
    """All that a call may change, without the stored replies."""
    return records.headers("stm"), records.headers("im"), records.vectors(), notes(records), records.entries("stm:exp")


def test_embed(records: Records) -> None:
    """A record in either tier gets its vector, with all that a store of it would write; its version stays."""
    records.put("a", content=b'"one"')
    records.put("b", tier="im", content=b'"two"')
    reply = records.embed(("a", b'"one"'), ("b", b'"two"'), vector=VECTOR, op="o")
    number, *ids = int(reply.rest[0]), *reply.rest[1:]
    assert (reply.status, ids, reply.vectors_pending) == ("ok", [b"a", b"b"], True)
    assert records.vectors() == {"a": (number, VECTOR), "b": (number, VECTOR)}
    assert [records.headers(tier)[id_].version for tier, id_ in (("stm", "a"), ("im", "b"))] == [1, 1]
    assert notes(records) == {b"%d:%s" % (number, id_): b"add" for id_ in (b"a", b"b")}
    assert records.store.execute("HGET", records.keys.key(VECTORS_META), "space") == b"2:e"
    assert sorted(records.store.execute("SMEMBERS", records.keys.key("lsh:0.0"))) == [b"a", b"b"]
    assert records.left_ms(VECTORS) >= max(records.left_ms("stm:rec"), records.left_ms("im:rec")) - 1000
    assert records.contradictions() == []
    before = state(records)
    again = records.embed(("a", b'"one"'), ("b", b'"two"'), vector=bytes(8), op="o")
    assert (again.status, again.rest) == ("duplicate", reply.rest)
    assert state(records) == before


def test_embed_leaves_records(records: Records) -> None:
    """A content that has changed, a record that has a vector, an expired one and a missing one stay as they are."""
    records.put("changed", content=b"2")
    records.store_rows(record("has", vector=VECTOR, space="2:e", indexed=1))
    records.put("expired", ttl_ms=10)
    records.put("again", content=b"1")
    records.remove("again")
    records.put("again", content=b"2")
    records.sleep(11)
    before = state(records)
    rows = [(id_, b"1") for id_ in ("changed", "has", "expired", "again", "missing")]
    assert records.embed(*rows, op="o").rest == (b"0",)
    assert state(records) == before


def test_embed_refused(records: Records) -> None:
    """Another space, a full memory and a lost lock: nothing is written."""
    records.put("a")
    records.store_rows(record("b", vector=VECTOR, space="2:e", indexed=1))
    before = state(records)
    assert records.embed(("a", b"1"), space="2:other").rest == (b"2:e",)
    assert records.embed(("a", b"1"), shown=Shown("exec:t", "1:t:1:0")).status == "fenced"
    records.settings = records.settings.model_copy(update={"max_bytes": 20})
    full = records.embed(("a", b"1"), vector=bytes(400))
    assert (full.status, full.rest) == ("full", (b"bytes",))
    assert records.embed(("b", b"1"), vector=bytes(400)).rest == (b"0",)
    assert state(records) == before


def test_drop_vectors(records: Records) -> None:
    """The vectors go with their entries, of both tiers; the records stay, and another space may follow."""
    records.put("a", content=b'"one"')
    records.put("b", tier="im", content=b'"two"')
    before = records.contents("stm"), records.contents("im")
    number = int(records.embed(("a", b'"one"'), ("b", b'"two"'), vector=VECTOR).rest[0])
    settle(records)
    records.store.execute("SADD", records.keys.key(VECTOR_SET), "stands for a vector set")
    reply = records.drop_vectors("a", "b", "missing", op="o")
    assert (reply.status, reply.rest, reply.vectors_pending) == ("ok", (2,), True)
    assert records.vectors() == {}
    assert notes(records) == {b"%d:%s" % (number, id_): b"rem" for id_ in (b"a", b"b")}
    assert records.store.execute("EXISTS", records.keys.key("lsh:0.0"), records.keys.key("lshrev")) == 0
    assert (records.contents("stm"), records.contents("im")) == before
    assert [records.headers(tier)[id_].version for tier, id_ in (("stm", "a"), ("im", "b"))] == [1, 1]
    assert records.contradictions() == []
    assert records.drop_vectors("a", "b", op="o").rest == (2,)
    assert records.drop_vectors("a", "b").rest == (0,)
    assert settle(records) == 0
    assert records.store.execute("EXISTS", records.keys.key(VECTOR_SET)) == 0
    assert records.embed(("a", b'"one"'), space="2:other").rest[1:] == (b"a",)


def test_drop_vectors_of_missing_records(records: Records) -> None:
    """A vector whose record has expired, or whose header Redis has lost, goes as well."""
    records.store_rows(record("a", vector=VECTOR, codes=bytes(4), space="2:e"))
    records.store_rows(record("b", vector=VECTOR, space="2:e", ttl_ms=10))
    records.store.execute("HDEL", records.keys.key("stm:hdr"), "a")
    records.sleep(11)
    assert records.drop_vectors("a", "b").rest == (2,)
    assert records.vectors() == {}
    assert records.store.execute("EXISTS", records.keys.key("lsh:0.0")) == 0


def test_drop_vectors_refused(records: Records) -> None:
    """A caller that has lost its lock removes nothing."""
    records.store_rows(record("a", vector=VECTOR, space="2:e"))
    before = records.snapshot()
    assert records.drop_vectors("a", shown=Shown("exec:t", "1:t:1:0")).status == "fenced"
    assert records.snapshot() == before


@pytest.mark.parametrize("part", [VECTORS, VECTORS_META, VECTORS_PENDING, "emb:log", "lshrev"])
def test_wrong_types(records: Records, part: str) -> None:
    """A key of another type fails a call before its first write."""
    records.put("a")
    records.store.execute("SET", records.keys.key(part), "x", "EX", 100)
    before = records.snapshot()
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        records.embed(("a", b"1"))
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        records.drop_vectors("a")
    assert records.snapshot() == before


def test_notes_that_no_client_follows(records: Records) -> None:
    """No client removes the notes of a server without vector sets: they stay few, the newest change among them."""
    for at in range(12):
        rows = [record(f"r{n}", vector=VECTOR, space="2:", indexed=1) for n in range(100)]
        records.store_rows(*rows)
        records.sleep(1000 + at)
    assert len(notes(records)) <= 100 + 1000 + 1
    newest = {id_: number for id_, (number, _) in records.vectors().items()}
    assert notes(records)[b"%d:r99" % newest["r99"]] == b"add"
    assert records.contradictions() == []
