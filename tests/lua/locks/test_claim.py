"""`locks/claim`, `renew`, `free` and `await_for` of execution locks: generations, take-over, lapses, deadlocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from orchestrator.core.settings import WorkspaceSettings
from orchestrator.locks import scripts
from orchestrator.locks.fenced_writer import CallerRow
from orchestrator.locks.model import LockProof, execution_of, new_nonce
from orchestrator.workspace.scripts import ChangeCall, clear, pack_limits
from tests.lua.keyspace import without_lifetime
from tests.lua.scope import AWAITED, FENCED, FREE, HELD, TAKEN, TTL_MS, Scope, task_id

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.every_server


def test_value(scope: Scope) -> None:
    """The lock holds fence, task, generation and nonce; an equal one is a repeat and is granted."""
    task, nonce = task_id(), new_nonce()
    taken = scope.claim(f"exec:{task}", task, "10", nonce)
    assert taken.value == f"{scope.now_us + 1}:{task}:10:{nonce}"
    assert execution_of(taken.value) == (task, "10")
    assert scope.claim(f"exec:{task}", task, "10", nonce) == taken


@pytest.mark.parametrize("mode", ["exec", "exec:TASK"])
def test_higher_generation_takes_over(scope: Scope, mode: str) -> None:
    """The next attempt gets the lock at once, with a higher fence; what the old one holds is worth nothing."""
    task = task_id()
    lock = mode.replace("TASK", task)
    old = scope.claim(lock, task, "10")
    new = scope.claim(lock, task, "11")
    assert new.status == TAKEN
    assert int(new.value.split(":")[0]) > int(old.value.split(":")[0])
    assert scope.renew(lock, old.value) == (False, new.value)
    assert not scope.drop(lock, old.value.split(":")[3])


@pytest.mark.parametrize("after", ["while it is held", "after a release", "after it lapsed"])
def test_lower_generation_is_refused(scope: Scope, after: str) -> None:
    """An attempt that was overtaken never gets the lock again, also when nobody has it; nothing changes."""
    task, nonce = task_id(), new_nonce()
    lock = f"exec:{task}"
    scope.claim(lock, task, "100", nonce)
    if after == "after a release":
        assert scope.drop(lock, nonce)
    elif after == "after it lapsed":
        scope.lapse(lock)
    before = scope.snapshot()
    assert scope.claim(lock, task, "99").status == FENCED
    assert scope.snapshot() == before


def test_generations_compare_as_numbers(scope: Scope) -> None:
    """Generation 9 is lower than 10."""
    task = task_id()
    scope.claim(f"exec:{task}", task, "10")
    assert scope.claim(f"exec:{task}", task, "9").status == FENCED


def test_same_generation_of_another_process_is_refused(scope: Scope) -> None:
    """One generation has one owner: another nonce with it is refused while the first one has the lock."""
    task = task_id()
    scope.claim(f"exec:{task}", task, "10")
    assert scope.claim(f"exec:{task}", task, "10").status == FENCED


def test_lapsed_lock_is_taken_again(scope: Scope) -> None:
    """After an outage the owner gets its lock back with the same fence, as long as nobody has had it."""
    task = task_id()
    taken = scope.claim("exec", task, "10")
    scope.lapse("exec")
    assert scope.renew("exec", taken.value) == (True, taken.value)
    assert 0 < scope.left_ms("exec") <= TTL_MS


def test_lapsed_lock_that_somebody_had_is_lost(scope: Scope) -> None:
    """Twin: another task had it meanwhile, and has gone: the old owner does not get it back."""
    task, nonce = task_id(), new_nonce()
    taken = scope.claim("exec", task, "10")
    scope.lapse("exec")
    scope.claim("exec", task_id(), "5", nonce)
    assert scope.drop("exec", nonce)
    assert scope.renew("exec", taken.value) == (False, "")


def test_lapsed_lock_that_excluded_nothing_is_lost(scope: Scope) -> None:
    """Another owner changed the scope after the lock lapsed: its holder had the scope no longer alone, and is told."""
    holder, other = task_id(), task_id()
    taken = scope.claim("exec", holder)
    caller = CallerRow("op", f"exec:{other}", scope.claim(f"exec:{other}", other).value, "ed")
    limits = pack_limits(WorkspaceSettings())
    assert scope.call(clear(ChangeCall(scope.keys, caller, limits), events=False)).status == "occupied"
    scope.lapse("exec")
    assert scope.call(clear(ChangeCall(scope.keys, caller, limits), events=False)).status == "ok"
    assert scope.renew("exec", taken.value) == (False, "")


def test_released_lock_is_not_taken_again(scope: Scope) -> None:
    """A renewal that arrives after the release brings nothing back."""
    task, nonce = task_id(), new_nonce()
    taken = scope.claim("exec", task, "10", nonce)
    scope.drop("exec", nonce)
    assert scope.renew("exec", taken.value) == (False, "")


def test_another_task_waits(scope: Scope) -> None:
    """One task of a session at a time; the other one is told who has it, and gets it with the token."""
    first, second = new_nonce(), new_nonce()
    holder = scope.claim("exec", task_id(), "10", first)
    other = task_id()
    refused = scope.claim("exec", other, "7", second, wait_ms=1000)
    assert (refused.status, refused.value) == (HELD, holder.value)
    scope.drop("exec", first)
    assert scope.claim("exec", task_id(), "1").status == HELD
    assert scope.token("exec")
    assert scope.claim("exec", other, "7", second, wait_ms=1000, woken=True).status == TAKEN


def test_tasks_of_one_session_do_not_meet(scope: Scope) -> None:
    """With lock="task" every task has a lock of its own."""
    one, two = task_id(), task_id()
    assert scope.claim(f"exec:{one}", one).status == scope.claim(f"exec:{two}", two).status == TAKEN


def test_awaited_child_is_refused(scope: Scope) -> None:
    """A task that the holder waits for is told so, only while that holder has the lock."""
    parent, child, nonce = task_id(), task_id(), new_nonce()
    taken = scope.claim("exec", parent, "10", nonce)
    proof = LockProof(scope.keys, "exec", taken.value)
    assert scope.claim("exec", child).status == HELD
    assert scope.call(scripts.await_for(proof, pool="p", tasks=[child])) == []
    assert scope.call(scripts.await_for(proof, pool="p", tasks=[child])) == []
    refused = scope.claim("exec", child)
    assert (refused.status, refused.value) == (AWAITED, taken.value)
    assert scope.claim("exec", task_id()).status == HELD
    scope.drop("exec", nonce)
    assert scope.claim("exec", child).status == TAKEN
    assert scope.call(scripts.await_for(proof, pool="p", tasks=[child])) is None


def test_changes_wait_in_line(scope: Scope) -> None:
    """A change that finds the scope taken waits in the line of its lock; when it leaves, it passes the turn on."""
    holder, change, later = new_nonce(), new_nonce(), new_nonce()
    taken = scope.claim("exec", task_id(), nonce=holder)
    asked = scope.call(scripts.enter(scope.keys, task="", nonce=change, wait_ms=1000))
    assert (asked.status, asked.value) == (HELD, taken.value)
    other = task_id()
    assert scope.claim("exec", other, nonce=later, wait_ms=1000).status == HELD
    scope.drop("exec", holder)
    assert scope.token("exec")
    assert scope.call(scripts.enter(scope.keys, task="", nonce=change, wait_ms=1000)).status == FREE
    assert scope.claim("exec", task_id()).status == HELD
    assert not scope.token("exec")
    scope.drop("exec", change)
    assert scope.token("exec")
    assert scope.claim("exec", other, nonce=later, woken=True).status == TAKEN


def test_change_of_an_awaited_task_is_refused(scope: Scope) -> None:
    """A task that the holder waits for would wait for ever to change the scope: it is told so."""
    parent, child = task_id(), task_id()
    taken = scope.claim("exec", parent)
    assert scope.call(scripts.enter(scope.keys, task=child, nonce=new_nonce(), wait_ms=0)).status == HELD
    scope.call(scripts.await_for(LockProof(scope.keys, "exec", taken.value), pool="p", tasks=[child]))
    refused = scope.call(scripts.enter(scope.keys, task=child, nonce=new_nonce(), wait_ms=1000))
    assert (refused.status, refused.value) == (AWAITED, taken.value)
    assert scope.peek("exec")[0].waiting == 0


def test_dead_attempts_are_freed(scope: Scope) -> None:
    """Locks of an attempt that is known to be dead are released; those of a later one are not touched."""
    task = task_id()
    scope.claim("exec", task, "10")
    before = scope.snapshot()
    assert not scope.free("exec", task, "9")
    assert not scope.free("exec", task_id(), "10")
    assert scope.snapshot() == before
    assert scope.free("exec", task, "10")
    assert not scope.free("exec", task, "10")
    assert scope.claim("exec", task_id(), "1").status == TAKEN


def kept_of_tasks(scope: Scope) -> int:
    """How many fields the scope keeps of its tasks."""
    return int(scope.store.execute("HLEN", scope.keys.key("exec:fence")))


@pytest.mark.parametrize("mode", ["exec", "exec:TASK"])
def test_what_tasks_leave_is_bounded(scope: Scope, mode: str) -> None:
    """However many tasks lock a scope, they leave one hash of about a hundred fields, and no key each."""
    for _ in range(400):
        task, nonce = task_id(), new_nonce()
        scope.claim(mode.replace("TASK", task), task, str(scope.now_us // 1000), nonce)
        scope.drop(mode.replace("TASK", task), nonce)
    assert 90 <= kept_of_tasks(scope) <= 110
    assert {name.rpartition("}:")[2] for name in scope.names()} == {"fence", "exec:fence"}


def test_what_a_holder_needs_is_not_forgotten(scope: Scope) -> None:
    """A lock that lapsed comes back to its attempt, however many tasks have locked the scope meanwhile."""
    holder = task_id()
    held = scope.claim(f"exec:{holder}", holder, str(scope.now_us // 1000))
    scope.lapse(f"exec:{holder}")
    for _ in range(400):
        task, nonce = task_id(), new_nonce()
        scope.claim(f"exec:{task}", task, str(scope.now_us // 1000), nonce)
        scope.drop(f"exec:{task}", nonce)
    assert scope.renew(f"exec:{holder}", held.value) == (True, held.value)
    assert 0 < scope.left_ms(f"exec:{holder}") <= TTL_MS


def test_holders_that_died_are_forgotten(scope: Scope) -> None:
    """Twin: attempts that never released their locks are forgotten a day later, a few at a time."""
    for _ in range(250):
        task = task_id()
        scope.claim(f"exec:{task}", task, str(scope.now_us // 1000))
    assert kept_of_tasks(scope) == 250
    scope.sleep(90_000_000)
    for _ in range(150):
        task, nonce = task_id(), new_nonce()
        scope.claim(f"exec:{task}", task, str(scope.now_us // 1000), nonce)
        scope.drop(f"exec:{task}", nonce)
    assert kept_of_tasks(scope) < 130


@pytest.mark.every_server(alone=True)
@pytest.mark.parametrize("lock", ["exec", "exec:TASK", "lock:n"])
def test_free_lock_is_taken_by_set_nx(scope: Scope, lock: str) -> None:
    """A free lock is taken by SET PX NX, also by a renewal that finds it lapsed; a take-over is a SET without NX."""
    task = task_id()
    lock = lock.replace("TASK", task)
    with redis.Redis.from_url(scope.url) as client, client.monitor() as monitor:
        commands = monitor.listen()
        taken = scope.take(lock) if lock == "lock:n" else scope.claim(lock, task)
        assert next_set(commands, scope.keys.key(lock))[2:] == [taken.value, "PX", str(TTL_MS), "NX"]
        if lock != "lock:n":
            scope.lapse(lock)
            assert scope.renew(lock, taken.value)[0]
            assert next_set(commands, scope.keys.key(lock))[2:] == [taken.value, "PX", str(TTL_MS), "NX"]
            over = scope.claim(lock, task, "11")
            assert next_set(commands, scope.keys.key(lock))[2:] == [over.value, "PX", str(TTL_MS)]


def next_set(commands: Iterator[dict[str, Any]], key: str) -> list[str]:
    """The next SET of a key that the server reports."""
    for seen in commands:
        words = str(seen["command"]).split()
        if words[:2] == ["SET", key]:
            return words
    raise AssertionError("the monitor ended")


def test_everything_goes_away(scope: Scope) -> None:
    """Every key of an execution lock has a time to live, of at least a day where generations are kept."""
    parent = task_id()
    taken = scope.claim("exec", parent, "10")
    scope.claim(f"exec:{parent}", parent, "10")
    scope.claim("exec", task_id(), wait_ms=1000)
    scope.call(scripts.await_for(LockProof(scope.keys, "exec", taken.value), pool="p", tasks=[task_id()]))
    assert without_lifetime(scope.link, scope.keys.prefix) == []
    assert scope.left_ms("exec:fence") > 86_000_000
    assert scope.left_ms("fence") > 29 * 86_400_000


def test_a_lock_that_was_kept_in_vain_goes_to_the_next_caller(scope: Scope) -> None:
    """The lock was kept for a task that did not come in time: late, it takes the free lock, although a line waits."""
    holder, late, behind = new_nonce(), task_id(), task_id()
    scope.claim("exec", task_id(), nonce=holder)
    for waits in (late, behind):
        assert scope.claim("exec", waits, pool="p").status == HELD
    scope.drop("exec", holder)
    assert scope.claim("exec", behind, pool="p").status == HELD
    scope.lapse("exec")
    assert scope.claim("exec", late, "11", pool="p").status == TAKEN
    scope.lapse("exec")
    assert scope.claim("exec", task_id(), pool="p").status == HELD, "a holder that lapsed wakes the line"
