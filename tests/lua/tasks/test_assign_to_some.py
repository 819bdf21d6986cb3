"""lua/tasks/assign.lua for several agents: what they share, what a call costs, and what supervisors learn of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.formats import Feature
from orchestrator.core.rates import Rate
from orchestrator.tasks.model import Assigned, Verdict, VerdictKind
from tests.lua.pool import USUAL_TTL_S, Team, row

if TYPE_CHECKING:
    import redis

    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def register(pool: Pool, *agents: str, slots: int = 1, **team: object) -> None:
    """One worker for each agent."""
    for agent in agents:
        pool.register(f"w-{agent}", Team(agent=agent, **team), slots=slots)  # type: ignore[arg-type]


def names(count: int) -> list[str]:
    """Names of so many agents."""
    return [f"a{number:02}" for number in range(count)]


def take(pool: Pool, *agents: str) -> list[Delivery]:
    """What the workers of agents read, in this order."""
    return [delivery for agent in agents for delivery in pool.read(f"w-{agent}", agent=agent)]


def end(pool: Pool, deliveries: list[Delivery]) -> None:
    """Finish attempts in one call."""
    pool.finish(*[(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in deliveries])


def test_a_shared_queue(pool: Pool) -> None:
    """Agents get the best tasks in the order in which they are named, each as many as it has room for."""
    register(pool, "a", "b", slots=2)
    ids = pool.put(*[row() for _ in range(5)])
    assert pool.assign_to("a", "b") == Assigned(4, left=(), waits_us={})
    assert [delivery.task_id for delivery in take(pool, "a", "b")] == ids[:4]
    assert pool.queue() == ids[4:]
    assert pool.stats()["assigned"] == 4
    assert (pool.agent("a")["mark"], pool.agent("b")["mark"]) == ("2", "2")


def test_own_tasks_and_shared_ones(pool: Pool) -> None:
    """The order over an agent's own queue and a shared one holds for each agent of a call."""
    register(pool, "a", "b", slots=3)
    shared = pool.put(row(priority=1), row(priority=3), row(priority=3))
    own = pool.put(row(queue="agent:b", skill="sum", priority=2), row(queue="agent:b", skill="sum", priority=0))
    assert pool.assign_to("b", "a").count == 5
    assert [delivery.task_id for delivery in take(pool, "b")] == [own[1], shared[0], own[0]]
    assert [delivery.task_id for delivery in take(pool, "a")] == shared[1:]
    assert pool.execute("EXISTS", pool.keys.queues) == 0


def test_the_limit_of_a_call(pool: Pool) -> None:
    """Agents that a call did not come to are named, so that the supervisor comes back to them."""
    register(pool, *names(5))
    pool.put(*[row() for _ in range(9)])
    assert pool.assign_to(*names(5), limit=3) == Assigned(3, left=("a03", "a04"), waits_us={})
    assert pool.assign_to("a03", "a04") == Assigned(2, left=(), waits_us={})


def test_a_long_queue_delays_no_other_agent(pool: Pool) -> None:
    """Agents that a call did not come to are named before those that can get more, and so are the first in the next."""
    register(pool, "a", slots=9)
    register(pool, "b")
    pool.put(*[row(queue="agent:a", skill="sum") for _ in range(9)], row(queue="agent:b", skill="sum"))
    assert pool.assign_to("a", "b", limit=3) == Assigned(3, left=("b", "a"), waits_us={})
    assert pool.assign_to("b", "a", limit=3) == Assigned(3, left=("a",), waits_us={})
    assert pool.execute("XLEN", pool.keys.inbox("b")) == 1


def test_queues_that_are_read_ahead(pool: Pool, redis_client: redis.Redis) -> None:
    """A call reads no more of many shared queues than the thousand tasks that it reads of them for one agent."""
    skills = [f"s{number}" for number in range(50)]
    register(pool, "a", "b", slots=80, skills=frozenset(skills))
    pool.put(*[row(queue=f"skill:{skill}") for skill in skills])
    pool.put(*[row(queue="skill:s0") for _ in range(99)])
    marker = f"{pool.keys.root}:done"
    read = []
    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        while pool.dispatch("s0").left:
            pass
        redis_client.exists(marker)
        for seen in monitor.listen():
            if marker in seen["command"]:
                break
            command, *words = seen["command"].split(" ")
            if command == "ZRANGE" and ":queue:" in words[0]:
                read.append(int(words[2]) - int(words[1]) + 1)
    assert set(read[:50]) == {1000 // 50}
    assert pool.execute("EXISTS", pool.keys.queue("skill:s0")) == 0


def test_a_limit_that_agents_share(pool: Pool) -> None:
    """A limit that is used up holds back the other agents of the call too, and each is named with its opening."""
    register(pool, *names(3), slots=4, limits=("x",), known_limits=(("x", Rate(2, 60_000_000)),))
    pool.put(*[row() for _ in range(9)])
    done = pool.assign_to(*names(3))
    assert (done.count, done.left) == (2, ("a00",))
    assert done.waits_us == {"a01": 60_000_000, "a02": 60_000_000}


def test_an_awaited_task_that_another_agent_got(pool: Pool) -> None:
    """A lending agent does not get the awaited task that an agent before it in the same call has got."""
    register(pool, "a", "b")
    pool.put()
    pool.assign("b")
    (parent,) = take(pool, "b")
    (awaited,) = pool.put(row(parent=parent.task_id, parent_generation=parent.generation, depth=1))
    pool.lend("w-b", (parent, awaited), b="0=1")
    assert pool.assign_to("a", "b").count == 1
    assert [delivery.task_id for delivery in take(pool, "a")] == [awaited]
    assert pool.execute("XLEN", pool.keys.inbox("b")) == 1, "the entry of the parent"
    pool.put(row(parent=parent.task_id, parent_generation=parent.generation, depth=1))
    assert pool.assign_to("a", "b").count == 0
    with pool.unchanged():
        assert pool.assign_to("a").count == 0


def test_look_ups_of_awaited_tasks(pool: Pool) -> None:
    """Ten awaited tasks that are looked up for lent slots count as a task, so that calls for many lenders are short."""
    agents = names(4)
    register(pool, *agents)
    pool.put(*[row() for _ in agents])
    pool.assign_to(*agents)
    parent = take(pool, *agents)[0]
    family = [row(parent=parent.task_id, parent_generation=parent.generation, depth=1) for _ in range(110)]
    awaited = pool.put(*family)
    pool.execute("ZADD", pool.keys.awaited("skill:sum"), *[word for id_ in awaited for word in (-1, id_)])
    pool.execute("EXPIRE", pool.keys.awaited("skill:sum"), 60)
    for agent in agents:
        pool.execute("HSET", pool.keys.lent(agent), "0", 1)
        pool.execute("EXPIRE", pool.keys.lent(agent), 60)
    assert pool.assign_to(*agents, limit=15) == Assigned(2, left=("a02", "a03"), waits_us={})
    assert pool.assign_to("a02", "a03", limit=15) == Assigned(2, left=(), waits_us={})


def test_parked_tasks_of_one_agent_at_a_time(pool: Pool) -> None:
    """A call returns parked tasks of one agent to its queue, and comes back to the next."""
    register(pool, "a", "b", slots=9, skills=frozenset({"x"}))
    for agent in ("a", "b"):
        pool.put(row(queue=f"agent:{agent}", skill="sum"))
        pool.assign(agent)
    register(pool, "a", "b", slots=9, skills=frozenset({"sum", "x"}))
    assert pool.assign_to("a", "b") == Assigned(1, left=("b",), waits_us={})
    assert pool.assign_to("a", "b") == Assigned(1, left=(), waits_us={})


def test_commands(pool: Pool) -> None:
    """An agent more costs seven commands with its task: two reads, the mark, and the four of each task."""
    costs = {}
    for count in (5, 10, 60):  # the first call sets the lifetime of counters
        register(pool, *names(count))
        pool.put(*[row(ttl_s=USUAL_TTL_S) for _ in range(count + 1)])
        before = pool.commands()
        assert pool.assign_to(*names(count)).count == count
        costs[count] = pool.commands() - before
        end(pool, take(pool, *names(count)))
        while pool.assign("a00").count:
            end(pool, take(pool, "a00"))
        for agent in names(count):
            pool.assign(agent)
    assert (costs[60] - costs[10]) / 50 == 7


@pytest.mark.parametrize("floor", [Feature.SEVERAL_AGENTS.floor - 1, Feature.SEVERAL_AGENTS.floor])
def test_room_of_several_agents(pool: Pool, floor: int) -> None:
    """Supervisors are told with one entry for 50 agents, and of each alone while older programs may read it."""
    pool.execute("SET", pool.keys.format, floor)
    agents = names(60)
    register(pool, *agents)
    pool.put(*[row() for _ in range(130)])
    pool.assign_to(*agents)
    taken = take(pool, *agents)
    pool.execute("DEL", pool.keys.doorbell)
    end(pool, taken)
    entries = [fields for _, fields in pool.entries(pool.keys.doorbell)]
    if floor < Feature.SEVERAL_AGENTS.floor:
        assert {tuple(fields) for fields in entries} == {("w", f"agent:{agent}") for agent in agents}
    else:
        assert [fields[:3] for fields in entries] == [["w", "agents", "a"]] * 2
        assert sorted(" ".join(fields[3] for fields in entries).split()) == agents


def test_the_mark_of_one_place_stays_while_tasks_wait(pool: Pool) -> None:
    """An agent with one place stays marked until no task is left for it, and notifies once of each room."""
    register(pool, "a")
    pool.put(row(), row(), row())
    pool.assign("a")
    found = []
    for _ in range(3):
        pool.notifications()
        end(pool, take(pool, "a"))
        told, mark = pool.notifications(), pool.agent("a").get("mark")
        pool.assign("a")
        found.append((told, mark))
    assert found == [(["agent:a"], "1"), (["agent:a"], "1"), ([], None)]
