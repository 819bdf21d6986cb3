"""lua/control/verify.lua: verified orders are remembered and come back over what is not true; changes meanwhile win."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import Stop, make_command
from orchestrator.control.scripts import Verification, VerificationRow, verify
from tests.helpers.cases import each_case
from tests.lua.pool import seq

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

SECRET = "0123456789abcdef"
STOP_SLOT, VERIFIED = "stop:all", "verified:stop:all"


def stopped(pool: Pool) -> bytes:
    """Stop everything; what stands in the slot."""
    pool.append(Stop(), secret=SECRET)
    return pool.desired()[STOP_SLOT]


def judge(pool: Pool, value: bytes, verification: Verification, slot: str = STOP_SLOT) -> int:
    """Say of one slot what it is."""
    pool.notifications()
    return pool.call(verify(pool.keys, rows=[VerificationRow(slot, value, verification)]))


def test_true(pool: Pool) -> None:
    """It is remembered; nothing else changes, and nobody is rung."""
    value = stopped(pool)
    assert judge(pool, value, Verification.TRUE) == 0
    assert pool.desired() == {STOP_SLOT: value, VERIFIED: value, "seq": seq(1)}
    with pool.unchanged():
        judge(pool, value, Verification.TRUE)


def test_truly_ended(pool: Pool) -> None:
    """What is truly ended goes, with what was remembered."""
    judge(pool, stopped(pool), Verification.TRUE)
    pool.append(make_command("start", {}), secret=SECRET)
    assert judge(pool, pool.desired()[STOP_SLOT], Verification.TRUE) == 0
    assert pool.desired() == {"seq": seq(2)}


@pytest.mark.parametrize("forged", [b"0" + b"-" * 100, b"1garbage", b"", b"\xff\xfe"])
def test_false(pool: Pool, forged: bytes) -> None:
    """What was verified comes back, also when the slot was emptied; supervisors look again."""
    value = stopped(pool)
    judge(pool, value, Verification.TRUE)
    if forged:
        pool.execute("HSET", pool.keys.desired, STOP_SLOT, forged)
    else:
        pool.execute("HDEL", pool.keys.desired, STOP_SLOT)
    assert judge(pool, forged, Verification.FALSE) == 1
    assert pool.desired() == {STOP_SLOT: value, VERIFIED: value, "seq": seq(2)}
    assert pool.notifications() == ["agents"]


def test_false_with_what_was_ordered_last(pool: Pool) -> None:
    """What was written over before it was verified comes back, and is verified the next time."""
    value = stopped(pool)
    pool.execute("HSET", pool.keys.desired, STOP_SLOT, "0-forged", VERIFIED, "an order before")
    assert (
        pool.call(verify(pool.keys, rows=[VerificationRow(STOP_SLOT, b"0-forged", Verification.FALSE, again=value)]))
        == 1
    )
    assert pool.desired() == {STOP_SLOT: value, VERIFIED: b"an order before", "seq": seq(2)}


def test_false_with_a_false_verification(pool: Pool) -> None:
    """What replaces a value that stands in the verified copy too replaces the copy."""
    value = stopped(pool)
    pool.execute("HSET", pool.keys.desired, STOP_SLOT, "0-old", VERIFIED, "0-old")
    pool.call(verify(pool.keys, rows=[VerificationRow(STOP_SLOT, b"0-old", Verification.FALSE, again=value)]))
    assert pool.desired() == {STOP_SLOT: value, VERIFIED: value, "seq": seq(2)}


def test_false_without_verification(pool: Pool) -> None:
    """What nobody ordered goes."""
    pool.execute("HSET", pool.keys.desired, STOP_SLOT, "1-forged")
    assert judge(pool, b"1-forged", Verification.FALSE) == 1
    assert pool.desired() == {"seq": b"1"}


def test_over(pool: Pool) -> None:
    """What is over goes with its verification, whatever that says."""
    judge(pool, stopped(pool), Verification.TRUE)
    assert judge(pool, pool.desired()[STOP_SLOT], Verification.OVER) == 1
    assert pool.desired() == {"seq": seq(2)}


@each_case("verification", list(Verification), fresh="pool")
def test_changed_meanwhile(pool: Pool, verification: Verification) -> None:
    """A slot that says something else than what was judged stays as it is."""
    value = stopped(pool)
    with pool.unchanged():
        pool.call(verify(pool.keys, rows=[VerificationRow(STOP_SLOT, value + b"x", verification)]))


def test_sessions(pool: Pool) -> None:
    """The count of stopped sessions follows; a wrong one is repaired, unless the state has changed since."""
    pool.append(make_command("stop", {"session": "a"}), secret=SECRET)
    pool.execute("HSET", pool.keys.desired, "stop:session:b", "1-forged", "sessions", "0")
    with pool.unchanged():
        pool.call(verify(pool.keys, rows=[], seq=b"0"))
    row = VerificationRow("stop:session:b", b"1-forged", Verification.OVER)
    pool.call(verify(pool.keys, rows=[row], seq=seq(1), sessions=2))
    assert pool.desired()["sessions"] == b"1"
    assert pool.desired()["seq"] == seq(2)


def test_sessions_that_are_stopped_again(pool: Pool) -> None:
    """A stop that was taken away and comes back counts once; one that stood all the time does not count again."""
    slot = "stop:session:a"
    pool.append(make_command("stop", {"session": "a"}), secret=SECRET)
    value = pool.desired()[slot]
    judge(pool, value, Verification.TRUE, slot)
    for forged, counted in ((b"1-forged", b"1"), (b"0-forged", b"0")):
        pool.execute("HSET", pool.keys.desired, slot, forged, "sessions", counted)
        assert judge(pool, forged, Verification.FALSE, slot) == 1
        assert pool.desired()["sessions"] == b"1"


def test_limit(pool: Pool) -> None:
    """The rate of a verified order comes back with it; without one the defined rate does."""
    pool.execute("HSET", pool.keys.limits, "model", "10 60000000")
    pool.append(make_command("set-limit", {"limit": "model", "rate": "2/s"}), secret=SECRET)
    value = pool.desired()["limit:model"]
    judge(pool, value, Verification.TRUE, "limit:model")
    pool.execute("HSET", pool.keys.desired, "limit:model", "1-forged")
    pool.execute("HSET", pool.keys.limits, "model", "999 1000000")
    pool.call(verify(pool.keys, rows=[VerificationRow("limit:model", b"1-forged", Verification.FALSE, 2, 1_000_000)]))
    assert pool.execute("HGET", pool.keys.limits, "model") == b"2 1000000"
    pool.call(verify(pool.keys, rows=[VerificationRow("limit:model", value, Verification.OVER)]))
    assert pool.execute("HGET", pool.keys.limits, "model") == b"10 60000000"
