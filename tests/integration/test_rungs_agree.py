"""Each rung finds the same records with the same scores, after any changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import MemoryQuery, Orchestrator, Record

if TYPE_CHECKING:
    from orchestrator import Memory
    from orchestrator.core.settings import Settings

DIMS = 12
RUNGS = ("vectorset", "exact")


def of_rung(settings: Settings, rung: str) -> Settings:
    """The settings with another rung."""
    return settings.model_copy(update={"memory": settings.memory.model_copy(update={"vector_rung": rung})})


def some_vector(chance: random.Random) -> list[float]:
    """A vector near one of few centres, so that many are alike."""
    centre = chance.randrange(5)
    return [chance.gauss(1 if i % 5 == centre else 0, 0.4) for i in range(DIMS)]


async def change_at_random(memory: Memory, chance: random.Random, count: int) -> None:
    """Store, change, delete, supersede and move records."""
    ids = [f"r{number}" for number in range(count)]
    await memory.store_many(
        [
            Record(id=id_, step=step, kind=chance.choice("ab"), content=step, embedding=some_vector(chance))
            for step, id_ in enumerate(ids)
        ]
    )
    chance.shuffle(ids)
    for id_ in ids[:10]:
        await memory.update(id_, embedding=some_vector(chance))
    for id_ in ids[10:15]:
        await memory.update(id_, content="without a vector")
    await memory.delete(*ids[15:30])
    for id_ in ids[30:35]:
        await memory.supersede(id_, ids[0])
    await memory.store_many(
        [Record(id=id_, step=5000, kind="a", content=id_, embedding=some_vector(chance)) for id_ in ids[35:40]],
        tier="im",
    )


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [{}, {"memory__vector_delete": "mark"}], indirect=True, ids=["vrem", "mark"])
async def test_rungs_agree(settings: Settings, seed: int) -> None:
    """The vector set finds nearly all that a comparison with all vectors finds, in the same order, with its scores."""
    chance = random.Random(seed)
    queries: list[Any] = [
        None,
        MemoryQuery(kinds=("a",)),
        MemoryQuery(since=100, until=700),
        MemoryQuery(tiers=("im",)),
    ]
    async with (
        Orchestrator(settings=of_rung(settings, RUNGS[0])) as first,
        Orchestrator(settings=of_rung(settings, RUNGS[1])) as second,
    ):
        await change_at_random(first.memory("ed"), chance, 800)
        found = missed = 0
        for where in queries * 4:
            asked = some_vector(chance)
            near, truth = [await orc.memory("ed").similar(asked, 10, where=where) for orc in (first, second)]
            assert near.complete
            assert truth.complete
            assert len(near) == len(truth)
            scores = {hit.record.id: hit.score for hit in truth}
            assert all(hit.score == scores.get(hit.record.id, hit.score) for hit in near)
            assert [hit.score for hit in near] == sorted((hit.score for hit in near), reverse=True)
            found += len(truth)
            missed += len(scores.keys() - {hit.record.id for hit in near})
        assert missed <= 0.03 * found
