"""`memory/narrow` returns the ids of few records, and counts many."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.memory.records import record

if TYPE_CHECKING:
    from tests.lua.memory.records import Records

pytestmark = pytest.mark.every_server
KINDS, ACTIONS, SUBJECTS = ("a", "b", "c"), ("", "go", "stay"), ("", "ann", "bob")


def populate(records: Records, count: int) -> dict[str, dict[str, Any]]:
    """Store records in both tiers; return their columns."""
    chance = random.Random(4)
    stored: dict[str, dict[str, Any]] = {}
    for tier in ("stm", "im"):
        rows = []
        for number in range(count):
            columns = {
                "kind": chance.choice(KINDS), "action": chance.choice(ACTIONS), "subject": chance.choice(SUBJECTS),
                "importance": chance.random(),
            }  # fmt: skip
            id_, step = f"{tier}{number}", chance.randrange(-20, 20)
            rows.append(record(id_, step, **columns))
            stored[id_] = {**columns, "step": step, "tier": tier}
        records.store_rows(*rows, tier=tier)
    return stored


@pytest.mark.parametrize("seed", range(3))
def test_the_records_that_a_query_finds(records: Records, seed: int) -> None:
    """Each combination of conditions leads to the ids that a comparison of the columns finds."""
    stored, chance = populate(records, 60), random.Random(seed)
    for _ in range(15):
        asked: dict[str, Any] = {
            "kinds": chance.sample(KINDS, chance.randrange(3)),
            "actions": chance.sample(ACTIONS[1:], chance.randrange(3)),
            "subject": chance.choice(SUBJECTS),
            "steps": chance.choice([(None, None), (-5, None), (None, 3), (-5, 3)]),
            "importance": chance.choice([None, 0.5]),
            "tiers": chance.choice([("stm", "im"), ("im",)]),
        }
        lo, hi = asked["steps"]
        expected = {
            id_
            for id_, columns in stored.items()
            if (not asked["kinds"] or columns["kind"] in asked["kinds"])
            and (not asked["actions"] or columns["action"] in asked["actions"])
            and asked["subject"] in {"", columns["subject"]}
            and (lo is None or columns["step"] >= lo)
            and (hi is None or columns["step"] <= hi)
            and (asked["importance"] is None or columns["importance"] >= asked["importance"])
            and columns["tier"] in asked["tiers"]
        }
        found = records.narrow(**asked)
        if found.ids is None:
            assert not any((asked["kinds"], asked["actions"], asked["subject"], asked["importance"], lo or hi))
        else:
            assert set(found.ids) == expected
            assert len(found.ids) == len(expected)


def test_many_are_counted(records: Records) -> None:
    """More entries than the caller allows are counted by condition, unless they are a small share of all."""
    stored = populate(records, 60)
    of_kind = sum(columns["kind"] == "a" for columns in stored.values())
    in_steps = sum(columns["step"] >= 0 for columns in stored.values())
    both = sum(columns["kind"] == "a" and columns["step"] >= 0 for columns in stored.values())
    assert records.narrow(kinds=["a"], few=5, most=5)[1:] == (120, 120, -1, of_kind, -1, -1, -1)
    assert records.narrow(kinds=["a"], steps=(0, None), few=5, most=5)[1:] == (120, 120, in_steps, both, -1, -1, -1)
    assert records.narrow(tiers=["stm"], few=5, most=5)[1:3] == (120, 60)
    # Three of 120 are a small share.
    records.store_rows(*[record(f"x{i}", 1, kind="rare") for i in range(3)])
    assert records.narrow(kinds=["rare"], few=1, most=3).ids == ["x0", "x1", "x2"]
    assert records.narrow(kinds=["rare"], few=1, most=2).ids is None


def test_an_empty_memory(records: Records) -> None:
    """Without records a condition leads to none."""
    assert records.narrow(kinds=["a"]).ids == []
    assert records.narrow() == (None, 0, 0, -1, -1, -1, -1, -1)
