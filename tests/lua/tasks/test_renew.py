"""lua/tasks/renew.lua: only what is still one's own is renewed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from orchestrator.tasks.model import LeaseStatus, VerdictKind
from tests.lua.pool import LEASE_MS, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

KEPT, LOST, CANCELLED = LeaseStatus.KEPT, LeaseStatus.LOST, LeaseStatus.CANCELLED


def test_no_inbox(pool: Pool) -> None:
    """Without an inbox nothing is pending and everything is lost."""
    pool.register()
    pool.put()
    delivery = pool.one()
    pool.execute("DEL", pool.keys.inbox("ed"))
    with pool.unchanged():
        assert pool.renew([delivery]) == (0, [LOST])


def test_kept(pool: Pool) -> None:
    """A renewed lease starts anew, without counting as another delivery; the number of pending entries is told."""
    pool.register()
    pool.put(row(), row(), row())
    first, second, _ = pool.deliver()
    pool.age(LEASE_MS + 1)
    with pool.unchanged():
        assert pool.renew([first, second]) == (3, [KEPT, KEPT])
    idle = {
        entry.decode(): ms
        for entry, _, ms, _ in pool.execute("XPENDING", pool.keys.inbox("ed"), "workers", "-", "+", 9)
    }
    assert [ms < 5000 for ms in idle.values()] == [True, True, False]


def test_lost(pool: Pool) -> None:
    """Another's entry, another generation, an ended task and an unknown one are lost; their leases are not touched."""
    pool.register()
    pool.put(row(), row(), row(), row())
    theirs, older, ended, fine = pool.deliver("w1")
    pool.execute("XCLAIM", pool.keys.inbox("ed"), "workers", "w2", 0, theirs.entry, "JUSTID")
    older = replace(older, generation=str(int(older.generation) - 1))
    pool.end(ended)
    unknown = replace(fine, task_id="gone")
    pool.age(LEASE_MS + 1)
    rows = [theirs, older, ended, unknown, replace(fine, entry="1-1"), fine]
    assert pool.renew(rows) == (2, [LOST, LOST, LOST, LOST, LOST, KEPT])
    idle = {
        entry.decode(): ms
        for entry, _, ms, _ in pool.execute("XPENDING", pool.keys.inbox("ed"), "workers", "-", "+", 9)
    }
    assert {entry for entry, ms in idle.items() if ms < 5000} == {fine.entry}


def test_lost_after_it_went_back(pool: Pool) -> None:
    """An attempt that gave its task back holds nothing any more."""
    pool.register()
    pool.put()
    delivery = pool.one()
    pool.end(delivery, VerdictKind.RETRY)
    assert pool.renew([delivery]) == (0, [LOST])


@pytest.mark.parametrize("reason", ["because", ""])
def test_cancelled(pool: Pool, reason: str) -> None:
    """A task that somebody asked to stop is still renewed, and its worker hears of it, each time."""
    pool.register()
    pool.put()
    delivery = pool.one()
    pool.cancel(delivery.task_id, reason=reason)
    for _ in range(2):
        pool.age(LEASE_MS + 1)
        assert pool.renew([delivery]) == (1, [CANCELLED])
        assert pool.execute("XPENDING", pool.keys.inbox("ed"), "workers", "-", "+", 1)[0][2] < 5000


def test_pending_tells_of_lost_entries(pool: Pool) -> None:
    """More pending than held tells a worker that a read was lost on the way (protocol rule 9)."""
    pool.register()
    pool.put(row(), row())
    held, _ = pool.deliver()
    assert pool.renew([held])[0] == 2


def test_outlives_the_waiting_time(pool: Pool) -> None:
    """A task that is renewed does not vanish when the time runs out that it was allowed to wait; nor does its key."""
    pool.register()
    pool.put(row(idem="k", digest="d"), max_wait_s=60)
    delivery = pool.one()
    pool.renew([delivery])
    for key in (pool.keys.task(delivery.task_id), f"{pool.keys.root}:idem:k"):
        assert pool.ttl_s(key) == 86_400


def test_many(pool: Pool) -> None:
    """More than a thousand entries are renewed in one call."""
    pool.register(slots=1500)
    for _ in range(3):
        pool.put(*[row() for _ in range(500)])
    deliveries = pool.deliver(limit=1500)
    assert pool.renew(deliveries) == (1500, [KEPT] * 1500)


def test_cost_does_not_grow(pool: Pool) -> None:
    """Renewing one entry costs the same among many."""
    pool.register(slots=1000)
    pool.put(row(), *[row() for _ in range(300)])
    (mine,) = pool.deliver(limit=1)
    costs = []
    for _ in range(2):
        before = pool.commands()
        pool.renew([mine])
        costs.append(pool.commands() - before)
        pool.deliver("w2", limit=300)
    assert costs[1] <= costs[0]


def test_no_lifetime_is_shortened(pool: Pool) -> None:
    """A renewal gives record, key and output a day at least, and leaves them a longer time that they have."""
    pool.register()
    pool.put(row(idem="k", digest="d"))
    delivery = pool.one()
    pool.watch(delivery.task_id)
    keys = pool.keys
    names = [keys.task(delivery.task_id), f"{keys.root}:idem:k", keys.out(delivery.task_id)]
    for before_s, after_s in ((10, 86_400), (500_000, 500_000)):
        for name in names:
            pool.execute("EXPIRE", name, before_s)
        pool.renew([delivery])
        assert [pool.ttl_s(name) for name in names] == [after_s] * 3
