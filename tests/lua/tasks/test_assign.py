"""lua/tasks/assign.lua: the gate. Room, order over several queues, parking, marks; limits are in test_limits.py."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from orchestrator.store.calls import opaque
from orchestrator.tasks.model import FinishStatus, LeaseStatus, Verdict, VerdictKind
from tests.lua.pool import USUAL_TTL_S, Assigned, Team, rank, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

NOTHING = Assigned(0, left=False, wait_us=0)


def test_unknown_agent(pool: Pool) -> None:
    """An agent that nobody registered, or that only drains, is given nothing, and nothing changes."""
    pool.put()
    with pool.unchanged():
        assert pool.assign() == NOTHING
    pool.register(slots=0)
    with pool.unchanged():
        assert pool.assign() == NOTHING


def test_a_field_beside_a_lane(pool: Pool) -> None:
    """A task with a lane and a start time, and nothing else, starts like any other: it no longer waits to expire."""
    pool.register()
    (task,) = pool.put(row(lane="x", start_by_ms=pool.now_ms + 10, ttl_s=USUAL_TTL_S))
    assert len(pool.task(task)) == 5
    assert pool.members(pool.keys.expiring) == [task]
    pool.assign()
    assert pool.members(pool.keys.expiring) == []


def test_no_more_than_there_is_room(pool: Pool) -> None:
    """Of several queues together an agent gets as many tasks as it has room for."""
    pool.register(slots=3)
    rows = [row(), row(queue="agent:ed", skill="sum"), row(), row(queue="agent:ed", skill="sum"), row()]
    pool.put(*rows)
    pool.assign()
    assert pool.inbox_length() == 3
    assert {each.task_id for each in pool.read()} == {each.id for each in rows[:3]}


def test_assigns(pool: Pool) -> None:
    """A granted task is in the inbox with all that a worker needs, and nowhere else; its hash says where."""
    pool.register()
    task = row()
    pool.put(task)
    assert pool.assign() == Assigned(1, left=False, wait_us=0)
    (delivery,) = pool.read()
    assert (delivery.task_id, delivery.generation, delivery.attempt, delivery.deaths) == (
        task.id,
        str(pool.now_ms + 1),
        1,
        0,
    )
    assert opaque(delivery.envelope) == task.envelope
    found = pool.task(task.id)
    assert (found["state"], found["at"]) == ("assigned", f"ed {delivery.entry} {rank(2) + pool.now_ms}")
    assert pool.queue() == []
    assert pool.execute("EXISTS", pool.keys.queues) == 0
    assert pool.stats() == {"submitted": 1, "assigned": 1}
    with pool.unchanged():
        assert pool.assign() == NOTHING


def test_no_generation_is_handed_out_twice(pool: Pool) -> None:
    """Redis loses an assignment and keeps the submit: the first attempt can change nothing in the second."""
    pool.register()
    (id_,) = pool.put()
    kept = {key: (pool.execute("PTTL", key), pool.execute("DUMP", key)) for key in pool.names()}
    pool.sleep(50)
    first = pool.one()
    assert first.generation == str(pool.now_ms)
    for key in pool.names():
        pool.execute("DEL", key)
    for key, (ttl_ms, value) in kept.items():
        pool.execute("RESTORE", key, max(0, ttl_ms), value)
    pool.sleep(1)
    pool.register("w2")
    pool.assign()
    (second,) = pool.read("w2")
    assert (second.task_id, int(second.generation)) == (id_, int(first.generation) + 1)
    with pool.unchanged():
        assert pool.end(first) == FinishStatus.STALE
        assert pool.renew([first])[1] == [LeaseStatus.LOST]
    assert pool.end(second) == FinishStatus.OK


def test_large_envelope_stays_in_the_hash(pool: Pool) -> None:
    """An envelope above 16 KiB does not travel; the worker reads it from the task."""
    pool.register()
    pool.put(row(envelope=opaque(b"x" * 16_384)))
    pool.put(row(envelope=opaque(b"x" * 16_385)))
    assert [len(delivery.envelope) for delivery in pool.deliver()] == [16_384, 0]


def test_bounded_in_bytes(pool: Pool) -> None:
    """One call reads at most about 256 KiB, and says that more is left (protocol rule 17)."""
    pool.register(slots=200)
    pool.put(*[row(envelope=opaque(b"x" * 16_000)) for _ in range(20)])
    pool.put(row(envelope=opaque(b"x" * 200_000)), row(envelope=opaque(b"x" * 200_000)), row())
    counts = [pool.assign() for _ in range(3)]
    assert [(one.count, one.left) for one in counts] == [(17, True), (5, True), (1, False)]


def test_room(pool: Pool) -> None:
    """Room is the slots of the agent's own live workers, times one and the backlog, less what is in its inbox."""
    pool.register("w1", slots=2, backlog=1)
    pool.register("w2", slots=3, backlog=1)
    pool.register("w3", Team(agent="other"), slots=50, backlog=1)
    pool.put(*[row() for _ in range(30)])
    assert pool.assign() == Assigned(10, left=False, wait_us=0)
    assert pool.assign() == NOTHING
    done = pool.read(limit=3)
    assert pool.assign() == NOTHING
    pool.finish(*[(delivery, _ok()) for delivery in done])
    assert pool.assign().count == 3
    pool.register("w2", slots=3, backlog=0)
    assert pool.assign() == NOTHING


def test_limit_of_a_call(pool: Pool) -> None:
    """A call moves at most `limit` and says that more could go."""
    pool.register(slots=5)
    pool.put(*[row() for _ in range(4)])
    assert pool.assign(limit=3) == Assigned(3, left=True, wait_us=0)
    assert pool.assign(limit=3) == Assigned(1, left=False, wait_us=0)


def test_batch_of_500(pool: Pool) -> None:
    """A full batch of tasks with clients and `start_by` fits into one call."""
    pool.register(slots=1000)
    pool.put(*[row(start_by_ms=pool.now_ms + 9, reply="c", queue="agent:ed", skill="sum") for _ in range(500)])
    assert pool.assign() == Assigned(500, left=False, wait_us=0)
    pool.put(*[row(start_by_ms=pool.now_ms + 9, reply="c") for _ in range(500)])
    pool.sleep(9)
    assert pool.assign() == NOTHING
    assert pool.stats()["expired"] == 500
    pool.put(*[row(queue="agent:ed", skill="other") for _ in range(500)])
    assert pool.assign() == NOTHING
    assert len(pool.members(f"{pool.keys.root}:parked:ed")) == 500


def test_expires_at_the_gate(pool: Pool) -> None:
    """A task whose `start_by` has passed ends at the gate, with reply, event and count, and leaves no index entry."""
    pool.register()
    late, fine = row(start_by_ms=pool.now_ms + 10, reply="c1"), row(start_by_ms=pool.now_ms + 11)
    pool.put(late, fine)
    pool.sleep(10)
    assert pool.assign() == Assigned(1, left=False, wait_us=0)
    assert pool.state(late.id) == "expired"
    assert pool.replies() == pool.events() == [(late.id, "e")]
    assert pool.execute("EXISTS", f"{pool.keys.root}:expiring") == 0


def test_drops_torn_entries(pool: Pool) -> None:
    """A queue entry whose task is gone or not ready is dropped; the next one is taken."""
    pool.register()
    ended = row()
    pool.put(ended)
    pool.end(pool.one())
    pool.put(row())
    pool.execute("ZADD", pool.keys.queue("skill:sum"), 1, "ghost", 2, ended.id)
    assert pool.assign() == Assigned(1, left=False, wait_us=0)
    assert pool.state(ended.id) == "succeeded"
    assert pool.queue() == []


def test_fifo_within_a_level(pool: Pool) -> None:
    """Within one priority the order is that of arrival, over calls, batches and equal milliseconds."""
    pool.register(slots=100)
    expected = []
    for size in (3, 1, 4):
        expected += pool.put(*[row() for _ in range(size)])
        pool.sleep(size % 2)
    assert [delivery.task_id for delivery in pool.deliver()] == expected


def test_strict_priority(pool: Pool) -> None:
    """By default a better level always goes first, however long the other waits."""
    pool.register(slots=100)
    old = pool.put(row(priority=9))
    pool.sleep(300 * 86_400_000)
    levels = [3, 0, 2, 1, 2, 0]
    ids = pool.put(*[row(priority=level) for level in levels])
    expected = [ids[i] for i in sorted(range(len(levels)), key=lambda i: levels[i])]
    assert [delivery.task_id for delivery in pool.deliver()] == expected + old


def test_ageing(pool: Pool) -> None:
    """With ageing, a task that has waited `aging` longer overtakes one that is a level better."""
    pool.register()
    low = row(rank=rank(3, aging_ms=1000))
    pool.put(low)
    pool.sleep(999)
    better = row(rank=rank(2, aging_ms=1000))
    pool.put(better)
    pool.sleep(2)
    overtaken = row(rank=rank(2, aging_ms=1000))
    pool.put(overtaken)
    assert [delivery.task_id for delivery in pool.deliver()] == [better.id, low.id, overtaken.id]


@pytest.mark.parametrize("limit", [1, 3, 500])
def test_merges_queues(pool: Pool, limit: int) -> None:
    """Over the agent's own queue and those of its skills, the order is that of one sorted list."""
    skills = [f"s{i}" for i in range(5)]
    pool.register(team=Team(skills=frozenset(skills)), slots=200)
    dice = random.Random(5)
    tasks = []
    for _ in range(60):
        skill = dice.choice(skills)
        place = dice.choice([{"queue": "agent:ed", "skill": skill}, {"queue": f"skill:{skill}"}])
        task = row(priority=dice.randrange(3), **place)
        tasks.append((task.rank + pool.now_ms, task.id))
        pool.put(task)
        pool.sleep(dice.randrange(2))
    while pool.assign(limit=limit).left:
        pass
    assert [delivery.task_id for delivery in pool.read(limit=100)] == [task_id for _, task_id in sorted(tasks)]


def test_other_agents_queues(pool: Pool) -> None:
    """An agent gets its own tasks and those of its skills, nobody else's."""
    pool.register(team=Team(skills=frozenset({"a"})))
    mine = pool.put(row(queue="agent:ed", skill="a"), row(queue="skill:a"))
    others = pool.put(row(queue="agent:other", skill="a"), row(queue="skill:b"))
    assert {delivery.task_id for delivery in pool.deliver()} == set(mine)
    assert {pool.state(task_id) for task_id in others} == {"ready"}


def test_skills_of_all_workers(pool: Pool) -> None:
    """A queue is served only while all live workers have the skill (protocol rule 16)."""
    both, old = frozenset({"a", "b"}), frozenset({"a"})
    pool.register("w1", Team(skills=both))
    pool.register("w2", Team(skills=old))
    pool.put(row(queue="skill:b"))
    assert pool.assign() == NOTHING
    pool.register("w2", Team(skills=old), slots=0)
    assert pool.assign().count == 1


def test_parks_what_the_agent_lacks(pool: Pool) -> None:
    """A task addressed to an agent that lacks its skill steps aside, and comes back when the skill arrives."""
    pool.register(team=Team(skills=frozenset({"a"})))
    parked, fine = row(queue="agent:ed", skill="b", priority=0), row(queue="agent:ed", skill="a")
    pool.put(parked, fine)
    assert pool.assign() == Assigned(1, left=False, wait_us=0)
    assert pool.members(f"{pool.keys.root}:parked:ed") == [parked.id]
    assert pool.score(f"{pool.keys.root}:parked:ed", parked.id) == pool.now_ms
    pool.notifications()
    pool.register(team=Team(skills=frozenset({"a", "b"})))
    assert pool.notifications() == ["agents"]
    assert {delivery.task_id for delivery in pool.deliver()} == {parked.id, fine.id}
    assert pool.execute("EXISTS", f"{pool.keys.root}:parked:ed") == 0
    assert "unpark" not in pool.agent()


def park(pool: Pool, skill: str, count: int) -> list[str]:
    """Park tasks of an agent that has only the skill `a`."""
    pool.register(team=Team(skills=frozenset({"a"})), slots=1)
    ids: list[str] = []
    while len(ids) < count:
        ids += pool.put(*[row(queue="agent:ed", skill=skill) for _ in range(min(500, count - len(ids)))])
    while pool.assign().left:
        pass
    assert pool.queue("agent:ed") == []
    return ids


def test_all_parked_come_back(pool: Pool) -> None:
    """However many are parked, all come back, in their order and among what queued up meanwhile."""
    pool.register(team=Team(skills=frozenset({"a"})), slots=2000)
    parked = pool.put(*[row(queue="agent:ed", skill="b") for _ in range(500)])
    parked += pool.put(*[row(queue="agent:ed", skill="b") for _ in range(500)])
    while pool.assign().left:
        pass
    first = pool.put(row(queue="agent:ed", skill="b", priority=0))
    pool.register(team=Team(skills=frozenset({"a", "b"})), slots=2000)
    while pool.assign().left:
        pass
    assert [delivery.task_id for delivery in pool.read(limit=2000)] == first + parked


def test_parked_tasks_come_back_in_bounded_steps(pool: Pool) -> None:
    """A registration moves no parked task; each `assign` examines 500, also for a full agent, until none is left."""
    parked_key = f"{pool.keys.root}:parked:ed"
    lacking = park(pool, "c", 300)
    having = park(pool, "b", 900)
    before = pool.commands()
    pool.register(team=Team(skills=frozenset({"a"})), slots=1)
    usual = pool.commands() - before
    before = pool.commands()
    pool.register(team=Team(skills=frozenset({"a", "b"})), slots=1)
    assert pool.commands() - before < usual + 10
    assert pool.execute("ZCARD", parked_key) == 1200
    returned = []
    for left in (True, True, False):
        assert pool.assign().left is left
        returned.append(1200 - pool.execute("ZCARD", parked_key))
    assert returned == [200, 700, 900]
    assert pool.members(parked_key) == lacking
    assert [one.task_id for one in pool.read()] == having[:1]
    assert pool.queue("agent:ed") == having[1:]
    assert pool.execute("SMEMBERS", pool.keys.queues) == [b"agent:ed"]


def test_parked_tasks_are_found_although_others_leave_meanwhile(pool: Pool) -> None:
    """The search begins anew when the task that it continues behind is gone, or when the skills change again."""
    parked_key = f"{pool.keys.root}:parked:ed"
    lacking = park(pool, "c", 500)
    having = park(pool, "b", 600)
    pool.register(team=Team(skills=frozenset({"a", "b"})), slots=1)
    assert pool.assign().left
    assert pool.execute("ZCARD", parked_key) == 1100
    pool.cancel(lacking[-1])
    assert pool.assign().left
    assert pool.execute("ZCARD", parked_key) == 1098
    pool.register(team=Team(skills=frozenset({"a", "b", "c"})), slots=1)
    while pool.assign().left:
        pass
    assert pool.execute("EXISTS", parked_key) == 0
    assert [one.task_id for one in pool.read()] == having[:1]
    assert pool.queue("agent:ed") == [*lacking[:-1], *having[1:]]


class TestMark:
    """Whoever left tasks behind for want of room is marked; freeing room of a marked agent rings (protocol rule 6)."""

    def test_unmarked_agents_never_ring(self, pool: Pool) -> None:
        """Nothing was left behind, so nobody is told of new room."""
        pool.register(slots=2)
        pool.put(row(), row())
        pool.assign()
        pool.notifications()
        for delivery in pool.read():
            pool.end(delivery)
        assert pool.notifications() == []

    @pytest.mark.parametrize("blocked", [False, True])
    def test_without_backlog_at_once(self, pool: Pool, *, blocked: bool) -> None:
        """With backlog 0 the first free slot rings, once; a full inbox is marked too when new work comes."""
        pool.register(slots=3)
        pool.put(*[row() for _ in range(3 if blocked else 4)])
        assert pool.assign() == Assigned(3, left=False, wait_us=0)
        if blocked:
            pool.put()
            assert pool.assign() == NOTHING
        deliveries = pool.read()
        pool.notifications()
        pool.end(deliveries[0])
        assert pool.notifications() == ["agent:ed"]
        pool.end(deliveries[1])
        assert pool.notifications() == []

    @pytest.mark.parametrize(("slots", "ring_at"), [(1, 1), (2, 2), (3, 4), (4, 5)])
    def test_with_backlog_below_half(self, pool: Pool, slots: int, ring_at: int) -> None:
        """With backlog 1 it rings when the entries fall below the slots plus half the backlog, and not before."""
        pool.register(slots=slots, backlog=1)
        pool.put(*[row() for _ in range(2 * slots + 1)])
        pool.assign()
        pool.notifications()
        rang = []
        for delivery in pool.read():
            pool.end(delivery)
            rang += [pool.inbox_length()] * len(pool.notifications())
        assert rang == [ring_at]

    def test_every_way_out_rings(self, pool: Pool) -> None:
        """Giving back, cancelling an unread task and abandoning free room as finishing does."""
        pool.register(slots=3)
        pool.put(*[row() for _ in range(10)])
        pool.assign()
        first, _ = pool.read(limit=2)
        unread = pool.execute("XRANGE", pool.keys.inbox("ed"), f"({first.entry}", "+")[1][1][1].decode()
        pool.notifications()
        pool.end(first, VerdictKind.REQUEUE)
        assert "agent:ed" in pool.notifications()
        pool.assign()
        pool.cancel(unread)
        assert pool.notifications() == ["agent:ed"]
        pool.assign()
        pool.abandon("w1")
        assert "agent:ed" in pool.notifications()

    def test_tasks_left_by_a_call_are_no_want_of_room(self, pool: Pool) -> None:
        """What a bounded call leaves is told by `left`, not marked."""
        pool.register(slots=5)
        pool.put(*[row() for _ in range(5)])
        assert pool.assign(limit=2).left
        assert "mark" not in pool.agent()


def test_cost_does_not_grow(pool: Pool) -> None:
    """Assigning one task costs the same among many other queues, agents and tasks behind it."""

    def cost() -> int:
        before = pool.commands()
        assert pool.assign(limit=1).count == 1
        return pool.commands() - before

    pool.register()
    pool.put(row(), row())
    first = cost()
    pool.put(*[row(queue=f"skill:{i % 50}") for i in range(300)], *[row() for _ in range(200)])
    for i in range(30):
        pool.register(f"w{i}", Team(agent=f"a{i}"))
    assert cost() <= first


def _ok() -> Verdict:
    return Verdict(VerdictKind.SUCCEEDED, b"{}")
