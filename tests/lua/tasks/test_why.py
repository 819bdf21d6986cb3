"""lua/tasks/why.lua: finds where a task stands and what could hold it, changes nothing, costs the same in a crowd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.agents.model import SkillTerms
from orchestrator.core.rates import Rate
from orchestrator.store.calls import opaque
from orchestrator.tasks.model import Envelope, TaskState, VerdictKind, encode_envelope
from orchestrator.why.facts import SkillOffers
from tests.lua.pool import LEASE_MS, START_US, Team, row

if TYPE_CHECKING:
    from orchestrator.why.facts import AgentFacts, Findings
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def look(pool: Pool, task_id: str, **options: Any) -> Findings:
    """What is found of a task that is there; nothing may have changed."""
    with pool.unchanged():
        found = pool.why(task_id, **options)
    assert found is not None
    return found


def the_agent(found: Findings) -> AgentFacts:
    """The one agent that was looked at."""
    (agent,) = found.agents
    return agent


def test_unknown(pool: Pool) -> None:
    """Of an unknown task nothing is found, and nothing is left behind."""
    with pool.unchanged():
        assert pool.why("gone") is None


def test_ready(pool: Pool) -> None:
    """A ready task: its place in the queue, and the room of the agents that have its skill."""
    pool.register(slots=3, team=Team(terms=(("sum", SkillTerms(5, 4)),)))
    pool.register("w2", Team("fay"), slots=2, backlog=1)
    pool.register("w3", Team("other", frozenset({"another"})))
    first, second = pool.put(row(), row())
    found = look(pool, second)
    assert (found.state, found.rank, found.queue, found.skill, found.addressed) == (
        TaskState.READY,
        1,
        "skill:sum",
        "sum",
        None,
    )
    assert (found.now_us, found.supervisor) == (START_US, None)
    assert {agent.name: (agent.slots, agent.room, agent.skilled) for agent in found.agents} == {
        "ed": (3, 3, True),
        "fay": (2, 4, True),
    }
    assert (found.max_attempts, found.max_deaths) == (5, 4)
    assert look(pool, first).rank == 0


def test_addressed(pool: Pool) -> None:
    """A task for one agent: that agent alone is looked at, whether it is known or not."""
    pool.register(slots=3)
    known, unknown, parked = pool.put(
        row(queue="agent:ed", skill="sum"), row(queue="agent:no", skill="sum"), row(queue="agent:ed", skill="odd")
    )
    pool.assign()
    agent = the_agent(look(pool, unknown))
    assert (agent.name, agent.seen_ms, agent.slots, agent.workers) == ("no", None, 0, 0)
    found = look(pool, parked)
    assert (found.parked, found.rank, found.addressed, the_agent(found).skilled) == (True, None, "ed", False)
    assert the_agent(found).offers == SkillOffers(1, 0, 0, ("w1",))
    assert look(pool, known).state is TaskState.ASSIGNED


def test_workers_that_lack_a_skill(pool: Pool) -> None:
    """Of an agent that does not offer the skill as a whole each worker is asked; others are left out."""
    pool.register("w1", Team(skills=frozenset({"sum", "new"})))
    pool.register("w2", Team(skills=frozenset({"sum"})))
    pool.register("w3", Team(skills=frozenset({"new"})), slots=0)
    pool.register("w4", Team("other"))
    (task_id,) = pool.put(row(queue="skill:new", envelope=opaque(encode_envelope(Envelope("new", b"{}")))))
    found = look(pool, task_id)
    assert the_agent(found).name == "ed"
    assert the_agent(found).offers == SkillOffers(live=2, having=1, draining=1, lacking=("w2",))


def test_scheduled(pool: Pool) -> None:
    """A scheduled task: when it is due, and how its last attempt left it."""
    pool.register(team=Team(terms=(("sum", SkillTerms(5, 4)),)))
    plain, own = row(delay_ms=70), row(envelope=opaque(encode_envelope(Envelope("sum", b"{}", max_attempts=9))))
    pool.put(plain, own)
    found = look(pool, plain.id)
    assert (found.state, found.due_ms, found.left, found.agents) == (TaskState.SCHEDULED, pool.now_ms + 70, "", ())
    delivery = pool.one()
    pool.end(delivery, VerdictKind.SNOOZE, delay_ms=10, reason="later")
    found = look(pool, own.id)
    assert (found.left, found.reason, found.fails, found.own_attempts) == ("snooze", "later", 0, None)
    pool.sleep(10)
    pool.promote()
    delivery = pool.one()
    pool.end(delivery, VerdictKind.RETRY, delay_ms=10, reason="boom")
    found = look(pool, own.id)
    assert (found.left, found.reason, found.fails, found.max_attempts, found.max_deaths) == ("retry", "boom", 1, 9, 4)
    pool.sleep(10)
    pool.promote()
    delivery = pool.one()
    pool.end(delivery, VerdictKind.SNOOZE, delay_ms=10)
    found = look(pool, own.id)
    assert (found.left, found.reason, found.fails) == ("snooze", "", 1)


def test_deaths(pool: Pool) -> None:
    """From the second death alone on a task is scheduled, and it is told from a retry."""
    pool.register()
    (task_id,) = pool.put()
    for worker in ("w1", "w2"):
        pool.one(worker)
        pool.abandon(worker, max_deaths={"sum": 5})
        pool.sleep(1)
    found = look(pool, task_id)
    assert (found.state, found.left, found.deaths, found.death.split(" ", 1)[1]) == (
        TaskState.SCHEDULED,
        "death",
        2,
        "w2 killed",
    )


def test_suspects(pool: Pool) -> None:
    """Of a suspect is found with how many it may share a process; before `assign` moved it, its place in the queue."""
    pool.register()
    first, second = pool.put(row(), row())
    pool.deliver("w2")
    pool.abandon("w2")
    assert [(found.rank, found.group) for found in (look(pool, first), look(pool, second))] == [(0, None), (1, None)]
    pool.assign()
    assert [(found.rank, found.group) for found in (look(pool, first), look(pool, second))] == [(None, 1), (None, 1)]
    assert len(pool.deliver("w3")) == 1
    assert (look(pool, first).group, look(pool, first).state) == (None, TaskState.RUNNING)


def test_assigned_and_running(pool: Pool) -> None:
    """An assigned task: whether it lies in the inbox; once read, who has it and since when nobody renewed it."""
    pool.register()
    (task_id,) = pool.put()
    pool.assign()
    found = look(pool, task_id)
    assert (found.state, found.in_inbox, found.worker) == (TaskState.ASSIGNED, True, None)
    assert the_agent(found).inbox == 1
    (delivery,) = pool.read()
    pool.age(700)
    found = look(pool, task_id)
    assert found.state is TaskState.RUNNING
    assert found.entry_ms == int(delivery.entry.split("-")[0])
    assert found.worker is not None
    assert (found.worker.id, found.worker.host, found.worker.pid, found.worker.registered) == ("w1", "h", 1, True)
    assert (found.worker.seen_ms, the_agent(found).lease_ms) == (pool.now_ms, LEASE_MS)
    assert 700 <= found.worker.idle_ms < 2000
    pool.deregister("w1")
    worker = look(pool, task_id).worker
    assert worker is not None
    assert (worker.seen_ms, worker.host, worker.registered) == (None, "", False)
    pool.execute("DEL", pool.keys.inbox("ed"))
    assert (look(pool, task_id).state, look(pool, task_id).in_inbox) == (TaskState.ASSIGNED, False)


@pytest.mark.parametrize("lost", ["queue", "scheduled", "group"])
def test_lost_indexes(pool: Pool, lost: str) -> None:
    """What lost its place with some data is found to stand nowhere; nothing fails."""
    pool.register()
    (task_id,) = pool.put(row(delay_ms=5) if lost == "scheduled" else row())
    match lost:
        case "queue":
            pool.execute("DEL", pool.keys.queue("skill:sum"))
            assert look(pool, task_id).rank is None
        case "scheduled":
            pool.execute("DEL", pool.keys.scheduled)
            assert look(pool, task_id).due_ms is None
        case "group":
            pool.one()
            pool.execute("XGROUP", "DESTROY", pool.keys.inbox("ed"), "workers")
            assert (look(pool, task_id).state, look(pool, task_id).in_inbox) == (TaskState.ASSIGNED, False)


@pytest.mark.parametrize("used", [0, 1, 3])
def test_the_start_that_a_limit_allows_is_told_exactly(pool: Pool, used: int) -> None:
    """For every task that waits for a limit, the moment found is the moment at which it is granted, not 1 µs before."""
    # A window of a minute, because the counters expire two windows later, by the clock of the server.
    rate = Rate(3, 60_000_000)
    pool.register(team=Team(rate=rate), slots=1000)
    for _ in range(used):
        pool.put()
        pool.assign(limit=1)
        pool.sleep(1200)
    ids = pool.put(*[row() for _ in range(10)])
    told: dict[str, int] = {}
    assert pool.now_us is not None
    for task_id in ids:
        (limit,) = the_agent(look(pool, task_id)).limits
        assert (limit.name, limit.rate, limit.used) == ("@ed", rate, used)
        told[task_id] = limit.next_us or pool.now_us
    for task_id in ids:
        if told[task_id] > pool.now_us:
            pool.now_us = told[task_id] - 1
            assert pool.assign().count == 0
            pool.now_us += 1
        pool.assign(limit=1)
        assert pool.state(task_id) == "assigned"


def test_several_agents_share_what_stands_before_a_task(pool: Pool) -> None:
    """With several agents on one queue, the next start of each is told, whoever it will be for."""
    for agent in ("ann", "bob"):
        pool.register(f"w-{agent}", Team(agent, rate=Rate(1, 1_000_000)), slots=1000)
        pool.put()
        pool.assign(agent)
        pool.sleep(100)
    last = pool.put(*[row() for _ in range(5)])[-1]
    assert [agent.limits[0].next_us - START_US for agent in look(pool, last).agents] == [1_000_000, 1_100_000]


def test_undefined_limit(pool: Pool) -> None:
    """A limit that lost its definition is found without one; the others keep theirs."""
    pool.register(team=Team(rate=Rate(1, 1000), limits=("x",), known_limits=(("x", Rate(2, 2000)),)))
    (task_id,) = pool.put()
    pool.execute("HDEL", pool.keys.limits, "x")
    agent = the_agent(look(pool, task_id))
    assert [(limit.name, limit.rate) for limit in agent.limits] == [("@ed", Rate(1, 1000)), ("x", None)]
    assert not agent.defined


def test_bounded(pool: Pool) -> None:
    """At most so many agents are looked at, and ten times as many workers when nobody has the skill."""
    for number in range(12):
        pool.register(f"w{number}", Team(f"a{number}"))
    (served,) = pool.put()
    (unserved,) = pool.put(row(queue="skill:none", envelope=opaque(encode_envelope(Envelope("none", b"{}")))))
    assert len(look(pool, served, limit=5).agents) == 5
    before = pool.commands()
    pool.why(unserved, limit=5)
    five = pool.commands() - before
    before = pool.commands()
    pool.why(unserved, limit=10)
    assert five < pool.commands() - before


def test_cost_does_not_grow(pool: Pool) -> None:
    """Looking at one task costs the same among many."""

    def cost() -> int:
        before = pool.commands()
        for task_id in tasks:
            pool.why(task_id)
        return pool.commands() - before

    pool.register(slots=4)
    tasks = pool.put(row(), row(), row(delay_ms=5), row(queue="agent:ed", skill="odd"))
    pool.assign()
    pool.read(limit=1)
    first = cost()
    pool.put(*[row(delay_ms=i + 1) for i in range(300)], *[row(queue=f"skill:{i}") for i in range(100)])
    pool.register("w9", Team("unrelated", frozenset({"unrelated"})))
    assert cost() == first
