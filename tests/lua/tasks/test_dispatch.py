"""lua/tasks/dispatch.lua: which agents get the tasks of a skill, at what cost, and which of them it looks at."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from orchestrator.agents.model import SkillVersion
from orchestrator.core.rates import Rate
from orchestrator.tasks.model import Dispatched, Verdict, VerdictKind
from tests.helpers.cases import each_case
from tests.lua.pool import Team, row
from tests.lua.test_gates import order

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

NOTHING = Dispatched(0, left=False, without=0, waits_us={})


def register(pool: Pool, *agents: str, slots: int = 4, **team: object) -> None:
    """One worker for each agent."""
    for agent in agents:
        pool.register(f"w-{agent}", Team(agent=agent, **team), slots=slots)  # type: ignore[arg-type]


def inboxes(pool: Pool, *agents: str) -> dict[str, int]:
    """Entries of each inbox that has any."""
    return {agent: length for agent in agents if (length := pool.execute("XLEN", pool.keys.inbox(agent)))}


def listed(pool: Pool, skill: str = "sum") -> list[str]:
    """The agents that may have room, in the order in which they are looked at."""
    return pool.members(pool.keys.room(skill))


def lone(pool: Pool, *agents: str) -> str:
    """Submit one task and dispatch it; the agent that got it."""
    before = inboxes(pool, *agents)
    pool.put()
    done = pool.dispatch()
    assert (done.count, done.left) == (1, False)
    (taker,) = [agent for agent, length in inboxes(pool, *agents).items() if length > before.get(agent, 0)]
    return taker


def take(pool: Pool, agent: str, limit: int = 10) -> list[Delivery]:
    """What the worker of an agent reads."""
    return pool.read(f"w-{agent}", agent=agent, limit=limit)


def end_all(pool: Pool, deliveries: list[Delivery]) -> None:
    """Finish attempts."""
    pool.finish(*[(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in deliveries])


class TestChoice:
    """Who gets a task."""

    def test_nothing_to_do(self, pool: Pool) -> None:
        """Without tasks or without agents nothing changes."""
        assert pool.dispatch() == NOTHING
        pool.put()
        with pool.unchanged():
            assert pool.dispatch() == NOTHING
        pool.register()
        pool.assign()
        with pool.unchanged():
            assert pool.dispatch() == NOTHING

    def test_equal_agents_take_turns(self, pool: Pool) -> None:
        """Tasks that end before the next one comes go round."""
        agents = [f"a{i:02}" for i in range(20)]
        register(pool, *agents)
        takers: Counter[str] = Counter()
        for _ in range(100):
            taker = lone(pool, *agents)
            takers[taker] += 1
            end_all(pool, take(pool, taker))
            pool.sleep(1)
        assert set(takers.values()) == {5}

    @pytest.mark.parametrize("apart_ms", [0, 1, 20])
    def test_long_tasks_spread(self, pool: Pool, apart_ms: int) -> None:
        """Tasks that do not end go to agents without entries first, and never far from the least loaded."""
        agents = [f"a{i:02}" for i in range(20)]
        register(pool, *agents, slots=10)
        for number in range(1, 101):
            lone(pool, *agents)
            pool.sleep(apart_ms)
            lengths = [inboxes(pool, agent).get(agent, 0) for agent in agents]
            assert max(lengths) - min(lengths) <= (1 if apart_ms == 20 or number <= 20 else 2), number

    def test_an_idle_agent_is_found_among_busy_ones(self, pool: Pool) -> None:
        """All agents have an entry; one ends its task: it gets the next one, wherever it stands."""
        agents = [f"a{i:02}" for i in range(60)]
        register(pool, *agents)
        for _ in agents:
            lone(pool, *agents)
        for agent in ("a41", "a03", "a59", "a03", "a30"):
            end_all(pool, take(pool, agent))
            pool.sleep(10)
            assert lone(pool, *agents) == agent

    def test_by_free_share(self, pool: Pool) -> None:
        """The load of an agent is its entries by its slots."""
        register(pool, "big", slots=10)
        register(pool, "small", slots=2)
        takers = [lone(pool, "big", "small") for _ in range(12)]
        assert Counter(takers[:6]) == {"big": 5, "small": 1}
        assert Counter(takers) == {"big": 10, "small": 2}

    def test_tasks_that_wait_together_are_shared(self, pool: Pool) -> None:
        """Each agent gets its share in one call, and no more than it has room for."""
        agents = [f"a{i}" for i in range(4)]
        register(pool, *agents, slots=10)
        pool.put(*[row() for _ in range(20)])
        assert pool.dispatch().count == 20
        assert inboxes(pool, *agents) == dict.fromkeys(agents, 5)
        pool.put(*[row() for _ in range(30)])
        assert pool.dispatch_all() == 1
        assert inboxes(pool, *agents) == dict.fromkeys(agents, 10)
        assert len(pool.queue()) == 10

    def test_best_of_all_queues(self, pool: Pool) -> None:
        """An agent gets the best tasks of all its queues, also when another queue asked."""
        register(pool, "ed", slots=2, skills=frozenset({"sum", "max"}))
        later = [row(), row()]
        urgent = [row(queue="agent:ed", skill="sum", priority=0), row(queue="skill:max", priority=1)]
        pool.put(*later, *urgent)
        pool.dispatch_all("sum")
        assert {each.task_id for each in take(pool, "ed")} == {each.id for each in urgent}

    def test_in_batches(self, pool: Pool) -> None:
        """A call moves `limit` tasks at most, and is called again while tasks and room are left."""
        register(pool, "a", "b", slots=100)
        pool.put(*[row() for _ in range(100)])
        assert pool.dispatch(limit=30) == Dispatched(30, left=True, without=0, waits_us={})
        assert pool.dispatch_all(limit=30) == 3
        assert sum(inboxes(pool, "a", "b").values()) == 100


class TestIndex:
    """Which agents are looked at."""

    def test_full_agents_leave_and_return(self, pool: Pool) -> None:
        """While tasks wait, full agents are marked; the supervisor is told of the first room, and `assign` lists it."""
        register(pool, "a", "b", slots=1)
        pool.put(*[row() for _ in range(3)])
        pool.dispatch_all()
        assert (listed(pool), len(pool.queue())) == ([], 1)
        pool.notifications()
        assert pool.dispatch() == NOTHING
        end_all(pool, take(pool, "a"))
        assert pool.notifications() == ["agent:a"]
        pool.assign("a")
        assert inboxes(pool, "a", "b") == {"a": 1, "b": 1}
        end_all(pool, take(pool, "a") + take(pool, "b"))
        for agent in ("a", "b"):
            pool.assign(agent)
        assert sorted(listed(pool)) == ["a", "b"]

    def test_an_agent_that_the_last_task_fills_is_listed(self, pool: Pool) -> None:
        """Neither its mark nor another notification would bring it back."""
        register(pool, "a", slots=1)
        pool.put(row(), row())
        pool.dispatch_all()
        end_all(pool, take(pool, "a"))
        pool.assign("a")
        assert listed(pool) == ["a"]
        end_all(pool, take(pool, "a"))
        assert lone(pool, "a") == "a"

    def test_full_agents_stay_while_nothing_waits(self, pool: Pool) -> None:
        """An agent that is full with the last task needs no wake-up when it has room again."""
        register(pool, "a", slots=1)
        pool.put()
        pool.dispatch()
        pool.notifications()
        end_all(pool, take(pool, "a"))
        assert pool.notifications() == []
        assert lone(pool, "a") == "a"

    def test_draining_agents_leave(self, pool: Pool) -> None:
        """An agent whose workers drain gets nothing, and returns with its first slot."""
        register(pool, "a", slots=1)
        pool.register("w-a", Team(agent="a"), slots=0)
        pool.put()
        assert (pool.dispatch(), listed(pool)) == (NOTHING, [])
        register(pool, "a", slots=1)
        assert pool.dispatch().count == 1

    def test_limited_agents_leave(self, pool: Pool) -> None:
        """The supervisor learns when their limits open, and calls `assign` for them then."""
        register(pool, "a", rate=Rate(1, 60_000_000), slots=2)
        pool.put()
        assert pool.dispatch() == Dispatched(1, left=False, without=0, waits_us={})
        pool.put()
        pool.sleep(1000)
        assert pool.dispatch() == Dispatched(0, left=False, without=0, waits_us={"a": 59_000_000})
        assert listed(pool) == []
        assert pool.dispatch() == NOTHING
        pool.sleep(59_000)
        assert pool.assign("a").count == 1

    def test_old_programs_list_nobody(self, pool: Pool) -> None:
        """What programs without the index registered, and what Redis lost, is listed again; full ones not."""
        register(pool, "a", "b", slots=1)
        pool.put(*[row() for _ in range(3)])
        pool.dispatch_all()
        end_all(pool, take(pool, "a"))
        assert listed(pool) == []
        for _ in range(2):
            assert pool.relist("a", "b", "none") == []
            assert listed(pool) == ["a"]
        assert pool.dispatch().count == 1

    def test_relist_tells_of_parked_tasks(self, pool: Pool) -> None:
        """An agent that got the skill of its parked tasks is assigned to, also when the notification was lost."""
        register(pool, "a", skills=frozenset({"max"}))
        pool.put(row(queue="agent:a", skill="sum"))
        pool.assign("a")
        register(pool, "a", skills=frozenset({"max", "sum"}))
        assert pool.relist("a") == ["a"]
        assert pool.assign("a").count == 1
        assert pool.relist("a") == []

    def test_agents_that_keep_slots_for_suspects_stay(self, pool: Pool) -> None:
        """No entry that ends tells of their room, so they stay listed; others get the tasks."""
        agents = [f"a{i:03}" for i in range(150)]
        register(pool, *agents, slots=1)
        register(pool, "z", slots=1)
        suspect = pool.put(row(queue="agent:a000", skill="sum"))[0]
        pool.execute("ZADD", pool.keys.suspects("skill:sum"), 1, suspect)
        pool.execute("SADD", pool.keys.suspected_queues, "skill:sum")
        pool.register("w-z2", Team(agent="z"), slots=1)
        pool.register("w-z2", Team(agent="z"), slots=3)
        pool.put()
        calls = pool.dispatch_all()
        assert inboxes(pool, *agents, "z") == {"z": 1}
        assert calls == 2
        assert len(listed(pool)) == 151
        pool.put(*[row() for _ in range(5)])
        assert pool.dispatch_all() <= 5
        assert inboxes(pool, *agents, "z") == {"z": 3}, "one slot stays free"

    def test_versions_that_refuse(self, pool: Pool) -> None:
        """A task that one version refused finds the agent with another one among many, and wakes nobody for ever."""
        old, new = SkillVersion("d1", ("text",)), SkillVersion("d2", ("text",), ("polite",))
        agents = [f"a{i:03}" for i in range(150)]
        register(pool, *agents, version=old)
        taker = lone(pool, *agents)
        (refused,) = take(pool, taker)
        pool.sleep(1)
        register(pool, "z", version=new)
        assert pool.refuse(refused, old, "text", "polite") == "ok"
        pool.dispatch_all()
        pool.dispatch_all()
        assert pool.task(refused.task_id)["at"].startswith("z ")
        pool.notifications()
        with pool.unchanged():
            assert pool.dispatch() == NOTHING

    def test_skills_change(self, pool: Pool) -> None:
        """An agent is listed for the skills that it has."""
        register(pool, "a", skills=frozenset({"sum", "max"}))
        assert (listed(pool, "sum"), listed(pool, "max")) == (["a"], ["a"])
        register(pool, "a", skills=frozenset({"max"}))
        assert (listed(pool, "sum"), listed(pool, "max")) == ([], ["a"])
        pool.deregister("w-a")
        assert listed(pool, "max") == []


@each_case(
    ("begin", "end"),
    [
        (("pause-agent", {"agent": "a"}), ("resume-agent", {"agent": "a"})),
        (("stop", {"agent": "a"}), ("start", {"agent": "a"})),
    ],
    fresh="pool",
)
def test_held_agents_leave(pool: Pool, begin: tuple[str, dict[str, str]], end: tuple[str, dict[str, str]]) -> None:
    """A paused or stopped agent gets nothing; after its end `relist` finds it."""
    register(pool, "a")
    order(pool, begin[0], **begin[1])
    pool.put()
    assert (pool.dispatch(), listed(pool)) == (NOTHING, [])
    order(pool, end[0], **end[1])
    assert pool.relist("a") == []
    assert (pool.dispatch().count, listed(pool)) == (1, ["a"])


@each_case("held", [("stop", {}), ("stop", {"skill": "sum"}), ("pause-queue", {"queue": "skill:sum"})], fresh="pool")
def test_a_held_queue_looks_at_nobody(pool: Pool, held: tuple[str, dict[str, str]]) -> None:
    """Nothing changes while all agents, the skill or its queue are held."""
    register(pool, "a", "b")
    pool.put()
    order(pool, held[0], **held[1])
    with pool.unchanged():
        assert pool.dispatch() == NOTHING


class TestCost:
    """What it costs."""

    def test_commands_do_not_grow_with_agents(self, pool: Pool) -> None:
        """A lone task costs the same commands among 3 agents and among 300."""
        costs, known = [], 0
        for count in (3, 300):
            agents = [f"a{i:03}" for i in range(known, count)]
            register(pool, *agents)
            known = count
            before = pool.commands()
            for _ in range(10):
                pool.put()
                pool.dispatch()
            costs.append(pool.commands() - before)
            for agent in agents:
                end_all(pool, take(pool, agent))
        assert costs[1] <= costs[0]

    def test_bounded_in_agents(self, pool: Pool) -> None:
        """One call looks at 100 agents at most; all full agents of a skill are marked in as many calls as needed."""
        agents = [f"a{i:03}" for i in range(250)]
        register(pool, *agents[:90], slots=1)
        pool.put(*[row() for _ in range(90)])
        assert (pool.dispatch_all(), len(listed(pool))) == (1, 90), "none is marked, because no task is left"
        register(pool, *agents[90:], slots=1)
        pool.put(*[row() for _ in range(161)])
        assert (pool.dispatch_all(), len(pool.queue()), listed(pool)) == (3, 1, [])
        with pool.unchanged():
            assert pool.dispatch() == NOTHING

    def test_bounded_in_bytes(self, pool: Pool) -> None:
        """One call moves about 1 MiB, over all agents (protocol rule 17)."""
        from orchestrator.store.calls import opaque

        register(pool, "a", "b", slots=100)
        pool.put(*[row(envelope=opaque(b"x" * 16_000)) for _ in range(100)])
        first = pool.dispatch()
        assert (first.left, first.count < 80) == (True, True)
        pool.dispatch_all()
        assert sum(inboxes(pool, "a", "b").values()) == 100
