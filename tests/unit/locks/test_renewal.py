"""`RenewedLock` and `LockRenewer`: which locks are renewed when, and who is told of a lost one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import msgspec
import pytest

from orchestrator.locks.model import LockProof
from orchestrator.locks.renewal import LAST_MARGIN_S, RENEWALS, LockRenewer, RenewedLock
from orchestrator.store.keys import ScopeKeys
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

TTL_S = 30.0


class Owner:
    """Makes locks, and notes what it hears of them."""

    def __init__(self) -> None:
        self.lost: list[str | None] = []

    def lock(
        self, *, age_s: float = 0.0, watched: bool = True, scope: str = "s", is_wanted: Callable[[], bool] | None = None
    ) -> RenewedLock:
        """A lock that was renewed `age_s` ago."""
        proof = LockProof(ScopeKeys("a:b:c", "session", scope), "lock:n", "1:ab:me")
        sent_s = time.monotonic() - age_s
        return RenewedLock(
            proof, ttl_s=TTL_S, sent_s=sent_s, on_lost=self.lost.append, watched=watched, is_wanted=is_wanted
        )


@pytest.fixture
def owner() -> Owner:
    """An owner that has heard nothing."""
    return Owner()


def renewed(renewer: LockRenewer, *, early_s: float = 0.0, lapsed: bool = False) -> list[RenewedLock]:
    """The locks that a pass renews."""
    return [lock for _, group in renewer.batches(early_s=early_s, lapsed=lapsed) for lock in group]


async def test_times(owner: Owner) -> None:
    """A lock is due at a third of its lifetime; only one that nobody watches lapses, at its deadline."""
    watched, unwatched = owner.lock(), owner.lock(watched=False)
    for lock in (watched, unwatched):
        assert lock.deadline_s - lock.due_s == pytest.approx(TTL_S - TTL_S / RENEWALS)
        assert lock.margin_s == LAST_MARGIN_S
    assert [unwatched.lapsed(unwatched.deadline_s + late_s) for late_s in (-0.001, 0.0, 1.0)] == [False, True, True]
    assert not watched.lapsed(watched.deadline_s + 1)
    watched.stop()


async def test_due_locks(owner: Owner) -> None:
    """A pass takes the locks that are due, or will be soon, and neither the fresh nor the lapsed ones."""
    renewer = LockRenewer()
    fresh, soon, due, lapsed = (owner.lock(age_s=age_s, watched=False) for age_s in (0.0, 9.0, 11.0, 31.0))
    for lock in (fresh, soon, due, lapsed):
        renewer.add(lock)
    assert renewed(renewer) == [due]
    assert renewed(renewer, early_s=2.0) == [soon, due]
    assert renewed(renewer, lapsed=True) == [lapsed]
    assert renewer.due_in_s() == 0.0


async def test_time_of_the_next_renewal(owner: Owner) -> None:
    """It is that of the first lock, without the lapsed ones; None when there is nothing to renew."""
    renewer = LockRenewer()
    assert renewer.due_in_s() is None
    renewer.add(owner.lock(age_s=31.0, watched=False))
    assert renewer.due_in_s() is None
    number = renewer.add(owner.lock(age_s=4.0, watched=False))
    renewer.add(owner.lock(watched=False))
    assert 5.0 < (renewer.due_in_s() or 0.0) <= 6.0
    renewer.remove(number)
    assert 9.0 < (renewer.due_in_s() or 0.0) <= 10.0


async def test_one_call_per_scope(owner: Owner) -> None:
    """Locks of one scope are renewed by one call, with lock, value and lifetime of each."""
    renewer = LockRenewer()
    locks = [owner.lock(age_s=20.0, watched=False, scope=scope) for scope in ("s", "t", "s")]
    for lock in locks:
        renewer.add(lock)
    (first, of_s), (second, of_t) = renewer.batches()
    assert (of_s, of_t) == ([locks[0], locks[2]], [locks[1]])
    packed = [call.args["rows"] for call in (first, second)]
    rows = [msgspec.msgpack.decode(each) for each in packed if isinstance(each, bytes)]
    assert rows == [[["lock:n", "1:ab:me", 30_000]] * 2, [["lock:n", "1:ab:me", 30_000]]]
    assert [call.args["scope"] for call in (first, second)] == [lock.proof.keys.root for lock in locks[:2]]


async def test_an_unwanted_lock_waits(owner: Owner) -> None:
    """A lock whose owner does not want a renewal is left out, and asked about again a lifetime later."""
    renewer, wanted = LockRenewer(), [False]
    lock = owner.lock(age_s=20.0, watched=False, is_wanted=lambda: wanted[0])
    renewer.add(lock)
    assert renewed(renewer) == []
    assert TTL_S - 1 < lock.due_s - time.monotonic() <= TTL_S
    wanted[0] = True
    assert renewed(renewer, early_s=TTL_S) == [lock]


async def test_answers(owner: Owner) -> None:
    """A renewed lock lives from the time at which the call was sent; the owner of a lost one is told its new value."""
    renewer = LockRenewer()
    kept, lost = owner.lock(age_s=20.0, watched=False), owner.lock(age_s=20.0, watched=False)
    for lock in (kept, lost):
        renewer.add(lock)
    sent_s = time.monotonic() - 1
    renewer.settle([kept, lost], [(True, ""), (False, "2:cd:other")], sent_s)
    assert (kept.deadline_s, kept.due_s) == (sent_s + TTL_S, sent_s + TTL_S / RENEWALS)
    assert lost.due_s == lost.deadline_s + TTL_S
    assert owner.lost == []
    await wait_for(lambda: owner.lost == ["2:cd:other"], "its owner hears of it")
    with pytest.raises(ValueError, match="zip"):
        renewer.settle([kept, lost], [(True, "")], sent_s)


@pytest.mark.parametrize("removed", [False, True])
async def test_a_watched_lock_ends_before_its_deadline(owner: Owner, *, removed: bool) -> None:
    """Its owner is told once, a second before the deadline; not when it removed the lock."""
    renewer = LockRenewer()
    number = renewer.add(lock := owner.lock(age_s=TTL_S - LAST_MARGIN_S - 0.1))
    assert lock.deadline_s > time.monotonic() + LAST_MARGIN_S
    if removed:
        renewer.remove(number)
        await anyio.sleep(0.2)
        assert owner.lost == []
    else:
        await wait_for(lambda: owner.lost == [None], "its owner hears of it")
        assert lock.deadline_s > time.monotonic()
