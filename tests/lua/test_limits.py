"""Rate limits: exact in every window, for granted starts alone, also when many callers ask at once."""

from __future__ import annotations

from collections import defaultdict
from itertools import cycle
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.agents import scripts as agent_scripts
from orchestrator.core.errors import StoreError
from orchestrator.core.rates import Rate
from orchestrator.store.keys import PoolKeys
from orchestrator.store.store import Endpoint, Store
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.inbox import read_inbox
from orchestrator.tasks.model import Verdict, VerdictKind
from orchestrator.testing import scripts as testing_scripts
from tests.lua.pool import START_US, USUAL_TTL_S, Assigned, Pool, Team, row

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server

NOTHING = Assigned(0, left=False, wait_us=0)


def limited(pool: Pool, count: int, window_ms: int, tasks: int = 20, **fields: Any) -> None:
    """An agent with one limit and tasks that wait."""
    pool.register(team=Team(rate=Rate(count, window_ms * 1000), **fields), slots=1000)
    pool.put(*[row() for _ in range(tasks)])


def by_grant(flat: list[bytes]) -> dict[bytes, int]:
    """Grants with their times; at infinity stands the time of a returned one."""
    return {member: int(us) for member, us in zip(flat[::2], flat[1::2], strict=True) if us != b"inf"}


def grants(pool: Pool, name: str = "@ed") -> list[int]:
    """Grant times that a limit remembers."""
    return list(by_grant(pool.execute("ZRANGE", pool.keys.limit(name), 0, -1, "WITHSCORES")).values())


def assert_held(times: list[int], rate: Rate) -> None:
    """No window, wherever it begins, holds more starts than allowed."""
    ordered = sorted(times)
    for first, beyond in zip(ordered, ordered[rate.count :], strict=False):
        assert beyond - first >= rate.window_us, f"{rate.count + 1} starts within {beyond - first} us"


def test_window_slides(pool: Pool) -> None:
    """A slot opens exactly one window after the grant that used it, and the answer says when."""
    limited(pool, 2, 100)
    pool.put()
    assert pool.assign(limit=1).count == 1
    pool.sleep(30)
    assert pool.assign() == Assigned(1, left=True, wait_us=0)
    assert pool.assign() == Assigned(0, left=False, wait_us=70_000)
    pool.sleep(69.999)
    assert pool.assign() == Assigned(0, left=False, wait_us=1)
    pool.sleep(0.001)
    assert pool.assign() == Assigned(1, left=True, wait_us=0)
    assert pool.assign() == Assigned(0, left=False, wait_us=30_000)


def test_no_wait_without_work(pool: Pool) -> None:
    """A full limit that holds nothing back is no reason to wake up."""
    limited(pool, 2, 100, tasks=2)
    pool.assign()
    assert pool.assign() == NOTHING


def test_full_inbox_is_not_the_limit(pool: Pool) -> None:
    """Without room no slot is taken and no time is promised."""
    pool.register(team=Team(rate=Rate(5, 100_000)), slots=2)
    pool.put(row(), row(), row())
    assert pool.assign() == Assigned(1, left=True, wait_us=0)
    assert pool.assign() == Assigned(1, left=False, wait_us=0)
    assert pool.assign() == NOTHING
    assert len(grants(pool)) == 2


@pytest.mark.parametrize(("slots", "calls"), [(1, [1]), (2, [1, 1]), (5, [3, 2]), (10, [5, 5])])
def test_a_limited_agent_gets_half_its_slots_in_a_call(pool: Pool, slots: int, calls: list[int]) -> None:
    """Without a backlog its workers run one half while the other is fetched; one without a limit gets all at once."""
    pool.register(team=Team(rate=Rate(1000, 100_000)), slots=slots)
    pool.register("w2", Team(agent="free", skills=frozenset({"other"})), slots=slots)
    pool.put(*[row() for _ in range(20)], *[row(queue="skill:other") for _ in range(20)])
    assert [(done.count, done.left) for done in (pool.assign() for _ in calls)] == [
        *[(count, True) for count in calls[:-1]],
        (calls[-1], False),
    ]
    assert pool.assign("free").count == slots


def test_only_granted_starts_count(pool: Pool) -> None:
    """Expired, parked and torn tasks take no slot, nor do calls that grant nothing."""
    pool.register(team=Team(rate=Rate(3, 100_000)))
    pool.put(
        row(start_by_ms=pool.now_ms),
        row(queue="agent:ed", skill="other"),
        row(),
    )
    pool.execute("ZADD", pool.keys.queue("skill:sum"), 1, "ghost")
    while pool.assign().left:
        pass
    pool.assign()
    assert len(grants(pool)) == 1


def test_every_limit_of_a_start(pool: Pool) -> None:
    """A start needs a slot of every limit of its agent; the fullest decides, and so does the last to open."""
    known = (("a", Rate(2, 100_000)), ("b", Rate(2, 300_000)))
    pool.register(team=Team(rate=Rate(9, 50_000), limits=("b", "a"), known_limits=known), slots=100)
    pool.put(*[row() for _ in range(9)])
    assert pool.assign().count == 2
    assert pool.assign() == Assigned(0, left=False, wait_us=300_000)
    pool.sleep(300)
    assert pool.assign().count == 2
    assert [len(grants(pool, name)) for name in ("@ed", "a", "b")] == [2, 2, 2]


def test_shared_by_agents(pool: Pool) -> None:
    """A named limit is one budget for all agents that name it."""
    shared = (("model:x", Rate(3, 100_000)),)
    for agent in ("a", "b"):
        pool.register(
            f"w{agent}", Team(agent=agent, skills=frozenset({agent}), limits=("model:x",), known_limits=shared)
        )
        pool.put(*[row(queue=f"skill:{agent}") for _ in range(3)])
    assert pool.assign("a", limit=2).count == 2
    assert pool.assign("b").count == 1
    assert pool.assign("a") == Assigned(0, left=False, wait_us=100_000)


def test_returned_slots_return(pool: Pool) -> None:
    """A grant that was never a start gives its slot back, and it is used at once."""
    limited(pool, 2, 60_000)
    first, _ = pool.deliver()
    assert pool.assign().count == 0
    pool.end(first, VerdictKind.RELEASED)
    assert pool.assign().count == 1
    assert len(grants(pool)) == 2


def test_lowered_rate(pool: Pool) -> None:
    """A lowered rate counts what was granted before, and promises the moment that enough of it has passed."""
    limited(pool, 5, 100)
    for _ in range(5):
        pool.assign(limit=1)
        pool.sleep(10)
    pool.register(team=Team(rate=Rate(2, 100_000)), slots=1000)
    # Grants at 0, 10, 20, 30, 40; now 50: the fourth of them has to leave the window.
    assert pool.assign() == Assigned(0, left=False, wait_us=80_000)
    pool.sleep(79.999)
    assert pool.assign().count == 0
    pool.sleep(0.001)
    assert pool.assign().count == 1


def test_raised_rate(pool: Pool) -> None:
    """A raised rate opens at once, and supervisors look at the agent."""
    limited(pool, 1, 60_000)
    pool.assign()
    pool.notifications()
    pool.register(team=Team(rate=Rate(3, 60_000_000)), slots=1000)
    assert pool.notifications() == ["agent:ed"]
    assert pool.assign().count == 2


def test_raised_rate_of_several_agents(pool: Pool) -> None:
    """One agent defines or raises a limit that others have too: supervisors look at all agents."""

    def register(agent: str, count: int) -> list[str]:
        pool.register(agent, Team(agent=agent, limits=("x",), known_limits=(("x", Rate(count, 60_000_000)),)))
        return pool.notifications()

    assert [register(agent, 1) for agent in ("ed", "ann", "ed")] == [["agents", "agents"], ["agents"], ["agent:ed"]]
    assert register("ed", 2) == ["agent:ed", "agents"]


def test_clock_steps_back(pool: Pool) -> None:
    """A clock that steps back reopens no window; the wait that is told still ends when a slot opens."""
    limited(pool, 2, 100)
    assert pool.assign().count == 2
    pool.sleep(-1000)
    answer = pool.assign()
    assert answer == Assigned(0, left=False, wait_us=1_100_000)
    pool.sleep(answer.wait_us / 1000)
    assert pool.assign().count == 2
    pool.sleep(-50)
    pool.assign()
    assert_held(grants(pool), Rate(2, 100_000))


def test_grants_in_a_stepped_clock_do_not_hide(pool: Pool) -> None:
    """Grants made while the clock is behind the last one are counted as made with it."""
    limited(pool, 3, 100)
    pool.assign(limit=1)
    pool.sleep(-500)
    assert pool.assign().count == 2
    assert len(set(grants(pool))) == 1
    pool.sleep(550)
    assert pool.assign().count == 0


@pytest.mark.parametrize(("ahead_ms", "free"), [(59_950, 1), (60_000, 2)])
def test_a_returned_grant_leaves_its_time(pool: Pool, ahead_ms: int, free: int) -> None:
    """A clock that ran ahead for a grant that was returned, and went back, reopens nothing that this grant forgot."""
    limited(pool, 2, 60_000)
    pool.assign(limit=1)
    pool.sleep(50)
    pool.assign(limit=1)
    pool.sleep(ahead_ms)
    pool.assign(limit=1)
    times, ahead_us = [START_US, START_US + 50_000], pool.now_us
    pool.end(pool.read()[-1], VerdictKind.RELEASED)
    pool.sleep(-ahead_ms)
    told = pool.why(pool.put()[0])
    assert told is not None
    (limit,) = told.agents[0].limits
    assert limit.used == 2 - free
    started = pool.deliver()
    times += [pool.score(pool.keys.limit("@ed"), f"{one.task_id}:{one.generation}") or 0 for one in started]
    assert times[2:] == [ahead_us] * free, "a returned slot is free at once, by the time at which it was returned"
    assert_held(times, Rate(2, 60_000_000))
    assert len(pool.members(pool.keys.limit("@ed"))) == 2, "the time that was left behind is not needed any more"


def test_returned_time_goes_with_its_limit(pool: Pool) -> None:
    """The time of a returned grant lives as long as the grant would have, and nobody counts it."""
    limited(pool, 1, 60_000, tasks=2)
    (delivery,) = pool.deliver()
    (waiting,) = pool.queue()
    pool.end(delivery, VerdictKind.RELEASED)
    assert pool.execute("ZRANGE", pool.keys.limit("@ed"), 0, -1, "WITHSCORES") == [b"%d" % START_US, b"inf"]
    assert 60_000 < pool.execute("PTTL", pool.keys.limit("@ed")) <= 61_000
    pool.sleep(-500)
    told = pool.why(waiting)
    assert told is not None
    (limit,) = told.agents[0].limits
    assert (limit.used, limit.next_us) == (0, START_US + 60_000_000)
    assert pool.assign() == Assigned(1, left=True, wait_us=0)
    assert grants(pool) == [START_US]
    assert pool.assign() == Assigned(0, left=False, wait_us=60_500_000)


def test_returned_time_moves_with_the_others(pool: Pool) -> None:
    """When a test lets time pass, the time of a returned grant ages as grants do."""
    limited(pool, 2, 60_000)
    pool.assign(limit=1)
    pool.sleep(1)
    pool.assign(limit=1)
    pool.end(pool.read()[-1], VerdictKind.RELEASED)
    pool.execute(*testing_scripts.advance(pool.keys, by_ms=100))
    assert grants(pool) == [START_US - 100_000]
    assert pool.members(pool.keys.limit("@ed"))[1:] == [str(START_US - 99_000)]


def test_returned_time_costs_one_command(pool: Pool) -> None:
    """The first assign behind a returned grant takes its time away; no other one pays for it."""

    def cost() -> int:
        before = pool.commands()
        assert pool.assign(limit=1).count == 1
        return pool.commands() - before

    limited(pool, 9, 60_000, tasks=0)
    pool.put(*[row(ttl_s=USUAL_TTL_S) for _ in range(20)])
    usual = [cost() for _ in range(2)][-1]
    for delivery in pool.read():
        pool.end(delivery, VerdictKind.RELEASED)
    # To ask for the fields of a task that came back costs one more.
    assert [cost() - usual for _ in range(3)] == [1 + 1, 1, 0]


def test_lost_definition(pool: Pool) -> None:
    """A limit whose definition is lost allows nothing, rather than everything."""
    limited(pool, 5, 100)
    pool.execute("DEL", pool.keys.limits)
    assert pool.assign() == NOTHING
    pool.register(team=Team(rate=Rate(5, 100_000)), slots=1000)
    assert pool.assign().count == 5


def test_lifetime(pool: Pool) -> None:
    """What a limit remembers goes away a second after its window, and holds no more than a window."""
    limited(pool, 500, 5_000, tasks=500)
    pool.assign(limit=300)
    assert 5_000 < pool.execute("PTTL", pool.keys.limit("@ed")) <= 6_000
    pool.sleep(5_000)
    pool.assign(limit=3)
    assert len(grants(pool)) == 3


def test_batch_of_500(pool: Pool) -> None:
    """A full batch takes its slots of several limits in one call."""
    known = (("a", Rate(10_000, 1_000_000)), ("b", Rate(10_000, 1_000_000)))
    pool.register(team=Team(limits=("a", "b"), known_limits=known), slots=500)
    pool.put(*[row() for _ in range(500)])
    assert pool.assign().count + pool.assign().count == 500
    assert [len(grants(pool, name)) for name in ("a", "b")] == [500, 500]


def test_cost_does_not_grow(pool: Pool) -> None:
    """A grant costs the same whatever the limit remembers."""

    def cost() -> int:
        before = pool.commands()
        assert pool.assign(limit=1).count == 1
        return pool.commands() - before

    limited(pool, 1000, 60_000, tasks=500)
    first = cost()
    pool.assign(limit=400)
    assert cost() <= first


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.integers(1, 4),
    window_us=st.integers(1_000, 200_000),
    steps=st.lists(
        st.tuples(st.integers(-50_000, 120_000), st.integers(1, 5), st.sampled_from([0, 0, 1, 5])),
        min_size=5,
        max_size=40,
    ),
)
def test_any_history(
    redis_server: RedisServer, prefix: str, count: int, window_us: int, steps: list[tuple[int, int, int]]
) -> None:
    """Whatever the pauses, steps of the clock, sizes of calls and returned grants: no window holds too many starts."""
    pool = Pool(redis_server.url, f"{prefix}:{count}{window_us}{len(steps)}")
    try:
        pool.register(team=Team(rate=Rate(count, window_us)), slots=1000)
        pool.put(*[row() for _ in range(300)])
        seen: dict[bytes, int] = {}
        for pause_us, limit, give_back in steps:
            pool.now_us = (pool.now_us or START_US) + pause_us
            pool.assign(limit=limit)
            seen |= by_grant(pool.execute("ZRANGE", pool.keys.limit("@ed"), 0, -1, "WITHSCORES"))
            for delivery in pool.read()[::-1][:give_back]:  # the others have started
                pool.end(delivery, VerdictKind.RELEASED)
                seen.pop(f"{delivery.task_id}:{delivery.generation}".encode(), None)
        assert_held(list(seen.values()), Rate(count, window_us))
    finally:
        if names := pool.names():
            pool.execute("UNLINK", *names)
        pool.close()


RATES = {
    "@fast": Rate(5, 100_000),
    "@middle": Rate(20, 500_000),
    "@slow": Rate(40, 2_000_000),
    "shared": Rate(7, 250_000),
}
AGENTS = {"fast": ("@fast",), "middle": ("@middle", "shared"), "slow": ("@slow",), "free": ("shared",)}
RUN_S = 2.6


class Rush:
    """Many callers at once, and what they were granted."""

    def __init__(self, url: str, keys: PoolKeys) -> None:
        self.keys = keys
        self.supervisors = [Store(Endpoint.at(url), keys) for _ in range(3)]
        self.seen: defaultdict[str, dict[bytes, int]] = defaultdict(dict)
        self.granted: dict[str, int] = dict.fromkeys(AGENTS, 0)
        self.returned: set[bytes] = set()

    async def prepare(self) -> None:
        """Register the agents and give each more tasks than it may start."""
        store = self.supervisors[0]
        await store.load_scripts()
        for agent, names in AGENTS.items():
            known = tuple((name, RATES[name]) for name in names if not name.startswith("@"))
            spec = Team(
                agent, frozenset({agent}), RATES.get(f"@{agent}"), tuple(name for name, _ in known), known
            ).spec()
            facts: dict[str, Any] = {"slots": 100_000, "backlog": 0, "about": {}, "alive_s": 60}
            await store.call(agent_scripts.register(self.keys, worker="w", spec=spec, **facts))
            rows = [row(queue=f"skill:{agent}") for _ in range(400)]
            await store.call(
                task_scripts.submit(self.keys, rows=[each.sent() for each in rows], max_tasks=10_000, max_wait_s=60)
            )

    async def ask(self, store: Store, agent: str) -> None:
        """Call assign for one agent over a connection of its own, for ever."""
        call = task_scripts.assign(self.keys, agents=[agent], limit=3)
        reads = [("ZRANGE", self.keys.limit(name), 0, -1, "WITHSCORES") for name in AGENTS[agent]]
        link = store.blocking_link(1)
        try:
            while True:
                # What was granted is read in the same round trip, before it can leave the window.
                answer, *found = await link.pipeline([call.command(), *reads])
                assert not isinstance(answer, StoreError), answer
                assigned = call.parse(answer)
                self.granted[agent] += assigned.count
                for name, flat in zip(AGENTS[agent], found, strict=True):
                    self.seen[name] |= by_grant(flat)
                if not assigned.count:
                    await anyio.sleep(min(assigned.waits_us.get(agent, 0) / 1e6, 0.02))
        finally:
            await link.close()

    async def give_back(self, agent: str) -> None:
        """Read a task now and then and give it back released."""
        store, keys = self.supervisors[0], self.keys
        link = store.blocking_link(1)
        try:
            while True:
                inbox_key = keys.inbox(agent)
                found = await read_inbox(link, inbox_key=inbox_key, agent=agent, worker="w", count=1, block_ms=50)
                self.returned.update(f"{delivery.task_id}:{delivery.generation}".encode() for delivery in found)
                rows = [(delivery, Verdict(VerdictKind.RELEASED)) for delivery in found]
                await store.call(task_scripts.finish(keys, rows=rows, worker="w", dead_ttl_s=60, max_wait_s=60))
                await anyio.sleep(0.03)
        finally:
            await link.close()


async def test_fifty_at_once(redis_server: RedisServer, prefix: str) -> None:
    """However many ask at once, every window of every limit holds on the server's clock, and no limit goes unused."""
    rush = Rush(redis_server.url, PoolKeys(prefix, "p"))
    await rush.prepare()
    with anyio.move_on_after(RUN_S):
        async with anyio.create_task_group() as group:
            for i, agent in zip(range(50), cycle(AGENTS), strict=False):
                group.start_soon(rush.ask, rush.supervisors[i % 3], agent)
            group.start_soon(rush.give_back, "free")
    for supervisor in rush.supervisors:
        await supervisor.close()
    for name, rate in RATES.items():
        assert_held([us for member, us in rush.seen[name].items() if member not in rush.returned], rate)
    assert rush.returned
    for agent in ("fast", "middle", "slow"):
        assert rush.granted[agent] == len(rush.seen[f"@{agent}"]), "every grant was seen"
    for agent in ("fast", "slow"):
        rate = RATES[f"@{agent}"]
        windows = max(1, int(RUN_S * 1e6) // rate.window_us // 2)
        assert rush.granted[agent] >= rate.count * windows, "a limit must not starve its agent"
