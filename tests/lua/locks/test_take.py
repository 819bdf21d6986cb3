"""`locks/take`, `renew`, `drop` and `look` of named locks: statuses, guards, repeats, lost tokens, lifetimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.locks.model import new_nonce
from tests.lua.keyspace import without_lifetime
from tests.lua.scope import HELD, TAKEN, TTL_MS, Scope, task_id

if TYPE_CHECKING:
    from orchestrator.locks.model import TakeReply

pytestmark = pytest.mark.every_server


def test_one_of_two_gets_it(scope: Scope) -> None:
    """A free lock is taken; the second caller hears who has it and for how long, and changes nothing."""
    first = scope.take(owner="ann: x:y")
    before = scope.snapshot()
    second = scope.take(owner="bob")
    assert (first.status, second.status) == (TAKEN, HELD)
    assert second.value == first.value
    assert second.value.endswith(":ann: x:y")
    assert 0 < second.left_ms <= TTL_MS
    assert scope.snapshot() == before


def test_repeat_is_the_same_ownership(scope: Scope) -> None:
    """A call whose answer was lost is sent again: the same fence, and the whole time."""
    nonce = new_nonce()
    first = scope.take(nonce=nonce, ttl_ms=500)
    again = scope.take(nonce=nonce, ttl_ms=TTL_MS)
    assert again == first
    assert scope.left_ms("lock:n") > 500


def test_fences_rise(scope: Scope) -> None:
    """Each ownership has a higher number than all before it, at least the server's time in microseconds."""
    fences = []
    for _ in range(5):
        nonce = new_nonce()
        fences.append(int(scope.take(nonce=nonce).value.split(":")[0]))
        scope.drop("lock:n", nonce)
    assert fences == [scope.now_us + 1 + number for number in range(5)]


def test_fence_survives_its_counter(scope: Scope) -> None:
    """A counter that was lost begins at the time, so above all that it ever gave out; a clock set back is no matter."""
    nonce = new_nonce()
    first = int(scope.take(nonce=nonce).value.split(":")[0])
    scope.drop("lock:n", nonce)
    scope.sleep(-60_000)
    nonce = new_nonce()
    second = int(scope.take(nonce=nonce).value.split(":")[0])
    scope.drop("lock:n", nonce)
    scope.store.execute("DEL", scope.keys.key("fence"))
    scope.sleep(61_000)
    third = int(scope.take().value.split(":")[0])
    assert first < second < third


def test_release_is_checked(scope: Scope) -> None:
    """Only the owner releases; a second release, or one after the lock lapsed and is another's, changes nothing."""
    mine, other = new_nonce(), new_nonce()
    scope.take(nonce=mine)
    assert not scope.drop("lock:n", other)
    assert scope.drop("lock:n", mine)
    assert not scope.drop("lock:n", mine)
    scope.take(nonce=mine)
    scope.lapse("lock:n")
    taken = scope.take(nonce=other)
    before = scope.snapshot()
    assert not scope.drop("lock:n", mine)
    assert scope.snapshot() == before
    assert scope.peek("lock:n")[0].fence == int(taken.value.split(":")[0])


def test_release_leaves_only_the_counter(scope: Scope) -> None:
    """Taken and released: nothing is left but the scope's counter of fences."""
    nonce = new_nonce()
    scope.take(nonce=nonce)
    scope.drop("lock:n", nonce)
    assert scope.names() == [scope.keys.key("fence")]


def test_renewal_is_checked(scope: Scope) -> None:
    """The owner's whole value is compared: another's lock, and one that has lapsed, is lost; it is not taken again."""
    taken = scope.take(ttl_ms=500)
    assert scope.renew("lock:n", taken.value) == (True, taken.value)
    assert scope.left_ms("lock:n") > 500
    scope.lapse("lock:n")
    assert scope.renew("lock:n", taken.value) == (False, "")
    other = scope.take()
    assert scope.renew("lock:n", taken.value) == (False, other.value)


def test_released_lock_is_kept_for_those_who_wait(scope: Scope) -> None:
    """With somebody waiting, a released lock goes to who has the token and to nobody else, release after release."""
    first, second, third = new_nonce(), new_nonce(), new_nonce()
    scope.take(nonce=first)
    assert scope.take(nonce=second, wait_ms=5000).status == HELD
    assert scope.take(nonce=third, wait_ms=5000).status == HELD
    assert scope.peek("lock:n")[0].waiting == 2
    assert scope.drop("lock:n", first)
    newcomer = scope.take()
    assert (newcomer.status, newcomer.value) == (HELD, "next")
    assert scope.token("lock:n")
    assert not scope.token("lock:n")
    assert scope.take(nonce=second, wait_ms=5000, woken=True).status == TAKEN
    assert scope.drop("lock:n", second)
    assert scope.token("lock:n")
    assert scope.take(nonce=third, wait_ms=5000, woken=True).status == TAKEN
    assert scope.drop("lock:n", third)
    assert scope.names() == [scope.keys.key("fence")]


def test_lost_token_costs_half_a_second(scope: Scope) -> None:
    """A token that went to a waiter that died: the lock is kept for it for half a second, then free for any."""
    first, second = new_nonce(), new_nonce()
    scope.take(nonce=first)
    scope.take(nonce=second, wait_ms=5000)
    scope.drop("lock:n", first)
    assert scope.token("lock:n")
    assert 0 < scope.left_ms("lock:n") <= 500
    scope.lapse("lock:n")
    assert scope.take(nonce=second, wait_ms=5000).status == TAKEN


def test_leaving_passes_the_token_on(scope: Scope) -> None:
    """A waiter that gives up with the token in its hands hands it on; the last one that leaves leaves nothing."""
    first, second, third = new_nonce(), new_nonce(), new_nonce()
    scope.take(nonce=first)
    scope.take(nonce=second, wait_ms=5000)
    scope.take(nonce=third, wait_ms=5000)
    scope.drop("lock:n", first)
    assert scope.token("lock:n")
    assert not scope.drop("lock:n", second)
    assert scope.token("lock:n")
    assert not scope.drop("lock:n", third)
    assert scope.names() == [name for name in scope.names() if name.endswith(":fence")]


def test_waiters_that_died_keep_nobody_out(scope: Scope) -> None:
    """Nobody is waited for beyond the time that it said it would wait."""
    first = new_nonce()
    scope.take(nonce=first)
    scope.take(wait_ms=5000)
    scope.sleep(5001)
    scope.drop("lock:n", first)
    assert scope.take().status == TAKEN


def test_look_lists_live_locks(scope: Scope) -> None:
    """All locks of a scope with holder, fence, time left; lapsed ones are not shown, and leave a long list."""
    scope.take("lock:a%20b", owner="ann")
    taken = scope.take("lock:c", owner="bob")
    scope.lapse("lock:a%20b")
    (seen,) = scope.peek()
    assert (seen.name, seen.holder, seen.task) == ("c", "bob", None)
    assert seen.fence == int(taken.value.split(":")[0])
    assert scope.peek("lock:a%20b") == []
    for number in range(40):
        scope.take(f"lock:x{number}")
    scope.sleep(TTL_MS + 61_000)
    scope.take("lock:d")
    assert scope.store.execute("ZRANGE", scope.keys.key("locks"), 0, -1) == [b"lock:d"]


def test_everything_goes_away(scope: Scope) -> None:
    """Every key of a lock has a time to live, whatever state it is in."""
    first = new_nonce()
    scope.take(nonce=first)
    scope.take(wait_ms=5000)
    assert without_lifetime(scope.link, scope.keys.prefix) == []
    scope.drop("lock:n", first)
    assert without_lifetime(scope.link, scope.keys.prefix) == []
    assert {name.partition("}:")[2] for name in scope.names()} == {
        "fence", "lock:n", "lock:n:waiters", "lock:n:wake", "locks"
    }  # fmt: skip


def test_a_short_wait_leaves_a_long_one(scope: Scope) -> None:
    """A waiter with little patience does not shorten the registration of one with more."""
    scope.take()
    for wait_ms in (90_000, 1_000):
        scope.take(wait_ms=wait_ms)
    assert 149_000 < scope.left_ms("lock:n:waiters") <= 150_000
    scope.take(wait_ms=120_000)
    assert 179_000 < scope.left_ms("lock:n:waiters") <= 180_000


def test_lifetimes_beside_the_lock(scope: Scope) -> None:
    """The counter of fences lives for 30 days, the list of locks for a day, the token of a waiter for 5 s."""
    holder = new_nonce()
    scope.take(nonce=holder)
    scope.take(wait_ms=1_000)
    scope.drop("lock:n", holder)
    day_ms = 86_400_000
    for suffix, lifetime_ms in (("fence", 30 * day_ms), ("locks", day_ms), ("lock:n:wake", 5_000)):
        assert lifetime_ms - 2_000 < scope.left_ms(suffix) <= lifetime_ms, suffix


@pytest.mark.parametrize("lock", ["lock:n", "exec"])
def test_a_waiter_that_takes_its_turn_waits_no_more(scope: Scope, lock: str) -> None:
    """It leaves neither its registration nor a token, so that its own release frees the lock at once."""
    holder, waiter, tasks = new_nonce(), new_nonce(), (task_id(), task_id())

    def ask(nonce: str, task: str, **options: Any) -> TakeReply:
        return (
            scope.take(lock, nonce, **options) if lock == "lock:n" else scope.claim(lock, task, nonce=nonce, **options)
        )

    ask(holder, tasks[0])
    assert ask(waiter, tasks[1], wait_ms=5_000).status == HELD
    scope.drop(lock, holder)
    assert ask(waiter, tasks[1], wait_ms=5_000, woken=True).status == TAKEN
    left = {name.rpartition("}:")[2] for name in scope.names()}
    assert left.isdisjoint({f"{lock}:waiters", f"{lock}:wake"})
    # The same request again renews the lock and lists it.
    scope.store.execute("PEXPIRE", scope.keys.key(lock), 1_000)
    scope.store.execute("DEL", scope.keys.key("locks"))
    assert ask(waiter, tasks[1]).status == TAKEN
    assert scope.left_ms(lock) > 50_000
    assert scope.store.execute("ZRANGE", scope.keys.key("locks"), 0, -1) == [lock.encode()]
    scope.drop(lock, waiter)
    assert scope.store.execute("EXISTS", scope.keys.key(lock)) == 0
