"""lua/agents/: who can work, what an agent can do as the sum of its workers, and how both are forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.agents import scripts
from orchestrator.agents.scripts import HeartbeatReply
from orchestrator.agents.scripts import heartbeat as heartbeat_call
from orchestrator.core.errors import ConfigError
from orchestrator.core.formats import FORMAT, OLDEST_FORMAT, program_version
from orchestrator.core.rates import Rate
from orchestrator.tasks.model import LeaseStatus
from tests.lua.pool import START_US, Team, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

ALIVE_S = 20
HOUR_MS = 3_600_000


def consumers(pool: Pool, agent: str = "ed") -> list[str]:
    """Names of the consumers of an inbox."""
    return [found[1].decode() for found in pool.execute("XINFO", "CONSUMERS", pool.keys.inbox(agent), "workers")]


class TestRegister:
    """A worker tells what it can do for one agent."""

    def test_new(self, pool: Pool) -> None:
        """The first worker makes inbox, group and agent; everybody is told."""
        pool.register(team=Team(skills=frozenset({"b", "a"})), slots=4, backlog=1)
        assert (
            pool.agent().items()
            >= {"slots": "4", "backlog": "1", "skills": "a b", "limits": "", "lease_ms": "15000"}.items()
        )
        assert pool.score(pool.keys.workers, "w1") == pool.score(pool.keys.agents, "ed") == pool.now_ms
        assert pool.members(pool.keys.skill("a")) == pool.members(pool.keys.skill("b")) == ["ed"]
        assert pool.execute("HGET", pool.keys.worker("w1"), "host") == b"h"
        assert pool.notifications() == ["agents"]
        assert pool.execute("XINFO", "GROUPS", pool.keys.inbox("ed"))[0][1] == b"workers"

    def test_repeat(self, pool: Pool) -> None:
        """The same facts again change nothing but the time of the last heartbeat."""
        pool.register()
        pool.notifications()
        before = pool.snapshot()
        pool.register()
        pool.notifications()
        assert pool.snapshot() == before

    def test_sums_slots_and_shares_skills(self, pool: Pool) -> None:
        """Slots are summed, the smallest backlog counts, skills are those that every live worker has."""
        pool.register("w1", Team(skills=frozenset({"a", "b"})), slots=2, backlog=1)
        pool.register("w2", Team(skills=frozenset({"b", "c"})), slots=3, backlog=0)
        assert pool.agent().items() >= {"slots": "5", "backlog": "0", "skills": "b"}.items()
        assert pool.execute("EXISTS", pool.keys.skill("a"), pool.keys.skill("c")) == 0
        pool.register("w2", Team(skills=frozenset({"b", "c"})), slots=0)
        assert pool.agent().items() >= {"slots": "2", "backlog": "1", "skills": "a b"}.items()

    def test_without_skills(self, pool: Pool) -> None:
        """An agent without skills is registered too and serves its own queue only."""
        pool.register(team=Team(skills=frozenset()))
        assert pool.agent()["skills"] == ""
        assert pool.assign().count == 0

    def test_limits(self, pool: Pool) -> None:
        """An agent with a limit has no backlog, so that a grant is a start (protocol rule 14)."""
        team = Team(rate=Rate(3, 1_000_000), limits=("model:x",), known_limits=(("model:x", Rate(9, 60_000_000)),))
        pool.register(team=team, backlog=1)
        assert pool.agent().items() >= {"limits": "@ed model:x", "backlog": "0"}.items()
        assert pool.execute("HGETALL", pool.keys.limits) == [b"@ed", b"3 1000000", b"model:x", b"9 60000000"]
        pool.heartbeat("w1", ("ed", 1))
        assert pool.agent()["backlog"] == "0"

    def test_unknown_limit(self, pool: Pool) -> None:
        """A limit that nobody defined is refused in words, and nothing is written; once defined, it is known."""
        with pool.unchanged(), pytest.raises(ConfigError, match="asks for limit 'model:x', which is not defined"):
            pool.register(team=Team(limits=("model:x",)))
        pool.register("w1", Team(limits=("model:x",), known_limits=(("model:x", Rate(1, 1000)),)))
        pool.register("w2", Team(agent="other", limits=("model:x",)))

    def test_group_again(self, pool: Pool) -> None:
        """A lost group is made again from the beginning, so that no entry is skipped (protocol rule 27)."""
        pool.register()
        (task_id,) = pool.put()
        pool.one()
        pool.execute("XGROUP", "DESTROY", pool.keys.inbox("ed"), "workers")
        pool.register()
        assert [delivery.task_id for delivery in pool.read("w2")] == [task_id]

    def test_inbox_keeps_its_entries(self, pool: Pool) -> None:
        """A worker that registers leaves the inbox and its pending entries alone."""
        pool.register()
        pool.put()
        delivery = pool.one()
        pool.register("w2")
        assert pool.pending() == [(delivery.entry, "w1")]


class TestBeat:
    """A worker proves that it lives."""

    def test_ok(self, pool: Pool) -> None:
        """A heartbeat moves the time of worker and agent and lengthens their lifetimes; nobody is rung for it."""
        pool.register()
        pool.notifications()
        pool.execute("EXPIRE", pool.keys.worker("w1"), 5)
        pool.execute("EXPIRE", pool.keys.agent("ed"), 5)
        pool.sleep(7000)
        assert pool.heartbeat()
        assert pool.score(pool.keys.workers, "w1") == pool.score(pool.keys.agents, "ed") == pool.now_ms
        assert min(pool.ttl_s(pool.keys.worker("w1")), pool.ttl_s(pool.keys.agent("ed"))) > ALIVE_S
        assert pool.notifications() == []

    def test_backlog(self, pool: Pool) -> None:
        """A changed wish changes the agent's backlog and rings, because it is room."""
        pool.register(slots=2)
        pool.notifications()
        pool.heartbeat("w1", ("ed", 1))
        assert pool.agent()["backlog"] == "1"
        assert pool.notifications() == ["agent:ed"]

    def test_unknown(self, pool: Pool) -> None:
        """A worker that the registry forgot is told to register again; nothing changes."""
        with pool.unchanged():
            assert not pool.heartbeat()

    def test_incomplete(self, pool: Pool) -> None:
        """A worker that lacks one agent is told to register again, and stays in the registry with the others."""
        pool.register()
        before_ms = pool.execute("ZSCORE", pool.keys.workers, "w1")
        pool.sleep(1000)
        assert not pool.heartbeat("w1", ("ed", 1), ("other", 0))
        assert float(pool.execute("ZSCORE", pool.keys.workers, "w1")) > float(before_ms)
        assert pool.agent()["backlog"] == "1"
        assert not pool.execute("ZSCORE", pool.keys.agents, "other")

    @pytest.mark.parametrize("damaged", ["slots", "row", "definition"])
    @pytest.mark.parametrize("garbage", ["", "x", "-1", "inf", "1e300", "0 x"])
    def test_damaged(self, pool: Pool, damaged: str, garbage: str) -> None:
        """A worker registers again when what it has registered is damaged. Until then the agent gets no task."""
        limited = Team(limits=("model:x",), known_limits=(("model:x", Rate(1, 1000)),))
        pool.register(team=limited)
        commands = {
            "slots": ("HSET", pool.keys.agent("ed"), "slots", garbage),
            "row": ("HSET", pool.keys.agent_workers("ed"), "w1", garbage),
            "definition": ("HSET", pool.keys.limits, "model:x", garbage),
        }
        assert pool.heartbeat()
        pool.execute(*commands[damaged])
        pool.put()
        if damaged == "definition":
            assert pool.assign().count == 0
        assert not pool.heartbeat()
        pool.register(team=limited)
        assert pool.heartbeat()
        assert pool.assign().count == 1

    def test_glance(self, pool: Pool) -> None:
        """A glance at many agents records the heartbeat for all of them, and prolongs no key of an agent."""
        for agent in ("ed", "other", "third"):
            pool.register(team=Team(agent=agent))
        pool.execute("EXPIRE", pool.keys.agent("ed"), 60)
        pool.notifications()
        pool.sleep(7000)
        assert pool.glance("ed", "other") == (True, True, "0", None, False, False)
        assert pool.score(pool.keys.workers, "w1") == pool.score(pool.keys.agents, "other") == pool.now_ms
        assert pool.score(pool.keys.agents, "ed") == pool.now_ms
        assert pool.score(pool.keys.agents, "third") == pool.now_ms - 7000
        assert pool.ttl_s(pool.keys.agent("ed")) <= 60
        assert pool.notifications() == []

    @pytest.mark.parametrize("lost", ["record", "workers", "field", "limit", "limits", "definition"])
    def test_glance_finds_losses(self, pool: Pool, lost: str) -> None:
        """A glance records nothing when an agent has lost a key or its last write, and asks for a full check."""
        limited = Team(agent="other", limits=("model:x",), known_limits=(("model:x", Rate(1, 1000)),))
        pool.register()
        pool.register(team=limited)
        commands: dict[str, tuple[str, ...]] = {
            "record": ("DEL", pool.keys.agent("other")),
            "workers": ("DEL", pool.keys.agent_workers("other")),
            "field": ("HDEL", pool.keys.worker("w1"), "agent:other"),
            "limit": ("HDEL", pool.keys.limits, "model:x"),
            "limits": ("DEL", pool.keys.limits),
            "definition": ("HSET", pool.keys.limits, "model:x", "0 1000"),
        }
        assert pool.glance("ed", "other", limits=["model:x"]).complete
        pool.execute(*commands[lost])
        pool.sleep(7000)
        with pool.unchanged():
            answer = pool.glance("ed", "other", limits=["model:x"])
        assert (answer.known, answer.complete, answer.again) == (True, False, True)
        pool.register(team=limited)
        assert pool.glance("ed", "other", limits=["model:x"]).complete

    def test_glance_at_many_limits(self, pool: Pool) -> None:
        """Agents may have more limits than Lua passes arguments in one call; each is looked for."""
        names = [f"model:{number}" for number in range(9000)]
        pool.register()
        for first in range(0, len(names), 1000):
            fields = [part for name in names[first : first + 1000] for part in (name, "1 1000")]
            pool.execute("HSET", pool.keys.limits, *fields)
        assert pool.glance("ed", limits=names).complete
        for lost in (names[0], names[4321], names[-1]):
            pool.execute("HDEL", pool.keys.limits, lost)
            assert pool.glance("ed", limits=names).again
            pool.execute("HSET", pool.keys.limits, lost, "1 1000")

    def test_glance_of_an_unknown_worker(self, pool: Pool) -> None:
        """A worker that the registry forgot is told to register again."""
        pool.register("w2")
        with pool.unchanged():
            answer = pool.glance("ed")
        assert (answer.known, answer.again) == (False, False)

    def test_tells_of_orders(self, pool: Pool) -> None:
        """The answer names the number of the desired state, to a worker that was forgotten too."""

        def heartbeat() -> HeartbeatReply:
            return pool.call(heartbeat_call(pool.keys, worker="w1", backlogs=[("ed", 0)], alive_s=60))

        assert heartbeat() == (False, False, "0", None, False, False)
        pool.register()
        assert heartbeat() == (True, True, "0", None, False, False)
        pool.execute("HSET", pool.keys.desired, "seq", 7)
        assert heartbeat() == (True, True, "7", None, False, False)

    def test_tells_of_the_floor(self, pool: Pool) -> None:
        """The answer names the lowest format that the pool admits, and none if the key has another type."""

        def floor() -> int | None:
            return pool.call(heartbeat_call(pool.keys, worker="w1", backlogs=[("ed", 0)], alive_s=60)).floor

        pool.execute("SET", pool.keys.format, 7)
        assert floor() == 7
        pool.register()
        assert floor() == 7
        pool.execute("DEL", pool.keys.format)
        pool.execute("HSET", pool.keys.format, "x", "y")
        assert floor() is None

    def test_goes_on_without_orders(self, pool: Pool) -> None:
        """Where the desired state should be is something else: workers go on, and can leave."""
        pool.execute("SET", pool.keys.desired, "x", "EX", 60)
        pool.register()
        assert pool.heartbeat()
        pool.deregister()
        pool.register()
        pool.sleep(21_000)
        assert pool.expire() == ["w1"]

    @pytest.mark.parametrize("suffix", ["agent:ed", "agent:ed:workers", "offers:ed", "leases:ed"])
    def test_damaged_agent(self, pool: Pool, suffix: str) -> None:
        """A key of another type delays no heartbeat for the other agents; later the worker registers again."""
        pool.register()
        pool.register(team=Team(agent="bo"))
        key = f"{pool.keys.root}:{suffix}"
        pool.execute("DEL", key)
        pool.execute("SET", key, "x", "EX", 60)
        pool.sleep(1000)
        assert pool.heartbeat("w1", ("ed", 1), ("bo", 1))
        assert int(pool.execute("ZSCORE", pool.keys.workers, "w1")) == pool.now_ms
        assert int(pool.execute("ZSCORE", pool.keys.agents, "bo")) == pool.now_ms
        assert int(pool.execute("ZSCORE", pool.keys.agents, "ed")) == pool.now_ms - 1000
        assert (pool.agent("bo")["backlog"], pool.execute("GET", key)) == ("1", b"x")
        pool.execute("DEL", key)
        assert pool.heartbeat("w1", ("ed", 1), ("bo", 1)) == (suffix in {"offers:ed", "leases:ed"})


class TestRefuse:
    """The leader refuses a worker."""

    def test_offers_nothing(self, pool: Pool) -> None:
        """Its slots count as 0, also after it registers again, and its heartbeat tells it; the others' slots stay."""
        pool.register("w1", slots=2)
        pool.register("w2", slots=3)
        pool.notifications()
        assert pool.refuse_worker("w1")
        assert pool.agent()["slots"] == "3"
        assert pool.notifications()
        pool.register("w1", slots=2)
        assert pool.agent()["slots"] == "3"
        seq_of = scripts.heartbeat(pool.keys, worker="w1", backlogs=[("ed", 0)], alive_s=60)
        assert pool.call(seq_of).refused
        assert not pool.call(scripts.heartbeat(pool.keys, worker="w2", backlogs=[("ed", 0)], alive_s=60)).refused

    def test_gets_no_task(self, pool: Pool) -> None:
        """No task is assigned for the slots of a refused worker. Twin: before, one is."""
        pool.register("w1", slots=1)
        pool.put()
        pool.one()
        pool.refuse_worker("w1")
        pool.put()
        pool.assign()
        assert pool.inbox_length() == 1

    def test_repeat(self, pool: Pool) -> None:
        """Twice is once; an unknown worker is no error; a row that is written past the script is set back."""
        pool.register("w1", slots=2)
        assert pool.refuse_worker("w1")
        with pool.unchanged():
            assert not pool.refuse_worker("w1")
            assert not pool.refuse_worker("ghost")
        pool.execute("HSET", pool.keys.agent_workers("ed"), "w1", "9 0 sum")
        assert pool.refuse_worker("w1")
        assert pool.agent()["slots"] == "0"


class TestDeregister:
    """A worker deregisters."""

    def test_forgets(self, pool: Pool) -> None:
        """Worker, slots, skills and idle consumer go; the agent stays known; everybody is told."""
        pool.register()
        pool.put()
        pool.end(pool.one())
        pool.notifications()
        pool.deregister()
        assert pool.agent().items() >= {"slots": "0", "skills": "", "backlog": "0"}.items()
        assert pool.members(pool.keys.workers) == []
        assert (
            pool.execute("EXISTS", pool.keys.worker("w1"), pool.keys.agent_workers("ed"), pool.keys.skill("sum")) == 0
        )
        assert pool.members(pool.keys.agents) == ["ed"]
        assert consumers(pool) == []
        assert pool.notifications() == ["agents"]

    def test_repeat(self, pool: Pool) -> None:
        """Twice is once, and an unknown worker is no error."""
        pool.register()
        pool.deregister()
        with pool.unchanged():
            pool.deregister()
            pool.deregister("nobody")

    def test_keeps_a_consumer_with_entries(self, pool: Pool) -> None:
        """A consumer that still has entries stays: removing it would lose them (protocol rule 11)."""
        pool.register()
        pool.put()
        delivery = pool.one()
        pool.deregister()
        assert consumers(pool) == ["w1"]
        assert pool.pending() == [(delivery.entry, "w1")]
        assert pool.renew([delivery])[1] == [LeaseStatus.KEPT]

    def test_all_its_agents(self, pool: Pool) -> None:
        """A worker of several agents leaves all of them, and only those."""
        for agent in ("a", "b"):
            pool.register("w1", Team(agent=agent), slots=2)
        pool.register("w2", Team(agent="b"), slots=3)
        pool.deregister("w1")
        assert (pool.agent("a")["slots"], pool.agent("b")["slots"]) == ("0", "3")

    @pytest.mark.parametrize("silent", [False, True])
    def test_a_lost_record_stays_missing(self, pool: Pool, silent: bool) -> None:  # noqa: FBT001
        """A worker that leaves makes no record of an agent that Redis lost: a glance of another finds the loss."""
        pool.register("w2")
        pool.sleep(30_000)
        pool.register("w1", slots=3)
        pool.execute("DEL", pool.keys.agent("ed"))
        if silent:
            assert pool.expire() == ["w2"]
        else:
            pool.deregister("w2")
        assert pool.execute("EXISTS", pool.keys.agent("ed")) == 0
        assert pool.glance("ed").again
        pool.register("w1", slots=3)
        assert pool.agent()["slots"] == "3"
        assert pool.repair_registry(("agent", "ed"), ("skill", "sum")) == []

    def test_survives_a_lost_group(self, pool: Pool) -> None:
        """A worker can deregister although its inbox or group is gone."""
        pool.register()
        pool.execute("XGROUP", "DESTROY", pool.keys.inbox("ed"), "workers")
        pool.deregister()
        pool.register("w2")
        pool.execute("DEL", pool.keys.inbox("ed"))
        pool.deregister("w2")
        assert pool.members(pool.keys.workers) == []

    def test_cost_does_not_grow(self, pool: Pool) -> None:
        """Forgetting a worker costs the same in a pool of many agents."""

        def cost() -> int:
            pool.register("leaving")
            before = pool.commands()
            pool.deregister("leaving")
            return pool.commands() - before

        first = cost()
        for i in range(50):
            pool.register(f"w{i}", Team(agent=f"a{i}"))
        assert cost() <= first


class TestExpire:
    """Silent workers and unused agents are forgotten."""

    def test_silent_worker(self, pool: Pool) -> None:
        """A worker that has sent no heartbeat for its time is forgotten as if it had deregistered; who has, stays."""
        pool.register("w1", slots=2)
        pool.sleep(1)
        pool.register("w2", slots=3)
        pool.sleep(ALIVE_S * 1000)
        assert pool.expire(alive_s=ALIVE_S) == ["w1"]
        assert pool.agent()["slots"] == "3"
        assert pool.members(pool.keys.workers) == ["w2"]
        with pool.unchanged():
            assert pool.expire(alive_s=ALIVE_S) == []
        assert not pool.heartbeat("w1")

    def test_keeps_the_command_for_a_silent_worker(self, pool: Pool) -> None:
        """Only a worker that has ended loses the command for it, also when it had left the registry before."""
        command = "drain:worker:w1"
        pool.register("w1")
        pool.execute("HSET", pool.keys.desired, command, "1-", f"verified:{command}", "1-")
        pool.sleep(ALIVE_S * 1000 + 1)
        assert pool.expire(alive_s=ALIVE_S) == ["w1"]
        assert pool.execute("HLEN", pool.keys.desired) == 2
        assert 6 * 86_400 < pool.ttl_s(pool.keys.silent("w1")) <= 7 * 86_400
        pool.deregister("w1")
        assert pool.execute("EXISTS", pool.keys.desired, pool.keys.silent("w1")) == 0

    def test_bounded(self, pool: Pool) -> None:
        """One call forgets at most `limit`."""
        for i in range(5):
            pool.register(f"w{i}")
        pool.sleep(HOUR_MS)
        assert [len(pool.expire(limit=2)) for _ in range(4)] == [2, 2, 1, 0]

    def test_unused_agent(self, pool: Pool) -> None:
        """An agent that had no worker for an hour is forgotten with its inbox and its skills."""
        pool.register()
        pool.sleep(HOUR_MS - 1)
        pool.expire()
        assert pool.members(pool.keys.agents) == ["ed"]
        pool.sleep(1)
        pool.expire()
        assert [name for name in pool.names() if "doorbell" not in name] == [pool.keys.silent("w1")]

    def test_unused_agent_with_entries_stays(self, pool: Pool) -> None:
        """An inbox that still holds tasks is not thrown away."""
        pool.register()
        pool.put()
        delivery = pool.one()
        pool.sleep(HOUR_MS)
        pool.expire()
        assert pool.pending() == [(delivery.entry, "w1")]
        pool.register("w2")
        assert pool.abandon("w1")[0] == 1

    def test_after_long_neglect(self, pool: Pool) -> None:
        """When nobody looked after the pool until a worker's record was gone, its slots are still taken back."""
        pool.register("w1", slots=2)
        pool.register("w2", slots=3)
        pool.execute("DEL", pool.keys.worker("w1"))
        pool.sleep(ALIVE_S * 1000 + 1)
        pool.heartbeat("w2")
        assert pool.expire() == ["w1"]
        assert pool.agent()["slots"] == "3"

    def test_after_long_neglect_of_many(self, pool: Pool) -> None:
        """Each agent is looked at once for all workers without a record: a call never blocks Redis for long."""

        def cost(workers: int) -> int:
            for i in range(100):
                pool.register(f"w{i % workers}", Team(agent=f"a{i}"))
            for i in range(workers):
                pool.execute("DEL", pool.keys.worker(f"w{i}"))
            pool.sleep(ALIVE_S * 1000 + 1)
            before = pool.commands()
            assert len(pool.expire()) == workers
            return pool.commands() - before

        one, fifty = cost(1), cost(50)
        assert fifty - one < 50 * 20

    def test_unused_agent_whose_workers_rows_are_gone(self, pool: Pool) -> None:
        """An agent leaves no skill behind although its workers' records went before anybody looked."""
        pool.register()
        pool.execute("DEL", pool.keys.worker("w1"), pool.keys.agent_workers("ed"))
        pool.sleep(HOUR_MS)
        pool.expire()
        assert pool.execute("EXISTS", pool.keys.skill("sum")) == 0

    def test_agent_loses_and_finds_skill(self, pool: Pool) -> None:
        """When the last worker with a lesser set of skills vanishes, the others' skills count again."""
        pool.register("old", Team(skills=frozenset({"a"})))
        pool.sleep(1)
        pool.register("new", Team(skills=frozenset({"a", "b"})))
        pool.put(row(queue="skill:b"))
        assert pool.assign().count == 0
        pool.sleep(ALIVE_S * 1000)
        pool.expire()
        assert pool.assign().count == 1


class TestLead:
    """One supervisor leads; all are listed."""

    @staticmethod
    def lead(pool: Pool, who: str) -> bool:
        """Ask for the lease."""
        return pool.call(scripts.lead(pool.keys, supervisor=who, lease_ms=5000)).leads

    @staticmethod
    def resign(pool: Pool, who: str) -> bool:
        """Give the lease back."""
        return pool.call(scripts.resign(pool.keys, supervisor=who))

    def test_lead_and_resign(self, pool: Pool) -> None:
        """One supervisor leads until it resigns or its lease runs out; keeping it is repeating it."""
        assert [self.lead(pool, who) for who in "aba"] == [True, False, True]
        assert 0 < pool.execute("PTTL", pool.keys.leader) <= 5000
        assert [self.resign(pool, who) for who in "baa"] == [False, True, False]
        assert self.lead(pool, "b")

    def test_lists_those_that_run(self, pool: Pool) -> None:
        """Each caller is listed with its format and version until it resigns or is silent for a minute."""
        for who in "abc":
            self.lead(pool, who)
        rest = f" {FORMAT} {program_version()}"
        assert pool.score(pool.keys.supervisors, f"b{rest}") == pool.now_ms + 60_000
        self.resign(pool, "c")
        assert pool.members(pool.keys.supervisors) == [f"a{rest}", f"b{rest}"]
        pool.sleep(60_000)
        self.lead(pool, "b")
        assert pool.members(pool.keys.supervisors) == [f"b{rest}"]

    def test_the_floor_displaces_a_leader_that_is_too_old(self, pool: Pool) -> None:
        """A leader of an older program, which stores no format, keeps the lease until the floor is raised."""
        pool.execute("SET", pool.keys.format, OLDEST_FORMAT)
        pool.execute("SET", pool.keys.leader, "old", "PX", 60_000)
        assert not self.lead(pool, "new")
        pool.execute("SET", pool.keys.format, FORMAT)
        assert not self.lead(pool, "new"), "it may be one whose format was lost"
        pool.sleep(50_000)
        assert not self.lead(pool, "new")
        pool.execute("SET", pool.keys.leader, "old", "PX", 60_000)
        pool.sleep(10_001)
        assert self.lead(pool, "new"), "the old one has renewed without its format"
        assert pool.execute("GET", pool.keys.leader) == b"new"
        assert not self.lead(pool, "second")

    def test_a_leader_below_a_floor_that_was_raised(self, pool: Pool) -> None:
        """A leader that stored a format below the floor loses the lease at once."""
        pool.execute("SET", pool.keys.format, FORMAT)
        assert self.lead(pool, "a")
        pool.execute("HSET", pool.keys.leader_format, "format", FORMAT - 1)
        assert self.lead(pool, "b")

    def test_many_supervisors(self, pool: Pool) -> None:
        """The leader keeps the lease beside any number of others, each of which asks after its renewal."""
        pool.execute("SET", pool.keys.format, FORMAT)
        assert [self.lead(pool, str(n)) for n in range(110)] == [True] + [False] * 109
        pool.sleep(1)
        assert self.lead(pool, "0")
        assert not any(self.lead(pool, str(n)) for n in range(1, 110))

    def test_a_leader_whose_format_was_lost(self, pool: Pool) -> None:
        """It keeps the lease, because it stores its format again before the lease ends."""
        pool.execute("SET", pool.keys.format, FORMAT)
        for _ in range(3):
            assert self.lead(pool, "a")
            pool.execute("DEL", pool.keys.leader_format, pool.keys.supervisors)
            assert not self.lead(pool, "b")
            pool.sleep(4000)
        assert self.lead(pool, "a")
        pool.sleep(2000)
        assert not self.lead(pool, "b")

    def test_leases_of_different_durations(self, pool: Pool) -> None:
        """A caller with a short lease removes no leader with a long one from the list, and takes no lease."""
        pool.execute("SET", pool.keys.format, FORMAT)
        assert pool.call(scripts.lead(pool.keys, supervisor="long", lease_ms=600_000)).leads
        pool.sleep(200_000)
        assert not self.lead(pool, "short")
        assert pool.score(pool.keys.supervisors, f"long {FORMAT} {program_version()}") is not None

    def test_restores_the_floor(self, pool: Pool) -> None:
        """A supervisor stores the floor that it has seen when Redis has lost it or has a lower one, and lowers none."""
        for stored, floor in ((None, FORMAT), (OLDEST_FORMAT, FORMAT), (FORMAT + 1, FORMAT + 1)):
            pool.execute("DEL", pool.keys.format)
            if stored is not None:
                pool.execute("SET", pool.keys.format, stored)
            answer = pool.call(scripts.lead(pool.keys, supervisor="a", lease_ms=5000, floor=FORMAT))
            assert answer.floor == floor
            assert pool.execute("GET", pool.keys.format) == str(floor).encode()

    def test_a_caller_below_the_floor(self, pool: Pool) -> None:
        """A program that is too old gets no lease, and learns the floor."""
        pool.execute("SET", pool.keys.format, FORMAT + 1)
        answer = pool.call(scripts.lead(pool.keys, supervisor="a", lease_ms=5000))
        assert (answer.leads, answer.floor) == (False, FORMAT + 1)
        assert pool.execute("EXISTS", pool.keys.leader) == 0


def test_the_floor_only_rises(pool: Pool) -> None:
    """A raise is repeated without effect, and a lower format changes nothing."""
    raised = [pool.call(scripts.raise_floor(pool.keys, format_=format_)) for format_ in (3, 3, 2, 4)]
    assert raised == [3, 3, 3, 4]
    assert pool.execute("GET", pool.keys.format) == b"4"


def test_clock(pool: Pool) -> None:
    """Without the test clock the scripts take the server's time."""
    pool.now_us = None
    pool.register()
    seconds, _ = pool.execute("TIME")
    heartbeat = pool.score(pool.keys.workers, "w1")
    assert heartbeat is not None
    assert abs(heartbeat / 1000 - int(seconds)) < 60
    assert heartbeat < START_US / 1000
