"""Workers of one agent with different leases and heartbeats: each is judged by its own (protocol rule 10)."""

from __future__ import annotations

import pytest

from tests.helpers.waiting import wait_until
from tests.lua.pool import LEASE_MS, Pool, Team

pytestmark = pytest.mark.every_server

SHORT_MS = 1000
SHORT = Team(lease_ms=SHORT_MS)


def upgrade(pool: Pool, *, shortens: bool) -> None:
    """An old worker `w1` has five tasks; then `w2` registers with a shorter or longer lease."""
    pool.register("w1", None if shortens else SHORT)
    pool.put()
    for _ in range(4):
        pool.put()
    pool.assign()
    pool.read("w1")
    pool.register("w2", SHORT if shortens else None)
    settle(pool)


def settle(pool: Pool) -> None:
    """Let live workers look into the inbox until no grace period is left."""
    for _ in range(2 * LEASE_MS * 5 // SHORT_MS):
        pool.adopt("watch", limit=0, lease_ms=SHORT_MS)
        pool.sleep(SHORT_MS / 5)


@pytest.mark.parametrize("shortens", [True, False])
def test_each_worker_keeps_its_lease(pool: Pool, *, shortens: bool) -> None:
    """No task is taken before the lease of its worker is over, whoever looks; afterwards all are."""
    upgrade(pool, shortens=shortens)
    own_ms, other_ms = (LEASE_MS, SHORT_MS) if shortens else (SHORT_MS, LEASE_MS)
    pool.age(own_ms - 500)
    assert pool.adopt("w2", lease_ms=other_ms) == []
    assert pool.recover() == (0, False)
    pool.age(own_ms)
    pool.sleep(other_ms / 5)
    if shortens:
        assert len(pool.adopt("w2", lease_ms=other_ms)) == 5
    else:
        pool.age(2 * own_ms)
        assert pool.recover() == (5, False)


def test_a_worker_that_was_forgotten_keeps_its_lease(pool: Pool) -> None:
    """Its lease stays as long as it has entries, and goes with its consumer."""
    pool.register("w1", alive_s=2)
    pool.put()
    pool.one("w1")
    pool.sleep(3000)
    pool.register("w2", SHORT)
    assert pool.expire() == ["w1"]
    settle(pool)
    pool.age(LEASE_MS - 500)
    assert pool.adopt("w2", lease_ms=SHORT_MS) == []
    pool.age(LEASE_MS)
    pool.sleep(SHORT_MS / 5)
    assert len(pool.adopt("w2", lease_ms=SHORT_MS)) == 1
    pool.execute("HSET", pool.keys.leases("ed"), "w1", 1000)  # its idle time follows the real clock

    def leases() -> list[bytes]:
        pool.recover(clean=True)
        return list(pool.execute("HKEYS", pool.keys.leases("ed")))

    wait_until(lambda: leases() == [b"w2"], "the consumer to go with its lease")


def test_many_entries_with_longer_leases(pool: Pool) -> None:
    """They do not hide an entry whose lease is over."""
    pool.register("w1", slots=700)
    pool.register("gone", SHORT, slots=1)
    for _ in range(650):
        pool.put()
    while pool.assign().left:
        pass
    pool.read("w1", limit=649)
    pool.read("gone", limit=1)
    pool.register("w2", SHORT)
    settle(pool)
    pool.age(SHORT_MS + 500)
    assert len(pool.adopt("w2", lease_ms=SHORT_MS)) == 1


def test_an_outage_is_one_longest_lease_of_grace(pool: Pool) -> None:
    """After a gap, a worker with a short lease waits as long as one with a long lease may need to renew."""
    upgrade(pool, shortens=True)
    pool.sleep(60_000)
    pool.age(60_000)
    assert pool.adopt("w2", lease_ms=SHORT_MS) == []
    pool.sleep(SHORT_MS + 200)
    assert pool.adopt("w2", lease_ms=SHORT_MS) == []


def test_each_worker_is_alive_by_its_own_heartbeat(pool: Pool) -> None:
    """A worker with a longer heartbeat than the supervisor's is not forgotten, one with a shorter one in its time."""
    pool.register("slow", alive_s=120)
    pool.register("fast", alive_s=4)
    pool.sleep(5000)
    assert pool.expire(alive_s=20) == ["fast"]
    pool.sleep(100_000)
    assert pool.expire(alive_s=20) == []
    pool.sleep(20_000)
    assert pool.expire(alive_s=20) == ["slow"]
