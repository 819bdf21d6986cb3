"""`orc.simulation`: its indices by step, type and place, and the buffers of its entities."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import InvalidInput, Record, StateRef
from orchestrator.simulations.scripts import ListingRow
from orchestrator.simulations.simulation import cell_of, make_listings, simulation_scope

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

HOSTILE = "a {b} } : * [x] / é 𝄞 ../.."
TYPE = "wolf%20%7B"


def state(agent: str, step: int, x: float, y: float, type_: str = "") -> ListingRow:
    """A row for a state of an agent at a place."""
    return ListingRow(agent, f"{agent}-{step}", step, 1, step, type_, cell_of(x, y, 10.0), x, y, 60_000)


async def test_indices(team: LocalTeam) -> None:
    """Agents by their last step, states by step, of a type, and near a place; another simulation has none of them."""
    run = team.orc.simulation(HOSTILE)
    scope = simulation_scope(team.services.store, team.settings, HOSTILE)
    rows = [state("ed", 1, 0.5, 0.5, TYPE), state("ed", 2, 9.0, 9.0), state("b:o", 2, -0.5, 0.0, TYPE)]
    await make_listings(scope, [*rows, state("ann", 9, 500.0, 0.0)])
    assert await run.agents() == {"ann": 9, "ed": 2, "b:o": 2}
    assert await run.agents(agent_type="wolf {", limit=1) == {"b:o": 2}
    first, second, third = StateRef("ed", "ed-1", 1), StateRef("b:o", "b:o-2", 2), StateRef("ed", "ed-2", 2)
    assert await run.states(hi=8) == [first, second, third]
    assert await run.states(2, 2, limit=1) == [second]
    assert await run.of_type("wolf {") == [first, second]
    assert await run.near(0.0, 0.0, 1.0) == [second, first]
    assert await run.near(0.0, 0.0, 13.0) == [second, first, third]
    assert await run.near(0.0, 0.0, 13.0, limit=1) == [second]
    other = team.orc.simulation("other")
    assert (await other.agents(), await other.states(), await other.near(0, 0, 5)) == ({}, [], [])


async def test_states_in_pages(team: LocalTeam) -> None:
    """Pages of one step go on behind the last state, also one that has gone; bounds and types hold."""
    run, scope = team.orc.simulation("r"), simulation_scope(team.services.store, team.settings, "r")
    await make_listings(scope, [state(f"a{number:03}", 1 + number // 200, 0, 0, "t") for number in range(300)])
    seen: list[StateRef] = []
    for agent_type in (None, "t"):
        seen = []
        while page := await run.states(0, 2, agent_type=agent_type, after=seen[-1] if seen else None, limit=70):
            seen += page
        assert seen == await run.states(agent_type=agent_type)
        assert len(seen) == 300
    gone = seen[99]
    await make_listings(scope, [ListingRow(gone.agent, gone.id, 9, 0, 0, "", "", 0.0, 0.0, 0)])
    assert await run.states(after=gone, limit=5) == seen[100:105]
    assert await run.states(2, 2, after=gone, limit=5) == seen[200:205]
    assert await run.states(1, 1, after=seen[199]) == []


async def test_near_is_read_in_pages(team: LocalTeam) -> None:
    """A large cell is read in pages; the outermost cells, which have no end, are found."""
    run, scope = team.orc.simulation("r"), simulation_scope(team.services.store, team.settings, "r")
    await make_listings(scope, [state(f"a{number}", 1, 1 + number / 1000, 1) for number in range(1500)])
    assert [ref.agent for ref in await run.near(1, 1, 5, limit=3)] == ["a0", "a1", "a2"]
    assert len({ref.agent for ref in await run.near(1, 1, 5, limit=10_000)}) == 1500
    with pytest.raises(InvalidInput, match="limit"):
        await run.near(1, 1, 5, limit=0)
    memory = team.orc.memory("ed")
    for step, x in ((1, 1e14), (2, -1e300)):
        await memory.store(Record(step=step, kind="note", content=1, id="f", position=(x, 0.0), simulation="r"))
        assert [ref.id for ref in await run.near(x, 0, 5)] == ["f"]


async def test_buffers(team: LocalTeam) -> None:
    """Concurrent callers lose nothing, a repeated change counts once, and buffers of two entities do not meet."""
    run = team.orc.simulation("r")
    await asyncio.gather(*[run.push(HOSTILE, number) for number in range(40)])
    assert sorted(await run.buffer(HOSTILE)) == list(range(40))
    values: list[Any] = [None, {"a": [True, 1.5]}, "é"]
    assert [await run.push("e", *values, op_id="mine") for _ in range(2)] == [3, 3]
    assert await run.buffer("e", last=2) == values[1:]
    assert await run.push("e", 1, cap=2) == 2
    assert await run.buffer("e") == ["é", 1]


REFUSED: list[tuple[str, tuple[Any, ...], str]] = [
    ("push", ("e",), "0 items"),
    ("push", ("", 1), "text of 1 to 256 bytes"),
    ("push", ("e", {1}), "set"),
    ("push", ("e", "x" * 70_000), "65536"),
    ("buffer", ("e", 0), "limit"),
    ("near", (0.0, 0.0, 1e6), "1024 cells"),
    ("near", (float("nan"), 0.0, 1.0), "finite"),
    ("states", (0.5, 1), "lo must be a whole number"),
    ("states", (0, 2**41), "hi must be a whole number"),
]


async def test_refused(team: LocalTeam) -> None:
    """What is no item, name, number or place is refused before anything is sent."""
    for call, args, words in REFUSED:
        with pytest.raises(InvalidInput, match=words):
            await getattr(team.orc.simulation("r"), call)(*args)
