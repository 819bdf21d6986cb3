"""lua/tasks/adopt.lua: expired leases and own lost entries are handed over, once, with a new generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.rates import Rate
from orchestrator.store.calls import opaque
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.model import FinishStatus, LeaseStatus, VerdictKind
from tests.lua.pool import DEAD_TTL_S, LEASE_MS, Team, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def lose(pool: Pool, worker: str = "w1", count: int = 1) -> list[Delivery]:
    """Tasks whose worker has vanished for longer than a lease, seen by others all the while."""
    pool.register(worker, slots=500)
    pool.put(*[row(reply="c1") for _ in range(count)])
    deliveries = pool.deliver(worker, limit=count)
    pool.look()
    pool.age(LEASE_MS + 1)
    return deliveries


def lost_before(pool: Pool, delivery: Delivery, *, blamed: int) -> None:
    """Let the task of an attempt, which has begun, have died before: with two hosts, so often as the only suspect."""
    evidence = {"death:1": "1 d1 lease ran out", "death:2": "2 d2 lease ran out", "deaths": "2", "blamed": str(blamed)}
    fields = [part for field, value in evidence.items() if value != "0" for part in (field, value)]
    pool.execute("HSET", pool.keys.task(delivery.task_id), *fields)
    pool.begin(delivery)


def look_long_ago(pool: Pool) -> None:
    """Register a worker and let the last look at its inbox be an hour ago."""
    pool.register()
    pool.execute("HSET", pool.keys.agent("ed"), "looked", pool.now_ms - 3_600_000, "grace", 0)


def test_no_inbox(pool: Pool) -> None:
    """Without an inbox there is nothing to adopt and nothing changes."""
    with pool.unchanged():
        assert pool.adopt(own=True) == []


def test_takes_an_expired_lease(pool: Pool) -> None:
    """The next worker gets the very task with a new generation and one more attempt and death; the old one is out."""
    (lost,) = lose(pool)
    (taken,) = pool.adopt("w2")
    assert (taken.entry, taken.task_id, taken.envelope) == (lost.entry, lost.task_id, lost.envelope)
    assert int(taken.generation) > int(lost.generation)
    assert (taken.attempt, taken.deaths) == (2, 1)
    assert pool.pending() == [(lost.entry, "w2")]
    assert pool.task(lost.task_id)["death:1"] == f"{pool.now_ms} w1 lease ran out"
    assert pool.stats()["adopted"] == 1
    with pool.unchanged():
        assert pool.end(lost) == FinishStatus.STALE
        assert pool.renew([lost])[1] == [LeaseStatus.LOST]
    assert pool.end(taken) == FinishStatus.OK


def test_leaves_a_running_lease(pool: Pool) -> None:
    """A lease that has not run out is left alone."""
    lose(pool)
    pool.age(LEASE_MS - 500)
    assert pool.adopt("w2") == []


@pytest.mark.parametrize("damage", ["0", "7", "-1", "nan", "inf", "1e300", "x", ""])
def test_a_damaged_lease(pool: Pool, damage: str) -> None:
    """A running task is left alone, although the lease of its worker reads as 0; a lost one is taken in time."""
    lose(pool)
    pool.age(LEASE_MS - 500)
    pool.execute("HSET", pool.keys.leases("ed"), "w1", damage)
    assert pool.adopt("w2") == []
    pool.age(LEASE_MS + 1)
    pool.sleep(LEASE_MS / 5)
    assert len(pool.adopt("w2")) == 1


@pytest.mark.parametrize("field", ["looked", "grace", "shortest_lease_ms", "lease_ms"])
@pytest.mark.parametrize("damage", ["-1", "nan", "inf", "1e300", "x"])
def test_a_damaged_time(pool: Pool, field: str, damage: str) -> None:
    """It lengthens the wait by one lease at most."""
    lose(pool)
    pool.execute("HSET", pool.keys.agent("ed"), field, damage)
    taken = pool.adopt("w2")
    for _ in range(6):
        pool.sleep(LEASE_MS / 5)
        pool.age(2 * LEASE_MS)
        taken = taken or pool.adopt("w2")
    assert len(taken) == 1


def test_never_its_own_by_time(pool: Pool) -> None:
    """A worker never adopts what it has itself merely because the lease ran out: it may be running it."""
    (lost,) = lose(pool)
    assert pool.adopt("w1") == []
    assert pool.pending() == [(lost.entry, "w1")]


def test_own_lost(pool: Pool) -> None:
    """A worker gets what a broken connection swallowed, without a death; what it holds is left alone."""
    pool.register()
    pool.put(row(), row(), row())
    held, lost, also_lost = pool.deliver()
    taken = pool.adopt("w1", held=[held.entry], own=True)
    assert [delivery.task_id for delivery in taken] == [lost.task_id, also_lost.task_id]
    assert {(delivery.attempt, delivery.deaths) for delivery in taken} == {(1, 0)}
    assert pool.task(held.task_id)["gen"] == held.generation
    assert pool.end(lost) == FinishStatus.STALE
    assert [pool.end(delivery) for delivery in (held, *taken)] == [FinishStatus.OK] * 3


def test_own_lost_of_another(pool: Pool) -> None:
    """Own means own: the entries of another live worker stay where they are."""
    pool.register()
    pool.put()
    pool.one()
    before = pool.pending()
    pool.age(LEASE_MS + 1)
    assert pool.adopt("w2", own=True) == []
    assert pool.pending() == before


def test_repeat_of_a_lost_answer(pool: Pool) -> None:
    """When the answer is lost, the same call hands the same tasks over again, with a newer generation."""
    lose(pool)
    (first,) = pool.adopt("w2", own=True)
    (second,) = pool.adopt("w2", own=True)
    assert (second.task_id, second.deaths) == (first.task_id, 1)
    assert int(second.generation) > int(first.generation)
    assert pool.end(first) == FinishStatus.STALE


def test_held_entries_are_renewed(pool: Pool) -> None:
    """What the caller holds is renewed by the call, so that nobody adopts it meanwhile (protocol rule 9)."""
    held, other = lose(pool, count=2)
    pool.adopt("w1", held=[held.entry], limit=0)
    assert [delivery.entry for delivery in pool.adopt("w2")] == [other.entry]


def test_bounded(pool: Pool) -> None:
    """One call hands over at most `limit`; what had to stay is there for the next who asks, at once."""
    lost = lose(pool, count=5)
    assert len(pool.adopt("w2", limit=2)) == 2
    assert len(pool.adopt("w3", limit=2)) == 2
    assert len(pool.adopt("w4", limit=2)) == 1
    assert {consumer for _, consumer in pool.pending()} == {"w2", "w3", "w4"}
    assert len(pool.pending()) == len(lost)


def test_bounded_in_bytes(pool: Pool) -> None:
    """One call hands over at most about 1 MiB (protocol rule 17); the rest follows with the next call."""
    pool.register(slots=200)
    pool.put(*[row(envelope=opaque(b"x" * 16_000)) for _ in range(100)])
    pool.deliver()
    pool.look()
    pool.age(LEASE_MS + 1)
    assert [len(pool.adopt("w2")) for _ in range(3)] == [66, 34, 0]


def test_a_full_worker_leaves_the_look_to_others(pool: Pool) -> None:
    """A worker without a free slot takes nothing, and does not keep others from looking."""
    lose(pool)
    assert pool.adopt("w2", limit=0) == []
    assert len(pool.adopt("w3")) == 1


def test_one_look_in_a_tenth_of_a_lease(pool: Pool) -> None:
    """Many workers ask, one look in a tenth of a lease is enough."""
    lose(pool)
    pool.age(0)
    pool.adopt("w2")
    pool.age(LEASE_MS + 1)
    pool.sleep(LEASE_MS / 10 - 1)
    assert pool.adopt("w3") == []
    pool.sleep(1)
    assert len(pool.adopt("w3")) == 1


def test_survivors_that_look_in_turn_start_no_grace(pool: Pool) -> None:
    """Whatever the survivor's place between the dead worker's looks, the gap it leaves is no outage."""
    pool.register()
    pool.look()
    grace = pool.agent()["grace"]
    for behind in (0.05, 0.1, 0.15, 0.19):
        pool.adopt("dies", limit=0)
        pool.sleep(LEASE_MS * behind)
        for _ in range(3):
            pool.adopt("survives", limit=0)
            pool.sleep(LEASE_MS / 5)
    assert pool.agent()["grace"] == grace


class TestGrace:
    """After a gap in which nobody looked, holders get one lease to come back (protocol rule 10)."""

    def test_gap(self, pool: Pool) -> None:
        """A gap of more than a third of a lease starts a grace of one lease; after it the entries are taken."""
        lose(pool)
        pool.sleep(LEASE_MS / 3 + 1)
        assert pool.adopt("w2") == []
        for _ in range(4):
            pool.sleep(LEASE_MS / 5)
            assert pool.adopt("w2") == []
        pool.sleep(LEASE_MS / 5)
        assert len(pool.adopt("w2")) == 1

    def test_first_look(self, pool: Pool) -> None:
        """The first look ever is after a gap too."""
        pool.register()
        pool.put()
        pool.one()
        pool.age(LEASE_MS + 1)
        assert pool.adopt("w2") == []

    def test_an_inbox_without_entries_needs_no_look(self, pool: Pool) -> None:
        """A worker that was idle adopts the first entry in time: before it was added, nobody had anything to renew."""
        pool.set_server_time()
        look_long_ago(pool)
        pool.put()
        pool.one()
        pool.age(LEASE_MS + 1)
        pool.sleep(1000)
        assert len(pool.adopt("w2")) == 1

    def test_entries_need_looks(self, pool: Pool) -> None:
        """The oldest entry is older than a third of a lease and nobody looked: its holder gets its grace."""
        pool.set_server_time()
        look_long_ago(pool)
        pool.put()
        pool.one()
        pool.age(LEASE_MS + 1)
        pool.sleep(LEASE_MS / 3 + 1000)
        assert pool.adopt("w2") == []
        pool.sleep(LEASE_MS)
        assert len(pool.adopt("w2")) == 0, "that was a gap, too"
        pool.look()
        assert len(pool.adopt("w2")) == 1

    def test_the_id_of_an_entry_may_be_in_the_future(self, pool: Pool) -> None:
        """After a step of the clock back the id of an entry ends no grace."""
        pool.set_server_time()
        pool.sleep(-3_600_000)
        look_long_ago(pool)
        pool.put()
        pool.one()
        pool.age(LEASE_MS + 1)
        assert pool.adopt("w2") == []

    def test_clock_stepped_back(self, pool: Pool) -> None:
        """A clock that steps back starts a grace, and does not stop the looking until it has caught up."""
        lose(pool)
        pool.sleep(-3_600_000)
        assert pool.adopt("w2") == []
        taken = 0
        for _ in range(5):
            pool.sleep(LEASE_MS / 5)
            taken += len(pool.adopt("w2"))
        assert taken == 1

    def test_clock_stepped_forward(self, pool: Pool) -> None:
        """A clock that steps forward ages every entry at once; that is a gap, so holders may come back."""
        (lost,) = lose(pool)
        pool.sleep(3_600_000)
        assert pool.adopt("w2") == []
        assert pool.renew([lost])[1] == [LeaseStatus.KEPT]
        pool.look()
        assert pool.adopt("w2") == []

    def test_forward_and_back(self, pool: Pool) -> None:
        """A grace that began in a wrong future does not outlast one lease of the right time."""
        lose(pool)
        pool.sleep(3_600_000)
        pool.adopt("w2")
        pool.sleep(-3_600_000)
        pool.look("w2")
        assert len(pool.adopt("w2")) == 1

    def test_own_lost_needs_no_grace(self, pool: Pool) -> None:
        """A worker's own lost entries are its own at any time."""
        lose(pool)
        pool.sleep(3_600_000)
        assert len(pool.adopt("w1", own=True)) == 1


class TestDeaths:
    """What has died before is handled with care (protocol rule 8)."""

    def test_second_blamed_death_waits(self, pool: Pool) -> None:
        """From the second death alone on the task goes back through `scheduled`, after at most the back-off."""
        (lost,) = lose(pool)
        lost_before(pool, lost, blamed=1)
        pool.now_us = (pool.now_us or 0) + 123
        assert pool.adopt("w2") == []
        assert pool.task(lost.task_id).items() >= {"state": "scheduled", "deaths": "3", "blamed": "2"}.items()
        due = pool.score(pool.keys.scheduled, lost.task_id)
        assert due is not None
        assert 0 <= due - pool.now_ms < 1000
        assert (pool.pending(), pool.inbox_length()) == ([], 0)

    def test_jitter_parts_tasks_that_died_together(self, pool: Pool) -> None:
        """Tasks that a host was lost with, each alone in its process, do not come back in the same millisecond."""
        pool.register(slots=20)
        pool.put(*[row() for _ in range(20)])
        pool.assign()
        lost = [one for i in range(20) for one in pool.read(f"d{i}", limit=1)]
        for delivery in lost:
            lost_before(pool, delivery, blamed=2)
        pool.look()
        pool.age(LEASE_MS + 1)
        pool.adopt("w2", max_deaths={"sum": 9})
        dues = {pool.score(pool.keys.scheduled, delivery.task_id) for delivery in lost}
        assert len(dues) == 20
        assert max(due - pool.now_ms for due in dues if due) < 2000

    @pytest.mark.parametrize("addressed", [False, True])
    def test_too_many(self, pool: Pool, *, addressed: bool) -> None:
        """Too many deaths make a dead letter with the evidence of each; the skill's own number counts."""
        pool.register(slots=9)
        where: dict[str, Any] = {"queue": "agent:ed", "skill": "sum"} if addressed else {}
        pool.put(row(reply="c1", **where))
        delivery = pool.one()
        lost_before(pool, delivery, blamed=0)
        pool.look()
        pool.age(LEASE_MS + 1)
        assert pool.adopt("w2", max_deaths={"sum": 1, "other": 9}) == []
        assert pool.dead == [(delivery.task_id, "sum", 3, 3)]
        found = pool.task(delivery.task_id)
        assert found.items() >= {"state": "dead", "reason": "deaths", "deaths": "3"}.items()
        assert found["death:3"].endswith("w1 lease ran out")
        assert pool.members(pool.keys.dead) == [delivery.task_id]
        assert pool.ttl_s(pool.keys.task(delivery.task_id)) == DEAD_TTL_S
        assert pool.replies() == pool.events() == [(delivery.task_id, "d")]
        assert (pool.pending(), pool.inbox_length()) == ([], 0)

    def test_three_by_default(self, pool: Pool) -> None:
        """A skill that says nothing has three lives."""
        (lost,) = lose(pool)
        lost_before(pool, lost, blamed=2)
        pool.adopt("w2")
        assert pool.state(lost.task_id) == "dead"

    def test_a_lost_host_limits_no_task(self, pool: Pool) -> None:
        """Tasks of a lost host are handed on at once; those that lose another one just after it are suspects."""
        ids = [one.task_id for one in lose(pool, count=9)]
        taken = pool.adopt("w2")
        assert [(one.task_id, one.deaths, one.group) for one in taken] == [(id_, 1, None) for id_ in ids]
        pool.look()
        pool.age(LEASE_MS + 1)
        assert pool.adopt("w3") == []
        for id_ in ids:
            task = pool.task(id_)
            assert (task["state"], task["deaths"], task["group"]) == ("ready", "2", "2")
            assert "blamed" not in task

    def test_a_lost_host_after_a_crash_blames_no_task(self, pool: Pool) -> None:
        """A task that ran alone when its host was lost is not blamed, whatever crashes it saw; a further crash is."""
        (lost,) = lose(pool)
        pool.abandon("w1")
        assert pool.task(lost.task_id)["blamed"] == "1"
        pool.deliver("w2")
        pool.look()
        pool.age(LEASE_MS + 1)
        (taken,) = pool.adopt("w3")
        assert (taken.deaths, taken.group, pool.task(lost.task_id)["blamed"]) == (2, None, "1")
        pool.abandon("w3")
        assert pool.task(lost.task_id).items() >= {"blamed": "2", "group": "0"}.items()

    def test_own_lost_suspect(self, pool: Pool) -> None:
        """A suspect whose reply was lost comes with its group and its depth, without another death."""
        pool.register()
        pool.put(row(depth=3), row(depth=3))
        pool.deliver("dies")
        pool.abandon("dies")
        (lost,) = pool.deliver("w1", begin=False)
        (taken,) = pool.adopt("w1", own=True)
        assert (taken.task_id, taken.deaths, taken.group, taken.depth) == (lost.task_id, 1, 1, 3)
        assert (lost.group, lost.depth) == (1, 3)


def test_tells_whether_suspects_wait(pool: Pool) -> None:
    """The reply says it in either case, so that a worker that missed the note takes them."""
    pool.register()
    pool.put(row(), row())

    def waits() -> bool:
        call = task_scripts.adopt(
            pool.keys,
            worker="w1",
            agent="ed",
            lease_ms=LEASE_MS,
            held=[],
            limit=9,
            own=True,
            max_deaths={},
            dead_ttl_s=9,
        )
        return pool.call(call).suspects

    pool.deliver("dies")
    pool.abandon("dies")
    assert not waits()
    pool.assign()
    assert waits()
    pool.take_suspects("w2")
    pool.take_suspects("w3")
    assert not waits()


def test_unread_task_expires(pool: Pool) -> None:
    """A task whose read was lost expires when its `start_by` has passed."""
    pool.register()
    pool.put(row(start_by_ms=pool.now_ms + 10, reply="c1"))
    delivery = pool.one()
    pool.sleep(10)
    assert pool.adopt("w1", own=True) == []
    assert pool.state(delivery.task_id) == "expired"
    assert pool.replies() == [(delivery.task_id, "e")]


def test_a_task_that_a_worker_read_does_not_expire(pool: Pool) -> None:
    """A task that began in time continues after its `start_by` when its lease runs out."""
    pool.register()
    pool.put(row(start_by_ms=pool.now_ms + 1000))
    first = pool.one()
    pool.look()
    pool.age(LEASE_MS + 1)
    pool.sleep(1000)
    pool.look()
    (again,) = pool.adopt("w2")
    assert (again.task_id, again.attempt, again.deaths) == (first.task_id, 2, 1)
    assert "by" not in pool.task(first.task_id)


class TestLimits:
    """Adopting is a start: the same gate as at assign."""

    def test_a_start_takes_a_slot(self, pool: Pool) -> None:
        """An adopted task takes a slot of its own; the slot of the dead attempt stays used."""
        pool.register(team=Team(rate=Rate(2, 600_000_000)), slots=9)
        pool.put()
        delivery = pool.one()
        pool.look()
        pool.age(LEASE_MS + 1)
        (taken,) = pool.adopt("w2")
        grants = {f"{d.task_id}:{d.generation}" for d in (delivery, taken)}
        assert set(pool.members(pool.keys.limit("@ed"))) == grants

    def test_no_slot_no_start(self, pool: Pool) -> None:
        """Without a free slot the task goes back to the head of its queue with a new generation."""
        pool.register(team=Team(rate=Rate(1, 600_000_000)), slots=9)
        pool.put()
        delivery = pool.one()
        (waiting,) = pool.put()
        pool.look()
        pool.age(LEASE_MS + 1)
        pool.notifications()
        assert pool.adopt("w2") == []
        assert pool.queue() == [delivery.task_id, waiting]
        assert int(pool.task(delivery.task_id)["gen"]) > int(delivery.generation)
        assert (pool.pending(), pool.inbox_length()) == ([], 0)

    def test_own_lost_swaps_its_slot(self, pool: Pool) -> None:
        """A lost entry never started: its slot returns before the new start takes one, so a full limit does not bar."""
        pool.register(team=Team(rate=Rate(1, 600_000_000)), slots=9)
        pool.put()
        pool.one()
        (taken,) = pool.adopt("w1", own=True)
        assert pool.members(pool.keys.limit("@ed")) == [f"{taken.task_id}:{taken.generation}"]


def test_removes_what_is_no_attempt(pool: Pool) -> None:
    """Entries whose task is gone, ended, moved on, or that were deleted under way, are removed and change no task."""
    pool.register(slots=9)
    gone, ended, moved, deleted, elsewhere = ids = pool.put(row(), row(), row(), row(), row())
    by_id = {delivery.task_id: delivery for delivery in pool.deliver()}
    pool.execute("DEL", pool.keys.task(gone))
    pool.execute("HSET", pool.keys.task(ended), "state", "succeeded")
    pool.execute("HSET", pool.keys.task(moved), "at", "ed 1-1 5")
    pool.execute("XDEL", pool.keys.inbox("ed"), by_id[deleted].entry)
    pool.execute("HSET", pool.keys.task(elsewhere), "at", f"other {by_id[elsewhere].entry} 5")
    tasks = [pool.task(task_id) for task_id in ids]
    assert pool.adopt("w1", own=True) == []
    assert [pool.task(task_id) for task_id in ids] == tasks
    assert (pool.pending(), pool.inbox_length()) == ([], 0)


def test_large_envelope_stays_in_the_hash(pool: Pool) -> None:
    """As from assign, an envelope above 16 KiB does not travel."""
    pool.register()
    pool.put(row(envelope=opaque(b"x" * 20_000)))
    pool.one()
    (taken,) = pool.adopt("w1", own=True)
    assert taken.envelope == b""


def test_batch_of_500(pool: Pool) -> None:
    """A full batch of lost entries, beside a thousand held ones, fits into one call."""
    pool.register(slots=1500)
    for _ in range(3):
        pool.put(*[row(reply="c1") for _ in range(500)])
    deliveries = pool.deliver(limit=1500)
    taken = pool.adopt("w1", held=[delivery.entry for delivery in deliveries[:1000]], own=True, limit=500)
    assert [delivery.task_id for delivery in taken] == [delivery.task_id for delivery in deliveries[1000:]]


def test_keeps_the_record_alive(pool: Pool) -> None:
    """A task that is handed on outlives the time that it was allowed to wait."""
    pool.register()
    pool.put(row(idem="k", digest="d"), max_wait_s=60)
    delivery = pool.one()
    pool.adopt("w1", own=True)
    for key in (pool.keys.task(delivery.task_id), f"{pool.keys.root}:idem:k"):
        assert pool.ttl_s(key) > 86_000


def test_a_lost_record_stays_missing(pool: Pool) -> None:
    """A look makes no record of an agent that Redis lost, so that a glance finds the loss and the worker registers."""
    pool.register()
    pool.execute("DEL", pool.keys.agent("ed"))
    pool.adopt("w1")
    assert pool.execute("EXISTS", pool.keys.agent("ed")) == 0
    assert pool.glance("ed").again
    pool.register()
    pool.adopt("w1")
    assert pool.agent()["looked"] == str(pool.now_ms)
    assert pool.glance("ed").complete


def test_a_lost_record_starts_a_grace(pool: Pool) -> None:
    """Looks that cannot be stored take no expired entry; after the next registration every holder has one lease."""
    lose(pool)
    pool.execute("DEL", pool.keys.agent("ed"))
    for _ in range(10):
        assert pool.adopt("w2") == []
        pool.sleep(LEASE_MS / 5)
    pool.register("w2")
    for _ in range(5):
        assert pool.adopt("w2") == []
        pool.sleep(LEASE_MS / 5)
    assert len(pool.adopt("w2")) == 1


def test_a_lost_record_hides_the_shortest_lease(pool: Pool) -> None:
    """A holder with a shorter lease keeps its entry, which is too young to tell of a time without looks."""
    pool.set_server_time()
    pool.register(team=Team(lease_ms=LEASE_MS // 10))
    pool.put()
    pool.one()
    pool.execute("DEL", pool.keys.agent("ed"))
    pool.age(LEASE_MS // 10 + 1)
    pool.sleep(1000)
    assert pool.adopt("w2") == []


def test_generation_rises_when_the_clock_stepped_back(pool: Pool) -> None:
    """Generations never repeat, whatever the clock does (protocol rule 1)."""
    pool.register()
    pool.put()
    taken = pool.one()
    generations = [int(taken.generation)]
    for step in (-5000, 0, -1, 10_000, -20_000):
        pool.sleep(step)
        (taken,) = pool.adopt("w1", own=True)
        generations.append(int(taken.generation))
    pool.end(taken, VerdictKind.RETRY)
    generations.append(int(pool.task(taken.task_id)["gen"]))
    assert generations == sorted(set(generations))


def test_cost_does_not_grow(pool: Pool) -> None:
    """Taking over one task costs the same among many entries, agents and queues; the first one counts them once."""

    def cost() -> int:
        before = pool.commands()
        assert len(pool.adopt("w2", limit=1)) == 1
        return pool.commands() - before

    lose(pool, count=2)
    first = cost()
    for i in range(30):
        pool.register(f"w{i}", Team(agent=f"a{i}"))
    lose(pool, count=300)
    assert cost() > 300
    assert cost() <= first
