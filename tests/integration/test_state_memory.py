"""`StateMemory`: the six methods of the source document, with right answers for positions, history and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import InvalidInput, Record, StateMemory
from tests.helpers.counting import CommandCounter

if TYPE_CHECKING:
    import redis

    from tests.helpers.local_team import LocalTeam

METADATA = {"state_id", "agent_id", "simulation_id", "step_number", "stored_at"}


async def filled(team: LocalTeam, count: int = 10, **fields: Any) -> StateMemory:
    """States s0, s1, ... of agent ed."""
    states = team.orc.memory("ed").states("run 1")
    for step in range(count):
        await states.store_agent_state({"name": f"s{step}", **fields}, step)
    return states


def names(states: list[dict[str, Any]]) -> list[str]:
    """The field `name` of each."""
    return [state["name"] for state in states]


async def test_positions(team: LocalTeam) -> None:
    """Of ten states, position 0 is s9, -1 is s8, -3 is s6 and -9 is s0; before it there is none (B20)."""
    states = await filled(team)
    current, previous = await states.get_current_state(), await states.get_previous_state()
    assert current is not None
    assert previous is not None
    assert names([current, previous]) == ["s9", "s8"]
    assert current == await states.get_state_at_relative_position(0)
    for position, name in ((-1, "s8"), (-3, "s6"), (-9, "s0")):
        found = await states.get_state_at_relative_position(position)
        assert found is not None
        assert found["name"] == name
    assert await states.get_state_at_relative_position(-10) is None


async def test_metadata(team: LocalTeam) -> None:
    """A state comes back with its own fields and the metadata of the source; the id is agent, step and simulation."""
    states = team.orc.memory("ed").states("run 1")
    given = {"nothing": None, "yes": True, "nested": {"a": [1, {"b": None}]}, "text": "1.5"}
    before = dict(given)
    assert await states.store_agent_state(given, -7) == "ed--7@run 1"
    assert given == before
    state = await states.get_current_state()
    assert state is not None
    assert state.pop("stored_at") > 1_700_000_000
    assert state == {
        **given, "state_id": "ed--7@run 1", "agent_id": "ed", "simulation_id": "run 1", "step_number": -7,
    }  # fmt: skip


async def test_second_write_of_a_step(team: LocalTeam) -> None:
    """A second write of a step replaces all fields of the first one, its type and its place (B32)."""
    states = team.orc.memory("ed").states()
    await states.store_agent_state(
        {"a": 1, "agent_type": "wolf", "position_x": 1, "position_y": 1}, 3, simulation_id="r"
    )
    await states.store_agent_state({"b": 2}, 3, simulation_id="r")
    (state,) = await states.get_state_history()
    assert state.keys() == {"b"} | METADATA
    run = team.orc.simulation("r")
    assert [ref.id for ref in await run.states()] == ["ed-3@r"]
    assert (await run.of_type("wolf"), await run.near(1, 1, 5)) == ([], [])


async def test_two_simulations(team: LocalTeam) -> None:
    """States of one step of two simulations stay apart, with ids, reads and changes of their own."""
    memory = team.orc.memory("ed")
    first, second, all_states = memory.states("s1"), memory.states("s2"), memory.states()
    assert await first.store_agent_state({"name": "a"}, 1) == "ed-1@s1"
    assert await second.store_agent_state({"name": "b"}, 1) == "ed-1@s2"
    assert await all_states.store_agent_state({"name": "c"}, 1) == "ed-1"
    await first.store_agent_state({"name": "d"}, 2)
    assert names(await first.get_state_history()) == ["a", "d"]
    assert names(await second.get_state_history()) == ["b"]
    assert names(await all_states.get_state_history()) == ["a", "b", "c", "d"]
    assert (await second.get_current_state() or {})["name"] == "b"
    assert (await first.get_previous_state() or {})["name"] == "a"
    assert await second.get_previous_state() is None
    assert await second.calculate_state_changes() is None
    assert (await first.calculate_state_changes() or {}).keys() == {"name"}
    for name, ids in (("s1", ["ed-1@s1", "ed-2@s1"]), ("s2", ["ed-1@s2"])):
        assert [ref.id for ref in await team.orc.simulation(name).states()] == ids


async def test_a_state_as_read_is_stored_again(team: LocalTeam) -> None:
    """The metadata of a state that was read does not become part of the next one."""
    states = await filled(team, 1)
    state = await states.get_current_state()
    assert state is not None
    await states.store_agent_state({**state, "n": 1}, 1)
    record = await team.orc.memory("ed").at(0)
    assert record is not None
    assert record.content == {"name": "s0", "n": 1}


async def test_history(team: LocalTeam, redis_client: redis.Redis) -> None:
    """History is in the order of steps, reaches over gaps, and costs one round trip (B33)."""
    states = await filled(team, 3)
    await states.store_agent_state({"name": "s90"}, 90)
    await team.orc.memory("ed").store(Record(step=91, kind="note", content="no state"))
    commands = CommandCounter(redis_client)
    assert names(await states.get_state_history(3)) == ["s1", "s2", "s90"]
    assert commands.scripts() == 1
    assert names(await states.get_state_history()) == ["s0", "s1", "s2", "s90"]


async def test_changes(team: LocalTeam) -> None:
    """Numbers get a difference, other values whether they differ; metadata is left out, lost and new fields are in."""
    states = team.orc.memory("ed").states("run 1")
    await states.store_agent_state({"up": 2, "below": -4, "zero": 0, "same": "x", "flag": True, "gone": 1}, 1)
    assert await states.calculate_state_changes() is None
    await states.store_agent_state({"up": 3, "below": -2, "zero": 5, "same": "x", "flag": 1, "new": None}, 2)
    assert await states.calculate_state_changes() == {
        "up": {"previous": 2, "current": 3, "change": 1, "percent_change": 50.0},
        "below": {"previous": -4, "current": -2, "change": 2, "percent_change": 50.0},
        "zero": {"previous": 0, "current": 5, "change": 5, "percent_change": None},
        "same": {"previous": "x", "current": "x", "changed": False},
        "flag": {"previous": True, "current": 1, "changed": True},
        "new": {"previous": None, "current": None, "changed": True, "added": True},
        "gone": {"previous": 1, "current": None, "changed": True, "removed": True},
    }
    assert await states.calculate_state_changes(2) is None


async def test_switched_off() -> None:
    """Without a memory, nothing is stored, and reads return None or an empty list (2.32)."""
    states = StateMemory(None)
    assert await states.store_agent_state({"a": 1}, 1) is None
    assert await states.get_current_state() is None
    assert await states.get_previous_state() is None
    assert await states.get_state_at_relative_position(-2) is None
    assert await states.get_state_history() == []
    assert await states.calculate_state_changes() is None


@pytest.mark.parametrize("settings", [{"memory": {"relative_states": 4, "max_stm_records": 9}}], indirect=True)
async def test_window(team: LocalTeam) -> None:
    """Positions, history and changes reach as far as `memory.relative_states`; older states are records still (B21)."""
    states = await filled(team, 12)
    assert names(await states.get_state_history(9)) == ["s8", "s9", "s10", "s11"]
    assert await states.get_state_at_relative_position(-3) is not None
    assert await states.get_state_at_relative_position(-4) is None
    assert await states.calculate_state_changes(3) is not None
    assert await states.calculate_state_changes(4) is None
    memory = team.orc.memory("ed")
    assert len(await memory.of_kind("state")) == 12
    assert [(await memory.stats()).stm.records, (await memory.stats()).im.records] == [9, 3]


@pytest.mark.parametrize("settings", [{"memory": {"relative_states": 20, "max_stm_records": 3}}], indirect=True)
async def test_window_follows_the_short_term_tier(team: LocalTeam) -> None:
    """The window is never larger than the short-term tier (2.46)."""
    states = await filled(team, 5)
    assert names(await states.get_state_history(20)) == ["s2", "s3", "s4"]


async def test_states_of_a_task(team: LocalTeam) -> None:
    """A retention of its own is the state's, and `ctx.memory` has the same methods."""
    states = team.orc.memory("ed").states()
    await states.store_agent_state({"a": 1}, 1, ttl=60)
    record = await team.orc.memory("ed").at(0)
    assert record is not None
    assert (record.expires - record.stored).total_seconds() == 60


async def test_refused(team: LocalTeam) -> None:
    """A position after the newest state, no steps, and what JSON cannot hold are refused."""
    states = team.orc.memory("ed").states()
    with pytest.raises(InvalidInput, match="position is 0"):
        await states.get_state_at_relative_position(1)
    for call in (states.get_state_history, states.calculate_state_changes):
        with pytest.raises(InvalidInput, match="steps must be"):
            await call(0)
    with pytest.raises(InvalidInput, match="set"):
        await states.store_agent_state({"a": {1}}, 1)
    assert await states.get_current_state() is None


async def decide_next_action(states: StateMemory) -> str:
    """The decision of the source document, as it stands there."""
    changes = await states.calculate_state_changes(steps=3)
    if not changes:
        return "explore"
    if "resource_level" in changes:
        resource_change = changes["resource_level"]["change"]
        if resource_change < -0.2:
            return "gather"
        if resource_change > 0.5:
            return "socialize"
    if "position_x" in changes and "position_y" in changes:
        pos_x_change = abs(changes["position_x"]["change"])
        pos_y_change = abs(changes["position_y"]["change"])
        if pos_x_change < 0.1 and pos_y_change < 0.1:
            return "explore"
    return "explore"


async def test_decision(team: LocalTeam) -> None:
    """The decision of the source document: dropping resources, growing resources, standing still, too few states."""
    for agent, levels, action in (
        ("new", [1.0, 0.5, 0.1], "explore"),
        ("poor", [1.0, 0.9, 0.8, 0.7], "gather"),
        ("rich", [0.1, 0.2, 0.5, 0.7], "socialize"),
        ("still", [0.5, 0.1, 0.9, 0.4], "explore"),
    ):
        states = team.orc.memory(agent).states("run 1")
        for step, level in enumerate(levels):
            await states.store_agent_state({"resource_level": level, "position_x": 1.0, "position_y": 2.0}, step)
        assert await decide_next_action(states) == action, agent
