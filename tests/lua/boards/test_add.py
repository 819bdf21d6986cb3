"""Boards: what is added, or done, counts once, on the day of the server's clock, and goes after eight days."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.boards import scripts
from orchestrator.tasks.model import FinishStatus, Verdict, VerdictKind
from tests.lua.pool import Team, row
from tests.lua.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.boards.scripts import AddReply
    from tests.faultkit.servers import RedisServer
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

EIGHT_DAYS_S = 691_200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def day_of(now_us: int) -> str:
    """The day in UTC, by Python's calendar."""
    return (_EPOCH + timedelta(microseconds=now_us)).date().isoformat()


class Counting(Scope):
    """A board on one server, and a clock that the test moves."""

    _ops = 0

    def add(self, member: str = "ed", by: int = 1, *, op: str | None = None, most: int = 100) -> AddReply:
        """Run the script."""
        self._ops += 1
        return self.call(scripts.add(self.keys, op=op or f"o{self._ops}", member=member, by=by, most=most))


@pytest.fixture
def board(redis_server: RedisServer, prefix: str) -> Iterator[Counting]:
    """An empty board."""
    board = Counting(redis_server.url, prefix, "board", "reviews / week")
    yield board
    board.close()


def test_counts(board: Counting) -> None:
    """Each call adds for its member, and takes away below zero; the day's key lives for eight days."""
    day = day_of(board.now_us)
    assert [board.add(), board.add(by=5), board.add("bo"), board.add(by=-9)] == [
        ("counted", day, 1), ("counted", day, 6), ("counted", day, 1), ("counted", day, -3),
    ]  # fmt: skip
    assert EIGHT_DAYS_S - 10 < board.left_ms(f"day:{day}") / 1000 <= EIGHT_DAYS_S
    assert board.left_ms("ops") > 0


def test_sent_twice(board: Counting) -> None:
    """A repeat changes nothing and is answered as the first call was, also when a new day has begun."""
    first = board.add(by=3, op="mine")
    board.add()
    board.sleep(86_400_000)
    before = board.snapshot()
    assert board.add(by=3, op="mine") == ("duplicate", first.day, 3)
    assert board.snapshot() == before
    assert board.add(by=3).total == 3


def test_op_ids_take_turns(board: Counting) -> None:
    """A hash of op ids that is ten minutes old replaces the one before; what that one held is new again."""
    board.add(op="old")
    board.store.execute("PEXPIRE", board.keys.key("ops"), 599_000)
    board.add(op="late")
    assert board.left_ms("ops") < 0
    assert 590_000 < board.left_ms("ops:before") <= 600_000
    assert board.add(op="new").status == "counted"
    assert 1_190_000 < board.left_ms("ops") <= 1_200_000
    for known in ("old", "late", "new"):
        assert board.add(op=known).status == "duplicate"
    board.store.execute("PEXPIRE", board.keys.key("ops"), 599_000)
    board.add(op="newest")
    assert board.add(op="new").status == board.add(op="newest").status == "duplicate"
    assert board.add(op="old").status == "counted"


def test_full(board: Counting) -> None:
    """A day has only so many members; those who are on it go on counting."""
    board.add("a", most=2)
    board.add("b", most=2)
    before = board.snapshot()
    assert board.add("c", most=2).status == "full"
    assert board.snapshot() == before
    assert board.add("a", most=2).total == 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(when=st.datetimes(datetime(1970, 1, 1), datetime(2999, 12, 31)))  # noqa: DTZ001 - hypothesis wants naive ones
def test_days(board: Counting, when: datetime) -> None:
    """The day is that of the calendar, whatever the year."""
    now_us = (when.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
    board.now_us = now_us
    assert board.add().day == when.date().isoformat()


@pytest.mark.parametrize("text", ["2000-02-29", "2027-12-31", "2028-02-29", "2028-03-01", "2100-02-28", "2100-03-01"])
def test_turn_of_the_day(board: Counting, text: str) -> None:
    """A day begins at midnight UTC and not a microsecond earlier."""
    begins = datetime.fromisoformat(text).replace(tzinfo=UTC)
    board.now_us = (begins - _EPOCH) // timedelta(microseconds=1)
    assert board.add().day == text
    board.now_us -= 1
    assert board.add().day == (begins - timedelta(days=1)).date().isoformat()


# ----------------------------------------------------------------------------------------- the board of a pool's agents


def standings(pool: Pool, day: str) -> dict[str, str]:
    """What the day's board holds."""
    flat = pool.execute("ZRANGE", pool.keys.board(day), 0, -1, "WITHSCORES")
    return {name.decode(): score.decode() for name, score in zip(flat[::2], flat[1::2], strict=True)}


def test_tasks_that_end_with_a_result(pool: Pool) -> None:
    """Each success counts once for its agent and day, however often it is told; other verdicts do not."""
    day = day_of(pool.now_us or 0)
    pool.register(slots=20)
    pool.register("w2", Team(agent="bo"), slots=20)
    kinds = [VerdictKind.SUCCEEDED] * 3 + [VerdictKind.DEAD, VerdictKind.RETRY, VerdictKind.CANCELLED]
    pool.put(*[row(queue="agent:ed") for _ in kinds], *[row(queue="agent:bo") for _ in range(2)])
    pool.assign()
    pool.assign("bo")
    done = [(each, Verdict(kind, b"1")) for each, kind in zip(pool.read(), kinds, strict=True)]
    done += [(each, Verdict(VerdictKind.SUCCEEDED, b"1")) for each in pool.read("w2", agent="bo")]
    assert set(pool.finish(*done)) == {FinishStatus.OK}
    assert standings(pool, day) == {"ed": "3", "bo": "2"}
    assert pool.ttl_s(pool.keys.board(day)) == EIGHT_DAYS_S
    assert FinishStatus.OK not in pool.finish(*done)
    assert standings(pool, day) == {"ed": "3", "bo": "2"}


def test_a_new_day(pool: Pool) -> None:
    """What ends after midnight counts for the day that has begun."""
    day, next_day = (day_of((pool.now_us or 0) + days * 86_400_000_000) for days in (0, 1))
    pool.register()
    pool.put(row(), row())
    first, second = pool.deliver(limit=2)
    pool.end(first)
    pool.sleep(86_400_000)
    pool.end(second)
    assert standings(pool, day) == standings(pool, next_day) == {"ed": "1"}
