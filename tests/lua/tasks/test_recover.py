"""lua/tasks/recover.lua: what no worker of an agent will finish goes back to where it came from."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.agents.model import SkillTerms
from orchestrator.core.rates import parse_rate
from orchestrator.tasks.model import FinishStatus
from tests.helpers.waiting import wait_until
from tests.lua.pool import LEASE_MS, Pool, Team, row

pytestmark = pytest.mark.every_server

EVERY_MS = 5000
OVERDUE_MS = LEASE_MS + 2 * min(5000, LEASE_MS // 3)


def look(pool: Pool, *, times: int = 6) -> None:
    """Let the recoverer look for longer than a lease, so that no outage is suspected."""
    for _ in range(times):
        pool.recover(every_ms=EVERY_MS)
        pool.sleep(EVERY_MS)


def idle_ms(pool: Pool) -> dict[str, int]:
    """Return how long each consumer of the inbox is idle."""
    found = pool.execute("XINFO", "CONSUMERS", pool.keys.inbox("ed"), "workers")
    return {facts[1].decode(): facts[5] for facts in found}


def test_nothing_to_recover(pool: Pool) -> None:
    """Without an inbox, or with an empty one, nothing is given back."""
    with pool.unchanged():
        assert pool.recover() == (0, False)
    pool.register()
    assert pool.recover() == (0, False)


def test_unread_entries_of_an_agent_without_workers(pool: Pool) -> None:
    """They go back to their place at once, without a death, and their rate-limit slots return."""
    pool.register(team=Team(rate=parse_rate((2, timedelta(hours=1)))))
    first, second, third = pool.put(row(), row(), row())
    pool.assign()
    pool.deregister()
    assert pool.queue() == [third]
    assert pool.recover() == (2, False)
    assert pool.queue() == [first, second, third]
    assert pool.inbox_length() == 0
    assert pool.task(first).items() >= {"state": "ready"}.items()
    assert "deaths" not in pool.task(first)
    pool.register(team=Team(rate=parse_rate((2, timedelta(hours=1)))))
    assert len(pool.deliver()) == 2
    assert pool.stats()["recovered"] == 2


def test_an_idle_time_starts_no_grace(pool: Pool) -> None:
    """An empty inbox is not swept; as long as its workers look, its first tasks are recovered, and adopted, in time."""
    pool.register()
    pool.look()
    pool.put(row(), row())
    delivered = pool.deliver()
    pool.age(OVERDUE_MS + 1)
    assert pool.recover(every_ms=EVERY_MS) == (2, False)
    assert {pool.task(one.task_id)["deaths"] for one in delivered} == {"1"}
    pool.deliver("w2")
    pool.age(LEASE_MS + 1)
    assert len(pool.adopt("w3")) == 0, "both lost two hosts in a row, and wait for processes of their own"
    assert pool.pending() == []


def test_entries_of_live_workers_stay(pool: Pool) -> None:
    """What a live worker will read, and what is renewed, is left alone."""
    pool.register(slots=3)
    pool.put(row(), row(), row())
    pool.assign()
    pool.read("w1", limit=1)
    look(pool)
    assert pool.recover() == (0, False)
    assert pool.inbox_length() == 3


def test_overdue_entries(pool: Pool) -> None:
    """What nobody renewed for a lease and two heartbeats goes back with a death, although all live workers are full."""
    pool.register(slots=1)
    pool.put(row())
    (lost,) = pool.deliver()
    look(pool)
    pool.age(OVERDUE_MS - 1000)
    assert pool.recover() == (0, False)
    pool.age(OVERDUE_MS + 1)
    assert pool.recover() == (1, False)
    assert pool.queue() == [lost.task_id]
    assert pool.task(lost.task_id)["death:1"] == f"{pool.now_ms} w1 lease ran out"
    with pool.unchanged():
        assert pool.end(lost) == FinishStatus.STALE


def test_no_grace_is_forgotten(pool: Pool) -> None:
    """After a gap in looking everybody who holds something gets one lease to come back."""
    pool.register(slots=1)
    pool.put(row())
    pool.deliver()
    look(pool)
    pool.sleep(EVERY_MS + LEASE_MS)
    pool.age(10 * LEASE_MS)
    assert pool.recover(every_ms=EVERY_MS) == (0, False)
    pool.sleep(EVERY_MS)
    assert pool.recover(every_ms=EVERY_MS) == (0, False)
    pool.sleep(LEASE_MS)
    pool.recover(every_ms=LEASE_MS)
    assert pool.inbox_length() == 0


def test_a_lost_record_stays_missing(pool: Pool) -> None:
    """While workers are listed, `recover` makes no lost record: a glance finds the loss, and nothing is taken."""
    pool.register()
    pool.put(row())
    pool.one()
    pool.execute("DEL", pool.keys.agent("ed"))
    pool.age(OVERDUE_MS + 1)
    look(pool)
    assert pool.execute("EXISTS", pool.keys.agent("ed")) == 0
    assert len(pool.pending()) == 1
    assert pool.glance("ed").again
    pool.register()
    look(pool, times=3)
    assert len(pool.pending()) == 1
    look(pool, times=3)
    assert pool.pending() == []


def test_a_lost_record_hides_the_shortest_lease(pool: Pool) -> None:
    """A holder with a short lease keeps its entry, which is too young to tell of a time without looks."""
    pool.set_server_time()
    pool.register(team=Team(lease_ms=LEASE_MS // 10))
    pool.put(row())
    pool.one()
    pool.execute("DEL", pool.keys.agent("ed"))
    pool.age(OVERDUE_MS)
    pool.sleep(1000)
    pool.recover(every_ms=EVERY_MS)
    assert len(pool.pending()) == 1


def test_entries_of_an_agent_without_record_and_workers(pool: Pool) -> None:
    """Without workers no registration restores the record: `recover` makes it, and takes entries back after a grace."""
    pool.register()
    pool.put(row())
    pool.one()
    pool.execute("DEL", pool.keys.agent("ed"))
    pool.deregister()
    pool.age(OVERDUE_MS + 1)
    look(pool, times=3)
    assert len(pool.pending()) == 1
    look(pool, times=3)
    assert pool.pending() == []
    assert pool.ttl_s(pool.keys.agent("ed")) > 0


def test_the_terms_of_the_agent_end_a_task(pool: Pool) -> None:
    """The agent's own terms say how many deaths are too many."""
    pool.register(slots=2, team=Team(terms=(("sum", SkillTerms(3, 1)),)))
    (id_,) = pool.put(row())
    pool.execute("HSET", pool.keys.task(id_), "deaths", 1, "death:1", f"{pool.now_ms} w0 lease ran out")
    pool.one()
    look(pool)
    pool.age(OVERDUE_MS + 1)
    assert pool.recover()[0] == 0
    assert pool.dead == [(id_, "sum", 2, 2)]
    assert pool.queue() == []
    death = f"{pool.now_ms} w1 lease ran out"
    assert pool.task(id_).items() >= {"state": "dead", "reason": "deaths", "death:2": death}.items()


def test_deaths_name_each_other(pool: Pool) -> None:
    """Those that died together are named, and none of them is blamed or limited for a host that was lost."""
    pool.register(slots=2, team=Team(terms=(("sum", SkillTerms(3, 1)),)))
    pool.put(row(), row())
    one, other = pool.deliver()
    look(pool)
    pool.age(OVERDUE_MS + 1)
    assert pool.recover() == (2, False)
    for mine, theirs in ((one, other), (other, one)):
        task, death = pool.task(mine.task_id), f"{pool.now_ms} w1 lease ran out, with {theirs.task_id}"
        assert task.items() >= {"state": "ready", "deaths": "1", "death:1": death}.items()
        assert not {"blamed", "group"} & set(task)


def test_unread_entries_that_others_could_take(pool: Pool) -> None:
    """They go back after a second when all slots are taken and another agent has the skill; else they wait."""
    pool.register(slots=1, backlog=1)
    first, second = pool.put(row(), row())
    pool.assign()
    pool.read("w1", limit=1)
    pool.sleep(1500)
    assert pool.recover() == (0, False)
    pool.register("w2", Team(agent="other"), slots=1)
    assert pool.recover() == (1, False)
    assert pool.queue() == [second]
    assert pool.task(first)["state"] == "assigned"
    pool.sleep(500)


def test_unread_entries_past_their_start_by_end(pool: Pool) -> None:
    """What is assigned but unread, and may not start any more, expires while all slots are taken."""
    pool.register(slots=1, backlog=1)
    pool.put(row())
    (late,) = pool.put(row(start_by_ms=pool.now_ms + 2000))
    pool.assign()
    pool.read("w1", limit=1)
    pool.sleep(1000)
    assert pool.recover() == (0, False)
    pool.sleep(1500)
    assert pool.recover() == (0, False)
    assert pool.task(late).items() >= {"state": "expired", "reason": "did not start in time"}.items()
    assert pool.inbox_length() == 1


def test_unread_entries_must_still_start_in_time(pool: Pool) -> None:
    """A task that goes back unread is indexed by its `start_by` again."""
    pool.register()
    (task_id,) = pool.put(row(start_by_ms=pool.now_ms + 100_000))
    pool.assign()
    pool.deregister()
    assert pool.recover() == (1, False)
    assert pool.members(f"{pool.keys.root}:expiring") == [task_id]


def test_entries_of_no_attempt_are_removed(pool: Pool) -> None:
    """An entry whose task is gone is taken out, and nothing else happens."""
    pool.register()
    (gone,) = pool.put()
    pool.assign()
    pool.deregister()
    pool.execute("DEL", pool.keys.task(gone))
    assert pool.recover() == (0, False)
    assert pool.inbox_length() == 0


def test_a_lost_group_is_made_again(pool: Pool) -> None:
    """A stream without its group is read from its beginning."""
    pool.register()
    (waiting,) = pool.put()
    pool.assign()
    pool.deregister()
    pool.execute("XGROUP", "DESTROY", pool.keys.inbox("ed"), "workers")
    assert pool.recover() == (1, False)
    assert pool.queue() == [waiting]
    pool.register()
    pool.assign()
    pool.execute("XGROUP", "DESTROY", pool.keys.inbox("ed"), "workers")
    assert pool.recover() == (0, False)
    assert [delivery.task_id for delivery in pool.read()] == [waiting]


def test_bounded(pool: Pool) -> None:
    """One call takes `limit` entries and says that there may be more."""
    pool.register(slots=10)
    pool.put(*[row() for _ in range(10)])
    pool.assign()
    pool.deregister()
    assert pool.recover(limit=4) == (4, True)
    assert pool.recover(limit=4) == (4, True)
    assert pool.recover(limit=4) == (2, False)


def test_cleans_consumers(pool: Pool) -> None:
    """A consumer that is not in the registry goes when it holds nothing, and stays while it does."""

    def consumers() -> set[str]:
        return {facts[1].decode() for facts in pool.execute("XINFO", "CONSUMERS", pool.keys.inbox("ed"), "workers")}

    pool.register(team=Team(lease_ms=1000))  # idle times follow the real clock
    pool.put(row())
    pool.assign()
    for stranger in ("ghost", "gone"):
        pool.read(stranger, limit=1)
    pool.read("w1", limit=1)
    wait_until(
        lambda: pool.recover(clean=True) == (0, False) and consumers() - {"w1"} == {"ghost"},
        lambda: f"gone to go: {consumers()}",
    )


def test_forgets_the_lease_of_a_worker_whose_entries_it_takes(pool: Pool) -> None:
    """A worker that died with entries leaves its lease, which goes with them: it would lengthen every later grace."""
    pool.register("dead", team=Team(lease_ms=1000))  # idle times follow the real clock
    pool.register()
    pool.put(row())
    pool.assign()
    pool.read("dead", limit=1)
    pool.deregister("dead")
    leases = pool.keys.leases("ed")
    assert pool.execute("HEXISTS", leases, "dead") == 1
    look(pool)
    pool.age(OVERDUE_MS + 1)
    wait_until(lambda: idle_ms(pool)["dead"] > 1010, lambda: f"the dead one to be idle: {idle_ms(pool)}")
    assert pool.recover()[0] == 1
    assert pool.execute("HKEYS", leases) == [b"w1"]


def test_leaves_consumers_of_the_registry(pool: Pool) -> None:
    """The consumer of a registered worker stays, however long it is idle: its blocked read may take an entry."""
    pool.register(team=Team(lease_ms=50))  # idle times follow the real clock
    for worker in ("w1", "ghost"):
        pool.execute("XGROUP", "CREATECONSUMER", pool.keys.inbox("ed"), "workers", worker)
    wait_until(lambda: min(idle_ms(pool).values()) > 1010, lambda: f"both to be idle: {idle_ms(pool)}")
    pool.recover(clean=True)
    assert set(idle_ms(pool)) == {"w1"}


def test_repeat(pool: Pool) -> None:
    """A second call finds nothing more."""
    pool.register()
    pool.put(row())
    pool.assign()
    pool.deregister()
    pool.recover()
    assert pool.recover() == (0, False)
    assert len(pool.queue()) == 1
