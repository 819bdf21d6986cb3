"""Scripts that keep the indices of vectors equal to the vectors: notes, checks of each part, and the log of changes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.memory import scripts
from orchestrator.store.keys import CODES, VECTOR_SET, VECTORS, VECTORS_LOG, VECTORS_META
from tests.lua.memory.records import record

if TYPE_CHECKING:
    from tests.lua.memory.records import Records

VECTOR = struct.pack("<2f", 3, 4)
CODES_OF = b"\x00\x01\x00\x02"
BUCKETS = ("lsh:0.1", "lsh:1.2")


def put(records: Records, *ids: str, **columns: Any) -> int:
    """Store records with a vector; return its number."""
    usual = {"vector": VECTOR, "codes": CODES_OF, "space": "2:e", "indexed": 1, "subject": "eve"}
    reply = records.store_rows(*[record(id_, **{**usual, **columns}) for id_ in ids])
    assert reply.status == "ok"
    return int(reply.rest[-1])


def members(records: Records, bucket: str) -> set[bytes]:
    """The records in a bucket."""
    return set(records.store.execute("SMEMBERS", records.keys.key(bucket)))


def add(records: Records, element: str) -> None:
    """Add a vector to the set."""
    records.store.execute("VADD", records.keys.key(VECTOR_SET), "FP32", VECTOR, element, "SETATTR", "{}")


def test_settle_looks_at_the_vector(records: Records) -> None:
    """A note goes when its change is made; a vector that was added behind its record's removal has to leave again."""
    number = put(records, "a", "b")
    added, other = f"{number}:a", f"{number}:b"
    assert records.vector_notes() == {added: "add", other: "add"}
    add(records, added)
    assert records.settle_vectors((added.encode(), "add")) == (1, [])
    assert records.settle_vectors((added.encode(), "add")) == (1, [])
    records.remove("b")
    assert records.vector_notes() == {other: "rem"}
    # The client that adds it comes first, and then the one that removes it: both leave the note to a removal.
    assert records.settle_vectors((other.encode(), "add")) == (1, [])
    assert records.vector_notes() == {other: "rem"}
    assert records.settle_vectors((other.encode(), "rem")) == (0, [])
    assert records.settle_vectors((other.encode(), "add")) == (1, []), "an addition behind the removal"
    assert records.vector_notes() == {other: "rem"}
    assert records.settle_vectors((other.encode(), "rem")) == (0, [])
    assert records.settle_vectors((b"foreign", "add"), (b"foreign", "rem")) == (0, [])


def test_settle_keeps_the_note_of_a_dropped_vector(records: Records) -> None:
    """Redis may say that it added a vector which it dropped, because the set lost its last element meanwhile."""
    number = put(records, "a", "b")
    first, second = f"{number}:a", f"{number}:b"
    both = (first.encode(), "add"), (second.encode(), "add")
    assert records.settle_vectors(*both) == (2, [first.encode(), second.encode()]), "no set at all"
    add(records, first)
    assert records.settle_vectors(*both) == (1, [second.encode()])
    assert records.vector_notes() == {second: "add"}
    add(records, second)
    assert records.settle_vectors(*both) == (0, [])


def test_settle_keeps_the_set_alive(records: Records) -> None:
    """The set lives as long as the vectors; a set of other dimensions, or without vectors, is removed."""
    set_key, emb_key = records.keys.key(VECTOR_SET), records.keys.key(VECTORS)
    number = put(records, "a")
    add(records, f"{number}:a")
    records.settle_vectors((f"{number}:a".encode(), "add"))
    assert records.store.execute("PEXPIRETIME", set_key) == records.store.execute("PEXPIRETIME", emb_key)
    records.store.execute("PERSIST", emb_key)
    records.store.execute("PERSIST", set_key)
    records.settle_vectors()
    assert records.store.execute("EXISTS", set_key) == 1, "vectors without a lifetime take the set with them"
    records.store.execute("PEXPIRE", emb_key, 100_000)
    records.store.execute("UNLINK", set_key)
    records.store.execute("VADD", set_key, "VALUES", 3, 1, 2, 3, "late")
    records.settle_vectors()
    assert records.store.execute("EXISTS", set_key) == 0
    records.remove("a")
    add(records, f"{number}:a")
    records.settle_vectors((f"{number}:a".encode(), "rem"))
    assert records.store.execute("EXISTS", set_key) == 0


@pytest.mark.every_server
def test_the_last_vector_takes_the_counts(records: Records) -> None:
    """A memory without vectors has no key of them; counts of later vectors are above the old ones."""
    put(records, "a")
    before = int(records.store.execute("HGET", records.keys.key(VECTORS_META), "rev"))
    records.remove("a")
    left = {name.partition("}:")[2] for name in records.names()}
    assert not left & {VECTORS, VECTORS_META, VECTORS_LOG, CODES, *BUCKETS}
    records.sleep(1)
    put(records, "b")
    assert int(records.store.execute("HGET", records.keys.key(VECTORS_META), "rev")) > before
    assert records.store.execute("LRANGE", records.keys.key(VECTORS_LOG), 0, -1) == [b"b"]


@pytest.mark.every_server
def test_an_erasure_clears_the_log(records: Records) -> None:
    """The log names no erased record; the count tells processes that keep vectors to read all of them again."""
    put(records, "mine")
    put(records, "other", subject="bob")
    rev = int(records.store.execute("HGET", records.keys.key(VECTORS_META), "rev"))
    assert records.erase("eve").rest == (1, 0)
    assert records.store.execute("EXISTS", records.keys.key(VECTORS_LOG)) == 0
    assert int(records.store.execute("HGET", records.keys.key(VECTORS_META), "rev")) > rev + 1024
    assert records.left_ms(VECTORS_META) > 0
    assert records.erase("nobody").rest == (0, 0)


@pytest.mark.every_server
@pytest.mark.parametrize("repair", [False, True])
def test_checks(records: Records, *, repair: bool) -> None:
    """Each kind of difference is found, and repaired once; without repair nothing changes; what is sound is left."""
    number = put(records, "a", "b", "c", "d")
    records.settle_vectors(*[(f"{number}:{id_}".encode(), "rem") for id_ in "abcd"])
    emb_key, rev_key = records.keys.key(VECTORS), records.keys.key(CODES)
    value = records.store.execute("HGET", emb_key, "a")
    assert records.check_vectors("a", "b", "missing", codes=CODES_OF) == []
    assert records.check_vectors("a", part=CODES) == records.check_vectors("a", part=BUCKETS[0]) == []

    records.store.execute("HSET", emb_key, "nobody", value, "b", struct.pack("<d", 7) + VECTOR, "c", b"short")
    records.store.execute("HDEL", rev_key, "a")
    records.store.execute("SREM", records.keys.key(BUCKETS[0]), "d")
    records.store.execute("SADD", records.keys.key(BUCKETS[1]), "stray")
    records.store.execute("HSET", rev_key, "stray", CODES_OF)
    records.store.execute("UNLINK", records.keys.key(VECTORS_META))
    ids = ("a", "b", "c", "d", "nobody")
    expected = [(-1, "lost-counts"), (0, "unlisted-record"), (1, "orphan-vector"), (2, "orphan-vector"),
                (3, "unlisted-record"), (4, "orphan-vector")]  # fmt: skip
    before = records.snapshot()
    assert records.check_vectors(*ids, codes=CODES_OF, repair=repair) == expected
    assert records.check_vectors("stray", part=CODES, repair=repair) == [(0, "orphan-entry")]
    if not repair:
        assert records.snapshot() == before
        return
    assert records.check_vectors(*ids, codes=CODES_OF) == []
    assert records.check_vectors("stray", part=CODES) == []
    assert members(records, BUCKETS[0]) == members(records, BUCKETS[1]) == {b"a", b"d"}
    assert sorted(records.store.execute("HKEYS", emb_key)) == [b"a", b"d"]
    assert sorted(records.store.execute("HKEYS", rev_key)) == [b"a", b"d"]
    records.store.execute("SADD", records.keys.key(BUCKETS[0]), "b")
    assert records.check_vectors("a", "b", part=BUCKETS[0]) == [(1, "orphan-entry")]
    assert records.check_vectors("a", "b", part=BUCKETS[0]) == []
    assert {id_: header.vector for id_, header in records.headers("stm").items()} == {
        "a": number,
        "b": 0,
        "c": number,
        "d": number,
    }
    assert all(records.left_ms(part) > 0 for part in (VECTORS, VECTORS_META, CODES, *BUCKETS))


def test_checks_of_the_set(records: Records) -> None:
    """A vector that the set lacks gets a note, unless one is there; elements of no record get one, too."""
    number = put(records, "a", "b")
    set_key = records.keys.key(VECTOR_SET)
    records.store.execute("VADD", set_key, "FP32", VECTOR, f"{number}:a", "SETATTR", "{}")
    records.store.execute("VADD", set_key, "FP32", VECTOR, "5:a", "SETATTR", "{}")
    records.store.execute("VADD", set_key, "FP32", VECTOR, f"0{number}:a", "SETATTR", "{}")
    assert records.check_vectors("a", "b", codes=CODES_OF, indexed=True) == []
    records.settle_vectors((f"{number}:b".encode(), "rem"), (f"{number}:b".encode(), "add"))
    assert records.check_vectors("a", "b", codes=CODES_OF, indexed=True) == [(1, "unlisted-record")]
    assert records.vector_notes() == {f"{number}:a": "add", f"{number}:b": "add"}
    for repair in (False, True):
        sample = records.call(scripts.check_vector_set(records.keys, most=10, repair=repair))
        assert (sample.elements, sample.vectors, sorted(sample.stale)) == (
            3,
            2,
            sorted([b"5:a", f"0{number}:a".encode()]),
        )
    assert records.vector_notes()["5:a"] == "rem"
    assert records.left_ms(VECTOR_SET) == pytest.approx(records.left_ms(VECTORS), abs=50)
    records.store.execute("UNLINK", set_key)
    assert records.check_vectors("a", codes=CODES_OF) == []
    assert records.call(scripts.check_vector_set(records.keys, most=10, repair=True)) == (0, 0, 0, [])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_order_of_two_clients(  # noqa: C901
    records: Records, data: st.DataObject
) -> None:
    """Commands of two clients arrive in any order: when all notes are followed, the set has exactly the vectors."""
    for name in records.names():
        records.store.execute("UNLINK", name)
    set_key = records.keys.key(VECTOR_SET)
    waiting: list[tuple[str, str]] = []
    sent: list[tuple[str, str]] = []

    def follow(element: str, change: str) -> None:
        """Send a change of the set, and keep the call behind it for later."""
        if change == "add":
            add(records, element)
        else:
            records.store.execute("VREM", set_key, element)
        sent.append((element, change))

    for _ in range(data.draw(st.integers(1, 12))):
        records.sleep(1)
        match data.draw(st.sampled_from(["store", "remove", "send", "settle"])):
            case "store":
                put(records, data.draw(st.sampled_from("ab")), codes=b"")
                waiting += [note for note in records.vector_notes().items() if note not in waiting]
            case "remove":
                records.remove(data.draw(st.sampled_from("ab")))
                waiting += [note for note in records.vector_notes().items() if note not in waiting]
            case "send" if waiting:
                follow(*waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
            case "settle" if sent:
                element, change = sent.pop(data.draw(st.integers(0, len(sent) - 1)))
                records.settle_vectors((element.encode(), change))
    while waiting or sent or records.vector_notes():
        for note in waiting:
            follow(*note)
        waiting = []
        for element, change in sent:
            records.settle_vectors((element.encode(), change))
        sent = []
        waiting = list(records.vector_notes().items())
    size = records.store.execute("VCARD", set_key)
    indexed = set(records.store.execute("VRANDMEMBER", set_key, size) if size else ())
    assert indexed == {f"{number}:{id_}".encode() for id_, (number, _) in records.vectors().items()}
