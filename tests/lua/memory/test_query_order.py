"""Queries over a large memory return what a comparison record by record finds, in the same order."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.memory.records import TIERS, record

if TYPE_CHECKING:
    from tests.lua.memory.records import Records

ORDERS = ("new", "old", "important")


@dataclass(frozen=True)
class Stored:
    """A record that a recall may return."""

    id: str
    tier: str
    number: int
    step: int
    kind: str
    action: str
    subject: str
    importance: float

    def place(self, order: str) -> tuple[Any, ...]:
        """What a query sorts by."""
        return (self.importance, self.id.encode()) if order == "important" else (self.step, self.number)


def populate(records: Records, count: int, rng: random.Random) -> list[Stored]:
    """Store records, of which some expire and some are superseded; return the others."""
    live = [
        Stored(
            id=f"i{number}",
            tier=TIERS[number // 100 % 2],
            number=number,
            step=rng.randint(-60, 400),
            kind=rng.choices(("a", "b", "rare"), (40, 5, 1))[0],
            action=rng.choices(("", "x", "seldom"), (40, 40, 1))[0],
            subject=rng.choices(("", "eve"), (30, 1))[0],
            importance=rng.choice((-1.0, 0.0, 0.1, 0.5, 0.5, rng.random())),
        )
        for number in range(count)
    ]
    dead = set(rng.sample(range(count), count // 10))
    for first in range(0, count, 100):
        rows = [
            record(
                each.id, each.step, kind=each.kind, action=each.action, subject=each.subject,
                importance=each.importance, ttl_ms=1000 if each.number in dead else 0,
            )
            for each in live[first : first + 100]
        ]  # fmt: skip
        assert records.store_rows(*rows, tier=live[first].tier).status == "ok"
    live = [each for each in live if each.number not in dead]
    replaced = {each.id for each in rng.sample(live[1:], count // 30)}
    for id_ in replaced:
        assert records.supersede(id_, live[0].id).status == "ok"
    records.sleep(2000)
    return [each for each in live if each.id not in replaced]


def expected(live: list[Stored], conditions: dict[str, Any]) -> list[str]:
    """The ids that a query must return, without its limits."""
    lo, hi = conditions.get("steps", (None, None))
    found = [
        each
        for each in live
        if each.tier in conditions.get("tiers", TIERS)
        and each.kind in conditions.get("kinds", (each.kind,))
        and each.action in conditions.get("actions", (each.action,))
        and each.subject == conditions.get("subject", each.subject)
        and (lo is None or each.step >= lo)
        and (hi is None or each.step <= hi)
        and each.importance >= conditions.get("importance", each.importance)
    ]
    order = conditions["order"]
    return [each.id for each in sorted(found, key=lambda each: each.place(order), reverse=order != "old")]


def conditions_of(rng: random.Random) -> dict[str, Any]:
    """The conditions of a query."""
    conditions: dict[str, Any] = {"order": rng.choice(ORDERS), "tiers": rng.choice([("stm",), ("im",), TIERS])}
    if rng.random() < 0.6:
        conditions["kinds"] = tuple(rng.sample(["a", "b", "rare", "none"], rng.randint(1, 2)))
    if rng.random() < 0.4:
        conditions["actions"] = tuple(rng.sample(["x", "seldom"], rng.randint(1, 2)))
    if rng.random() < 0.3:
        conditions["subject"] = "eve"
    if rng.random() < 0.5:
        bounds = [rng.choice([None, rng.randint(-80, 420)]) for _ in range(2)]
        conditions["steps"] = tuple(bounds)
    if rng.random() < 0.4:
        conditions["importance"] = rng.choice([-1.0, 0.1, 0.5, 0.9])
    return conditions


@pytest.mark.parametrize("records", [{"max_stm_records": 10_000}], indirect=True)
def test_queries_return_what_a_comparison_record_by_record_finds(records: Records) -> None:
    """All orders, limits, offsets; ties, negative steps, sparse names, expired and superseded records."""
    rng = random.Random(15)
    live = populate(records, 3000, rng)
    for _ in range(250):
        conditions = conditions_of(rng)
        limit, offset, every = rng.choice([1, 3, 50, 1000]), rng.choice([0, 0, 0, 7]), rng.choice([1, 1, 1, 3])
        found = records.find(**conditions, limit=limit, offset=offset, every=every)
        assert found.complete
        wanted = expected(live, conditions)[offset::every][:limit]
        assert [each.id for each in found.records] == wanted, conditions


def test_records_that_are_sorted_after_the_scan_keep_their_order(records: Records) -> None:
    """The sort compares a record with itself; a wrong answer there gives wrong orders at some sizes."""
    rng = random.Random(0)
    records.store_rows(*[record(f"f{number}", number, kind="filler") for number in range(100)])
    for size in range(4, 40):
        ranks = rng.sample(range(size), size)
        rows = [record(f"k{size}-{i}", i, kind=f"k{size}", importance=float(rank)) for i, rank in enumerate(ranks)]
        records.store_rows(*rows)
        found = records.find(kinds=(f"k{size}",), order="important").records
        assert [ranks[int(each.id.split("-")[1])] for each in found] == sorted(ranks, reverse=True)


@pytest.mark.parametrize("records", [{"max_stm_records": 10_000}], indirect=True)
def test_a_search_goes_on_where_it_stopped(records: Records) -> None:
    """Calls of 1000 entries each find together what one call finds, over both tiers and behind expired records."""
    rng = random.Random(16)
    live = populate(records, 3000, rng)
    for order, tiers, kinds in itertools.product(ORDERS, (TIERS, ("im",)), (None, ("a", "b"))):
        conditions: dict[str, Any] = {"order": order, "tiers": tiers} | ({"kinds": kinds} if kinds else {})
        for offset, every in ((0, 1), (7, 3)):
            found = records.find(**conditions, limit=3000, offset=offset, every=every, most=1000)
            ids, calls = [each.id for each in found.records], 1
            while found.resume:
                calls += 1
                found = records.find(
                    **conditions, limit=3000, offset=offset, every=every, most=1000, resume=found.resume
                )
                ids += [each.id for each in found.records]
            if found.complete:
                assert ids == expected(live, conditions)[offset::every], (conditions, calls)
                assert calls > 1
