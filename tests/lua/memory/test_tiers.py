"""Moves between tiers and to the outbox, sweeps, and notes for simulations: all entries move along, nothing is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orchestrator.memory.headers import decode_header
from tests.lua.memory.records import OUTBOX_MS, Records, Shown, record

pytestmark = pytest.mark.every_server

DAY_MS = 86_400_000
OTHER = Shown("exec:t", "2:t:2:0")
FULL: dict[str, Any] = {
    "action": "go",
    "cell": "0_0",
    "subject": "u",
    "x": 1.0,
    "y": 2.0,
    "importance": 0.5,
    "meta": b"{}",
}


def tier_of(records: Records) -> dict[str, str]:
    """The tier of each record."""
    return {id_: tier for tier in ("stm", "im") for id_ in records.headers(tier)}


def test_age(records: Records) -> None:
    """A record moves at the age, not before, with all entries, its accesses and a new deadline; others stay."""
    records.put("old", 1, **FULL)
    records.touch("old")
    records.sleep(500)
    records.put("new", 2, **FULL)
    assert records.transition(age_ms=501).rest == (0, 0, 0)
    assert records.transition(age_ms=500).rest == (1, 0, 0)
    assert tier_of(records) == {"new": "stm", "old": "im"}
    assert records.contradictions() == []
    assert records.store.execute("HEXISTS", records.keys.key("im:acc"), "old") == 1
    (header,) = records.headers("im").values()
    assert header.deadline == records.now_us // 1000 + 14 * DAY_MS
    assert records.ids() == ["new", "old"]


def test_importance(records: Records) -> None:
    """Less important records of the age stay and expire; they do not hide those behind them."""
    for number in range(5):
        records.put(f"dull{number}", number, importance=0.1)
    records.put("keen", 9, importance=0.5)
    records.sleep(1000)
    assert records.transition(least=0.5, limit=5).rest == (0, 5, 1)
    assert records.transition(least=0.5, limit=5, skip=5).rest == (1, 0, 0)
    records.sleep(DAY_MS)
    records.put("later", 10)
    assert tier_of(records) == {"keen": "im", "later": "stm"}
    assert records.contradictions() == []


@pytest.mark.parametrize("records", [{"max_stm_records": 3}], indirect=True)
def test_size(records: Records) -> None:
    """Above the cap the oldest move, however important; storing does so by itself."""
    for number in range(5):
        records.put(f"r{number}", 10 - number, importance=-1.0)
    assert tier_of(records) == {"r0": "stm", "r1": "stm", "r2": "stm", "r3": "im", "r4": "im"}
    records.settings = records.settings.model_copy(update={"max_stm_records": 1})
    assert records.transition(age_ms=10**9, least=1.0).rest == (2, 0, 0)
    assert tier_of(records)["r0"] == "stm"
    assert records.contradictions() == []


def test_retention_of_its_own(records: Records) -> None:
    """A record with a retention of its own moves and keeps its deadline."""
    records.put("mine", 1, ttl_ms=5000)
    (before,) = records.headers("stm").values()
    records.sleep(1000)
    assert records.transition().rest == (1, 0, 0)
    (after,) = records.headers("im").values()
    assert after.deadline == before.deadline
    records.sleep(4001)
    records.put("other")
    assert tier_of(records) == {"other": "stm"}


@pytest.mark.parametrize("records", [{"max_im_records": 2}], indirect=True)
def test_full_tier(records: Records) -> None:
    """What the intermediate tier has no room for stays where it is."""
    for number in range(3):
        records.put(f"r{number}", number)
    records.sleep(1000)
    assert records.transition().rest[0] == 2
    before = records.snapshot()
    assert (records.transition().status, records.transition().rest) == ("full", (b"records",))
    assert records.snapshot() == before


def test_order_within_a_step(records: Records) -> None:
    """Records of one step stay in the order of their storing, in whichever tier they are (B35)."""
    for name in "abc":
        records.put(name, 7)
    records.sleep(1000)
    records.transition(limit=2)
    for name in "de":
        records.put(name, 7)
    assert records.ids(order="old") == list("abcde")
    records.sleep(1000)
    records.transition()
    records.put("f", 7)
    assert records.ids(order="old") == list("abcdef")


def test_offload(records: Records) -> None:
    """Records leave the tier with all entries, those that end first first; the outbox has header and content."""
    records.put("late", 1, tier="im", ttl_ms=90_000)
    records.put("soon", 2, tier="im", ttl_ms=50_000, content=b"\xff", **FULL)
    records.touch("soon")
    records.sleep(1)
    records.put("new", 3, tier="im", ttl_ms=10_000)
    assert records.offload(age_ms=1, limit=1).rest == (1, 1, 1)
    assert tier_of(records) == {"late": "im", "new": "im"}
    assert records.contradictions() == []
    ((entry, flat),) = records.store.execute("XRANGE", records.keys.key("ltm:out"), "-", "+")
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    assert (fields[b"i"], fields[b"d"], fields[b"a"][:2]) == (b"soon", b"\xff", b"1 ")
    assert decode_header(fields[b"h"]).importance == 0.5
    assert OUTBOX_MS - 10_000 < records.left_ms("ltm:out") <= OUTBOX_MS
    assert OUTBOX_MS - 10_000 < records.left_ms("ltm:ids") <= OUTBOX_MS
    assert records.acknowledge(("soon", entry.decode())).rest == (1,)
    assert records.outbox() == []
    assert records.store.execute("EXISTS", records.keys.key("ltm:ids")) == 0


def test_offload_of_a_newer_version(records: Records) -> None:
    """A record that is stored and offloaded again replaces the waiting one; a late answer removes nothing."""
    records.put("a", 1, tier="im")
    records.offload()
    old = records.outbox()
    records.put("a", 1, tier="im", content=b"2")
    records.offload()
    (new,) = records.outbox()
    assert new[1] > old[0][1]
    assert records.acknowledge(*old).rest == (0,)
    assert records.outbox() == [new]
    assert records.store.execute("HGET", records.keys.key("ltm:ids"), "a") == new[1].encode()


def test_offload_is_bounded(records: Records) -> None:
    """A call moves about 1 MiB at most."""
    for number in range(4):
        records.put(f"r{number}", tier="im", content=b"x" * 600_000)
    assert records.offload().rest == (2, 0, 1)
    assert len(records.headers("im")) == 2


def test_offload_behind_young_records(records: Records) -> None:
    """Records that are due are found behind any number of younger ones that end before them, call by call."""
    records.put("due", 1, tier="im", ttl_ms=90_000)
    records.sleep(1000)
    for first in range(0, 1100, 100):
        rows = [record(f"r{number}", number, ttl_ms=50_000) for number in range(first, first + 100)]
        records.store_rows(*rows, tier="im")
    assert records.offload(age_ms=1000, limit=1).rest == (0, 1000, 1)
    assert records.offload(age_ms=1000, limit=1, skip=1000).rest == (1, 100, 0)


@pytest.mark.parametrize("verb", ["remove", "forget", "erase"])
def test_deleted_while_it_is_saved(records: Records, verb: str) -> None:
    """A record leaves the outbox with the record itself, and the program that saves it at this moment learns of it."""
    for id_, subject in (("a", "eve"), ("b", "bob")):
        records.put(id_, 1, tier="im", subject=subject)
    records.select("a", "b")
    records.offload()
    (mine, other) = sorted(records.outbox())
    match verb:
        case "remove":
            assert records.remove("a", op="x").rest == records.remove("a", op="x").rest == (1,)
        case "forget":
            assert records.forget(most=1, op="x").rest == records.forget(most=1, op="x").rest == (1, 1, 0)
        case "erase":
            assert records.erase_outbox("eve").rest == (1, b"")
    assert records.outbox() == [other]
    assert records.store.execute("HKEYS", records.keys.key("ltm:ids")) == [b"b"]
    assert records.acknowledge(mine, other).rest == (1, mine[1].encode())
    assert records.acknowledge(mine, other).rest == (0, mine[1].encode())
    assert 0 < records.left_ms("ltm:gone") <= DAY_MS
    records.sleep(DAY_MS + 1)
    records.put("c", 1, tier="im")
    records.offload()
    records.remove("c")
    assert records.store.execute("ZCARD", records.keys.key("ltm:gone")) == 1


def test_saved_after_an_erasure(records: Records) -> None:
    """A program that saves a record about an erased person late learns of it."""
    records.put("a", 1, tier="im", subject="eve")
    records.offload()
    (mine,) = records.outbox()
    assert records.acknowledge(mine, subject="eve").rest == (1,)
    records.erase("eve")
    assert records.acknowledge(mine, subject="eve").rest == (0, mine[1].encode())
    assert records.acknowledge(mine, subject="bob").rest == (0,)


def test_sweep(records: Records) -> None:
    """Orphan entries, expired records and records without content go; a record that lost entries gets them back."""
    for name in ("ok", "lost", "bare", "late"):
        records.put(name, 1, **{**FULL, "ttl_ms": 1000 if name == "late" else 0})
    stem = records.keys.key("stm")
    records.store.execute("ZADD", f"{stem}:time", 5, "orphan")
    records.store.execute("ZADD", f"{stem}:kind:other", 1, "ok")
    records.store.execute("EXPIRE", f"{stem}:kind:other", 1000)
    records.store.execute("HDEL", f"{stem}:rec", "lost")
    for part in ("time", "exp", "kind:state", "cell:0_0"):
        records.store.execute("ZREM", f"{stem}:{part}", "bare")
    records.sleep(1001)
    ids = ("ok", "lost", "bare", "late", "orphan")
    assert records.sweep("stm", "time", *ids).rest == (1, 1, 1, 0)
    assert records.sweep("stm", "kind:other", *ids).rest == (0, 1, 0, 0)
    assert records.sweep("stm", "hdr", *ids).rest == (0, 0, 0, 1)
    assert records.contradictions() == []
    assert set(records.headers("stm")) == {"ok", "bare"}
    assert records.sweep("stm", "hdr", *ids).rest == (0, 0, 0, 0)


def test_sweep_spares_what_is_being_written(records: Records) -> None:
    """A record that is stored after its id was read is no orphan, because the script looks at its header (B26)."""
    records.put("a")
    for part in ("time", "imp", "exp", "hdr", "rec", "acc", "kind:state"):
        assert records.sweep("stm", part, "a").rest == (0, 0, 0, 0)
    assert records.contradictions() == []


def test_sweep_spares_superseded_records(records: Records) -> None:
    """A superseded record stays without recall entries; a leftover of these is an orphan."""
    records.put("a", 1, **FULL)
    header = msgspec.structs.replace(records.headers("stm")["a"], superseded="b")
    records.store.execute("HSET", records.keys.key("stm:hdr"), "a", msgspec.msgpack.encode(header))
    for part in ("time", "imp", "kind:state", "act:go", "cell:0_0"):
        assert records.sweep("stm", part, "a").rest == (0, 1, 0, 0)
    for part in ("hdr", "exp", "subj:u", "rec"):
        assert records.sweep("stm", part, "a").rest == (0, 0, 0, 0)
    assert records.contradictions() == []


def test_notes(records: Records) -> None:
    """Each change of a record with a simulation leaves one note with its newest state; numbers rise."""
    records.put("a", 5, simulation="run", type="wolf", cell="0_0", x=1.5, y=-2.0)
    records.put("plain", 5)
    ((note, first),) = records.notes().items()
    assert note == b"run a"
    deadline = records.headers("stm")["a"].deadline
    assert first[1:] == [1, 5, "wolf", "0_0", 1.5, -2.0, deadline]
    records.sleep(1000)
    records.transition()
    ((_, second),) = records.notes().items()
    assert second[0] > first[0]
    assert second[1] == 1
    assert second[7] == records.headers("im")["a"].deadline
    assert records.settle((note, first[0])) == 1
    records.put("a", 6, simulation="other")
    assert {name: values[1] for name, values in records.notes().items()} == {b"run a": 0, b"other a": 1}
    records.remove("a")
    assert {name: values[1] for name, values in records.notes().items()} == {b"run a": 0, b"other a": 0}
    assert records.settle(*[(name, values[0]) for name, values in records.notes().items()]) == 0
    assert not records.put("b").startswith("full")
    assert not records.store_rows(record("c")).listings_pending


@pytest.mark.parametrize("verb", ["transition", "offload", "acknowledge", "sweep"])
def test_guards(records: Records, verb: str) -> None:
    """A repeat returns the first result; a caller without its lock, or beside an exclusive holder, changes nothing."""
    records.put("a", tier="stm")
    records.put("b", tier="im")
    records.put("c", tier="im")
    records.offload(limit=1)
    records.sleep(1000)
    args = {
        "transition": (), "offload": (), "acknowledge": tuple(records.outbox()), "sweep": ("stm", "time", "x"),
    }[verb]  # fmt: skip
    call = getattr(records, verb)
    before = records.snapshot()
    assert call(*args, shown=OTHER).status == "fenced"
    records.store.execute("SET", records.keys.key("exec"), "1:t:1:0", "PX", 60_000)
    assert call(*args).status == "occupied"
    records.store.execute("DEL", records.keys.key("exec"))
    assert records.snapshot() == before
    reply = call(*args, op="mine")
    assert reply.status == "ok"
    before = records.snapshot()
    assert (call(*args, op="mine").status, call(*args, op="mine").rest) == ("duplicate", reply.rest)
    assert records.snapshot() == before


@pytest.mark.parametrize("records", [{"max_stm_records": 5}], indirect=True)
def test_superseded_records_leave_room(records: Records) -> None:
    """The cap counts the records that recalls find: superseded ones do not push new ones out of the tier."""
    records.put("base", 0)
    for number in range(1, 20):
        records.put(f"r{number}", number)
        records.supersede(f"r{number}", "base")
    records.put("new", 50)
    assert records.ids(tiers=("stm",)) == ["new", "base"]
    assert records.headers("im") == {}
    assert records.transition(age_ms=10**9).rest == (0, 0, 0)
    for number in range(51, 55):
        records.put(f"n{number}", number)
    assert list(records.headers("im")) == ["base"]
    assert records.put("r19", 60) == "ok"
    assert records.ids(tiers=("stm",)) == ["r19", "n54", "n53", "n52", "n51"]
    assert records.ids(tiers=("im",)) == ["new", "base"]
    assert records.contradictions() == []


@pytest.mark.parametrize("records", [{"max_stm_records": 5, "max_im_records": 3}], indirect=True)
def test_superseded_records_are_limited(records: Records) -> None:
    """As many superseded records stay as the intermediate tier holds; then new ones are refused."""
    records.put("base", 0)
    for number in range(1, 4):
        records.put(f"r{number}", number)
        records.supersede(f"r{number}", "base")
    assert records.put("r4", 4) == "ok"
    records.supersede("r4", "base")
    before = records.snapshot()
    assert records.put("r5", 5) == "full"
    assert records.snapshot() == before
    records.remove("r1")
    assert records.put("r5", 5) == "ok"


def test_a_lowered_cap_moves_what_fits(records: Records) -> None:
    """A store moves its own and up to 20 more; it is refused only without room for its own."""
    for number in range(40):
        records.put(f"r{number:02}", number)
    records.settings = records.settings.model_copy(update={"max_stm_records": 10, "max_im_records": 25})
    assert records.put("n0", 100) == "ok"
    assert len(records.headers("im")) == 21
    assert records.put("n1", 101) == "ok"
    assert len(records.headers("im")) == 25
    assert records.put("n2", 102) == "full"
    assert records.put("r39", 39) == "ok"
    assert records.put("r00", 103) == "ok"
    assert len(records.headers("im")) == 25
    assert records.contradictions() == []


@pytest.mark.parametrize("records", [{"max_stm_records": 2}], indirect=True)
def test_an_entry_without_a_record_does_not_move(records: Records) -> None:
    """An entry whose record Redis has evicted leaves the index instead."""
    for name in ("a", "b"):
        records.put(name)
    for part in ("hdr", "rec"):
        records.store.execute("HDEL", records.keys.key(f"stm:{part}"), "a")
    assert records.put("c") == "ok"
    assert records.ids() == ["c", "b"]
    assert list(records.entries("stm:time")) == ["b", "c"]
