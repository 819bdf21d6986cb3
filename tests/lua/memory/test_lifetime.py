"""How long the keys of a memory stay, what a lost key leads to, and what expired records leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.errors import ServerRefused
from tests.lua.memory.records import TIERS, record

if TYPE_CHECKING:
    from tests.lua.memory.records import Records

pytestmark = pytest.mark.every_server

DAY_MS = 86_400_000
FULL: dict[str, Any] = {"action": "go", "cell": "0_0", "subject": "u", "x": 1.0, "y": 2.0}
KEYS = {
    f"stm:{part}" for part in ("rec", "hdr", "meta", "time", "imp", "exp", "kind:state", "act:go", "subj:u", "cell:0_0")
}


def ends(records: Records) -> dict[str, int]:
    """Milliseconds that each key of a tier has left."""
    suffixes = [name.removeprefix(f"{records.keys.root}:") for name in records.names()]
    return {suffix: records.left_ms(suffix) for suffix in suffixes if not suffix.startswith("ops")}


def test_keys_outlive_their_records(records: Records) -> None:
    """All keys end together, an eighth of the retention after the first record; a longer record extends its own."""
    records.now_us = int(records.store.execute("TIME")[0]) * 1_000_000
    records.put("a", **FULL)
    assert ends(records).keys() == KEYS
    assert all(abs(left - DAY_MS * 9 // 8) < 10_000 for left in ends(records).values())
    records.put("b", **FULL)
    assert all(abs(left - DAY_MS * 9 // 8) < 10_000 for left in ends(records).values())
    records.put("c", kind="plan", ttl_ms=10 * DAY_MS)
    long = {"stm:rec", "stm:hdr", "stm:meta", "stm:time", "stm:imp", "stm:exp", "stm:kind:plan"}
    for suffix, left in ends(records).items():
        assert left > 10 * DAY_MS if suffix in long else left < 2 * DAY_MS
    records.put("d", **FULL)
    assert all(left > DAY_MS for left in ends(records).values())


def test_every_key_that_was_lost_gets_its_lifetime(records: Records) -> None:
    """Whichever key Redis lost: the next store gives it a lifetime, and reads return no half of a record."""
    for lost in sorted(KEYS):
        for number in range(3):
            records.put(f"r{number}", number, **FULL)
        records.touch("r0")
        records.store.execute("DEL", records.keys.key(lost))
        assert all(found.header and found.content for found in records.find().records)
        for number in range(3, 6):
            records.put(f"r{number}", number, **FULL)
        assert [suffix for suffix, left in ends(records).items() if left < 0] == [], lost
        assert {"r3", "r4", "r5"} <= set(records.ids(kinds=["state"]))


def test_expired_records_are_removed_in_steps(records: Records) -> None:
    """A store removes up to 20 expired records with all entries; until then no read returns them."""
    for number in range(0, 50, 10):
        records.store_rows(*[record(f"r{each}", each, ttl_ms=1000, **FULL) for each in range(number, number + 10)])
    records.sleep(1001)
    assert records.ids() == records.ids(actions=["go"]) == records.ids(subject="u", order="old") == []
    assert records.near(["0_0"], 1, 2, 5).records == []
    for left in (30, 10, 0):
        records.put("new", 99)
        assert len(records.headers("stm")) == left + 1
        assert records.contradictions() == []
    assert records.ids() == ["new"]


def test_more_records_than_places_in_a_step(records: Records) -> None:
    """Behind the 4096th record of a step, ids decide on the order; no record enters the next step."""
    for start in range(0, 4200, 100):
        records.store_rows(*[record(f"r{number:04}", -1) for number in range(start, start + 100)])
    records.put("next", 0)
    newest = records.ids(limit=200)
    assert newest == ["next", *[f"r{number:04}" for number in range(4199, 4000, -1)]]
    assert len(records.ids(steps=(-1, -1), limit=1000, every=4)) == 1000
    assert set(records.headers("stm").keys()) == {"next", *[f"r{number:04}" for number in range(4200)]}


def test_commands_do_not_grow(records: Records) -> None:
    """A store sends as many commands to a large memory as to a small one; a position is read by rank."""

    def commands() -> int:
        records.store.execute("CONFIG", "RESETSTAT")
        records.put("x", 5000, action="go")
        records.ids(offset=3, limit=1)
        lines = records.store.execute("INFO", "commandstats").decode().split()
        calls = {
            line.partition(":")[0]: int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line
        }
        return sum(calls.values())

    for number in range(5):
        records.put(f"r{number}", number)
    records.put("x", 5000, action="go")
    small = commands()
    for start in range(0, 2000, 100):
        records.store_rows(*[record(f"s{number}", number) for number in range(start, start + 100)])
    assert commands() <= small < 70


@pytest.mark.parametrize("records", [{"max_stm_records": 5}], indirect=True)
def test_a_lowered_cap_is_reached_in_steps(records: Records) -> None:
    """The oldest records beyond the cap move, at most 20 beyond those that the call adds."""
    records.settings = records.settings.model_copy(update={"max_stm_records": 100})
    records.store_rows(*[record(f"r{number:02}", number) for number in range(60)])
    records.settings = records.settings.model_copy(update={"max_stm_records": 5})
    for left in (40, 20, 5):
        records.put("new", 99)
        assert len(records.headers("stm")) == left
        assert records.contradictions() == []
    assert records.ids(limit=3) == ["new", "r59", "r58"]
    assert len(records.ids()) == 61


@pytest.mark.parametrize("records", [{"max_stm_records": 2}], indirect=True)
def test_accesses_follow_a_record(records: Records) -> None:
    """A record that moves to the other tier keeps its accesses; one that is replaced begins again."""
    records.put("a", 1)
    records.put("b", 2)
    records.touch("a", "b")
    records.touch("a")
    records.put("c", 3)
    acc = records.keys.key("im:acc")
    assert records.store.execute("HGET", acc, "a").split()[0] == b"2"
    assert records.left_ms("im:acc") > 0
    records.put("b", 2)
    assert records.store.execute("HGETALL", records.keys.key("stm:acc")) == []


def test_a_replaced_record_keeps_its_place(records: Records) -> None:
    """Within its step; with another step it is the newest one of that."""
    for id_ in ("a", "b", "c"):
        records.put(id_, 1)
    records.put("a", 1)
    assert records.ids(order="old") == ["a", "b", "c"]
    records.put("a", 0)
    records.put("a", 1)
    assert records.ids(order="old") == ["b", "c", "a"]


PARTS = ("rec", "hdr", "meta", "acc", "exp", "time", "imp", "kind:state", "act:go", "cell:0_0", "subj:u")


@pytest.mark.parametrize("part", [*(f"{tier}:{part}" for tier in TIERS for part in PARTS), "sim:pending"])
def test_a_key_of_another_type_refuses_a_store_as_a_whole(records: Records, part: str) -> None:
    """A store that one key fails leaves nothing, in keys without a lifetime or elsewhere."""
    records.store.execute("SET", records.keys.key(part), "x", "EX", 1000)
    before = records.snapshot()
    columns: dict[str, Any] = {
        "action": "go", "cell": "0_0", "subject": "u", "x": 1.0, "y": 2.0, "simulation": "run",
    }  # fmt: skip
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        records.store_rows(record("a"), record("b", **columns), tier="im" if part.startswith("im") else "stm")
    assert records.snapshot() == before
