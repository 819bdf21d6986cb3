"""lua/agents/repair.lua and heartbeat: the registry agrees with itself, and gets back what it lost."""

from __future__ import annotations

import pytest

from orchestrator.core.rates import Rate
from tests.helpers.cases import each_case
from tests.lua.pool import Pool, Team

pytestmark = pytest.mark.every_server

BOTH = (("agent", "ed"), ("skill", "sum"))


def test_a_sound_registry_is_left_alone(pool: Pool) -> None:
    """Working, draining and leaving workers: nothing is found, nothing changes."""
    for slots in (3, 0):
        pool.register("w1", slots=slots)
        pool.register("w2", slots=2)
        with pool.unchanged():
            assert pool.repair_registry(*BOTH, ("agent", "none"), ("skill", "none")) == []
        pool.deregister("w2")
        with pool.unchanged():
            assert pool.repair_registry(*BOTH) == []


def test_the_agents_of_a_skill(pool: Pool) -> None:
    """They are those that have it."""
    pool.register()
    pool.execute("DEL", pool.keys.skill("sum"))
    pool.execute("ZADD", pool.keys.skill("other"), 0, "ed", 0, "nobody")
    rows = (*BOTH, ("skill", "other"))
    expected = [("ed", "skill-index"), ("other", "skill-index"), ("other", "skill-index")]
    with pool.unchanged():
        assert pool.repair_registry(*rows, repair=False) == expected
    assert pool.repair_registry(*rows) == expected
    assert pool.members(pool.keys.skill("sum")) == ["ed"]
    assert pool.execute("EXISTS", pool.keys.skill("other")) == 0
    assert pool.repair_registry(*rows) == []
    assert pool.stats()["repaired"] == 3


def test_agents_that_are_gone_have_no_room(pool: Pool) -> None:
    """The record of an agent may end while no supervisor runs; then its names leave both indexes of its skills."""
    pool.register()
    pool.register("w2", Team("bob"))
    pool.execute("DEL", pool.keys.agent("ed"), pool.keys.agent_workers("ed"))
    row = ("skill", "sum")
    with pool.unchanged():
        assert pool.repair_registry(row, repair=False) == [("sum", "skill-index")]
    assert pool.repair_registry(row) == [("sum", "skill-index")]
    assert pool.members(pool.keys.skill("sum")) == ["bob"]
    assert pool.members(pool.keys.room("sum")) == ["bob"]


def test_workers_that_are_not_known_to_live(pool: Pool) -> None:
    """Their slots do not count; one that lives all the same is told to register again."""
    pool.register("w1", slots=3)
    pool.register("w2", slots=2)
    pool.execute("ZREM", pool.keys.workers, "w2")
    pool.execute("HSET", pool.keys.agent_workers("ed"), "w3", b"\xff")
    assert sorted(pool.repair_registry(*BOTH)) == [("ed", "unknown-worker"), ("ed", "unknown-worker")]
    assert pool.agent()["slots"] == "3"
    assert not pool.heartbeat("w2")
    assert pool.heartbeat("w1")
    assert pool.repair_registry(*BOTH) == []


def test_an_agent_without_a_place(pool: Pool) -> None:
    """An agent with workers is among the agents."""
    pool.register()
    pool.execute("DEL", pool.keys.agents)
    assert pool.repair_registry(*BOTH) == [("ed", "unlisted-agent")]
    assert pool.members(pool.keys.agents) == ["ed"]


def test_counts_of_offers(pool: Pool) -> None:
    """Counts that are not those of the workers are made again, and supervisors look at the agent."""
    pool.register("w1", slots=3)
    pool.register("w2", slots=2)
    pool.execute("HINCRBY", pool.keys.offers("ed"), "slots", 4)
    with pool.unchanged():
        assert pool.repair_registry(*BOTH, repair=False) == [("ed", "miscounted-agent")]
    pool.notifications()
    assert pool.repair_registry(*BOTH) == [("ed", "miscounted-agent")]
    assert pool.notifications() == ["agent:ed"]
    assert pool.repair_registry(*BOTH) == []
    pool.heartbeat("w2", ("ed", 1))
    assert pool.agent()["slots"] == "5"


@pytest.mark.parametrize("lost", ["agent:ed", "agent:ed:workers", "limits", "worker:w1"])
def test_a_heartbeat_notices_what_was_lost(pool: Pool, lost: str) -> None:
    """The worker registers again, with all that only it knows: slots, skills, limits and what they mean."""
    team = Team(rate=Rate(1, 60_000_000))
    pool.register(team=team)
    assert pool.heartbeat()
    pool.execute("DEL", f"{pool.keys.root}:{lost}")
    pool.put()
    pool.put()
    assert not pool.heartbeat()
    pool.register(team=team)
    assert pool.heartbeat()
    assert len(pool.deliver()) == 1, "its limit holds again"


@each_case("key", ["agents", "workers", "doorbell", "agent:ed", "skills:sum", "offers:ed", "leases:ed"], fresh="pool")
def test_another_type_in_the_registry(pool: Pool, key: str) -> None:
    """It is passed by, and nothing is torn."""
    pool.register()
    pool.execute("DEL", f"{pool.keys.root}:{key}")
    pool.execute("SET", f"{pool.keys.root}:{key}", "x", "EX", 100)
    with pool.unchanged():
        assert pool.repair_registry(*BOTH) == []
    pool.execute("DEL", f"{pool.keys.root}:{key}")
