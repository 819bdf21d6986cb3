"""Scripts that forget: no entry stays without its record, and a repeat removes nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.memory.records import Shown, record
from tests.lua.scope import task_id

if TYPE_CHECKING:
    from tests.lua.memory.records import Records

pytestmark = pytest.mark.every_server

MINUTE_MS = 60_000


def _fill(records: Records) -> None:
    columns: dict[str, Any] = {"action": "go", "cell": "0_0", "x": 1.0, "y": 2.0, "importance": 0.5}
    for number in range(3):
        records.put(f"s{number}", number, subject="eve", **columns)
        records.put(f"i{number}", number, tier="im", subject="eve", **columns)
        records.put(f"o{number}", number, subject="bob", **columns)


def test_supersede(records: Records) -> None:
    """A replaced record is in no recall, whichever tier it is in; put back, it is at its old place."""
    _fill(records)
    before, ids = records.entries("im:time"), records.ids()
    assert records.supersede("i1", "s2", op="a").rest == (2,)
    assert "i1" not in records.ids()
    for conditions in ({"kinds": ["state"]}, {"actions": ["go"]}, {"subject": "eve"}, {"importance": 0.1}):
        assert "i1" not in records.ids(**conditions)
    assert "i1" not in {found.id for found in records.near(["0_0"], 1, 2, 1).records}
    assert records.headers("im")["i1"].superseded == "s2"
    assert records.contradictions() == []
    with_i1_out = records.snapshot()
    assert records.supersede("i1", "s2", op="a") == records.supersede("i1", "s0", op="a")
    assert records.snapshot() == with_i1_out
    assert records.supersede("i1").rest == (3,)
    assert (records.entries("im:time"), records.ids()) == (before, ids)
    assert records.contradictions() == []
    assert all(records.left_ms(f"im:{part}") > 0 for part in ("time", "imp", "kind:state", "act:go", "cell:0_0"))


def test_supersede_refused(records: Records) -> None:
    """Neither a missing record, nor one that is replaced itself: so there is no circle."""
    _fill(records)
    records.supersede("s0", "s1")
    before = records.snapshot()
    assert records.supersede("none", "s1").status == "missing"
    assert records.supersede("s1", "none").rest == (b"none",)
    assert tuple(records.supersede("s1", "s0").rest) == (b"s1",)
    assert records.snapshot() == before


def test_a_replaced_record_is_stored_again(records: Records) -> None:
    """A new content under the same id is recalled."""
    _fill(records)
    records.supersede("s0", "s1")
    assert records.put("s0", 5) == "ok"
    assert "s0" in records.ids()
    assert records.contradictions() == []


def test_forget(records: Records) -> None:
    """What was selected is removed batch by batch; a changed record stays; a repeat removes nothing more."""
    _fill(records)
    assert records.select("s0", "s1", "i0") == 3
    assert records.select("s0", "s1", "i0") == 3
    assert records.select("o0", "none", at=3) == 5
    assert 0 < records.left_ms("forget:f") <= 3_600_000
    records.update("s1", importance="0.75")
    assert records.forget(most=2, op="a").rest == (3, 1, 0, b"s1")
    before = records.snapshot()
    assert records.forget(most=2, op="a").rest == (3, 1, 0, b"s1")
    assert records.snapshot() == before
    assert records.forget(most=100).rest == (0, 2, 1)
    assert set(records.ids()) == {"s1", "s2", "i1", "i2", "o1", "o2"}
    assert records.contradictions() == []
    assert "forget:f" not in "".join(records.names())
    assert records.forget(most=100).rest == (0, 0, 0)


def test_erase(records: Records) -> None:
    """Records about the person go from both tiers, replaced ones too; none comes back until the time is over."""
    _fill(records)
    records.supersede("s0", "s1")
    assert records.erase("eve", most=4, op="a").rest == (4, 2)
    before = records.snapshot()
    assert records.erase("eve", most=4, op="a").rest == (4, 2)
    assert records.snapshot() == before
    assert records.erase("eve", most=4).rest == (2, 0)
    assert set(records.ids()) == {"o0", "o1", "o2"}
    assert records.contradictions() == []
    before = records.snapshot()
    assert records.put("s9", 1, subject="eve") == "erased"
    assert records.store_rows(record("new"), record("s9", subject="eve")).status == "erased"
    assert records.snapshot() == before
    assert "eve" not in repr(before)
    assert records.put("o9", 1, subject="bob") == "ok"
    records.sleep(20 * MINUTE_MS + 1)
    assert records.put("s9", 1, subject="eve") == "ok"


def test_erase_outbox(records: Records) -> None:
    """Records about the person leave the outbox and its hash of ids; others and newer entries stay."""
    for number in range(5):
        records.put(f"r{number}", number, subject="eve" if number % 2 else "bob")
    out, ids = records.keys.key("ltm:out"), records.keys.key("ltm:ids")
    for id_ in records.headers("stm"):
        packed = records.store.execute("HGET", records.keys.key("stm:hdr"), id_)
        entry = records.store.execute("XADD", out, "*", "i", id_, "h", packed, "d", b'"x"', "a", "")
        records.store.execute("HSET", ids, id_, entry)
    for key in (out, ids):
        records.store.execute("PEXPIRE", key, MINUTE_MS)
    removed, after = records.erase_outbox("eve", most=3, op="a").rest
    assert records.erase_outbox("eve", most=3, op="a").rest == (removed, after)
    more, end = records.erase_outbox("eve", after=after.decode(), most=3).rest
    assert (removed + more, end) == (2, b"")
    left = {entry[1][1] for entry in records.store.execute("XRANGE", out, "-", "+")}
    assert left == {b"r0", b"r2", b"r4"} == set(records.store.execute("HKEYS", ids))


def test_many(records: Records) -> None:
    """500 in one call."""
    for first in range(0, 500, 100):
        records.store_rows(*(record(f"r{number}", number, subject="eve") for number in range(first, first + 100)))
    assert records.select(*(f"r{number}" for number in range(500))) == 500
    assert records.erase("eve", most=500).rest == (500, 0)
    assert records.forget(most=100).rest == (400, 0, 100)
    assert records.contradictions() == []


def test_a_stale_lock(records: Records) -> None:
    """An attempt that lost its agent changes nothing, and neither does another one while a task has it alone."""
    _fill(records)
    records.select("s0")
    task = task_id()
    lock = f"exec:{task}"
    stale = Shown(lock, records.claim(lock, task, "10").value)
    records.claim(lock, task, "11")
    before = records.snapshot()
    replies = [
        records.supersede("s0", "s1", shown=stale),
        records.forget(shown=stale),
        records.erase("eve", shown=stale),
        records.erase_outbox("eve", shown=stale),
    ]
    assert [reply.status for reply in replies] == ["fenced"] * 4
    assert records.snapshot() == before
    records.claim("exec", task_id())
    assert [records.forget().status, records.erase("eve").status] == ["occupied"] * 2
