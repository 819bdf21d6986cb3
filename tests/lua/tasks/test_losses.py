"""`count_durable`, `find_lost`, `report_lost`: counters of durable submits, and what Redis has lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agents.scripts import lead
from orchestrator.tasks import scripts
from orchestrator.tasks.losses import summarize
from tests.lua.pool import row

if TYPE_CHECKING:
    from tests.lua.pool import Pool


def test_counters_add_up(pool: Pool) -> None:
    """Each call adds to the counters that it names."""
    for total in (2, 4):
        pool.call(scripts.count_durable(pool.keys, counts={"fsync:asked": 2, "fsync:missed": 1}))
        assert pool.execute("HGET", pool.keys.durability, "fsync:asked") == str(total).encode()


def test_only_missing_records_are_lost(pool: Pool) -> None:
    """A task that was deleted is known for five minutes, so it does not count."""
    kept, deleted = row(), row()
    pool.put(kept, deleted)
    pool.cancel(deleted.id)
    pool.delete(deleted.id)
    assert pool.call(scripts.find_lost(pool.keys, ids=[kept.id, "x", deleted.id, "y"])) == ["x", "y"]


def test_a_report_is_stored_once_and_for_a_day(pool: Pool) -> None:
    """A repeat changes nothing; clients' counts add up, and the greater count of the two observers is told."""
    for observer, report, submits in (("client", "a", 2), ("client", "b", 3), ("supervisor", "c", 4)):
        call = scripts.report_lost(pool.keys, report=report, observer=observer, from_ms=1000, submits=submits)
        assert (pool.call(call), pool.call(call)) == (True, False)
    lost = summarize(pool.execute("HVALS", pool.keys.losses))
    assert lost is not None
    assert (lost.submits, lost.reports, lost.since.timestamp()) == (5, 3, 1)
    assert 86_000 < pool.execute("TTL", pool.keys.losses) <= 86_400
    assert pool.execute("HMGET", pool.keys.durability, "losses:client", "lost:client") == [b"2", b"5"]


def test_a_crowd_of_reports_is_counted(pool: Pool) -> None:
    """The key has a bound; further reports are counted."""
    for number in range(210):
        pool.call(scripts.report_lost(pool.keys, report=str(number), observer="client", from_ms=1, submits=0))
    assert pool.execute("HLEN", pool.keys.losses) == 200
    assert pool.execute("HGET", pool.keys.durability, "losses:client") == b"210"


def test_requests_for_the_lease_are_counted(pool: Pool) -> None:
    """A supervisor that knows more requests than Redis learns it; the count goes on above both."""
    first = pool.call(lead(pool.keys, supervisor="a", lease_ms=5000))
    other = pool.call(lead(pool.keys, supervisor="b", lease_ms=5000))
    assert (first.stored_beats, first.beat, other.stored_beats, other.beat) == (0, 1, 1, 2)
    pool.put(row())
    after = pool.call(lead(pool.keys, supervisor="a", lease_ms=5000, beats=9))
    assert (after.stored_beats, after.beat, after.submitted) == (2, 10, 1)


def test_a_key_of_another_type_stops_no_leader(pool: Pool) -> None:
    """Nothing is counted then, and nothing reported."""
    pool.execute("SET", pool.keys.durability, "x")
    answer = pool.call(lead(pool.keys, supervisor="a", lease_ms=5000, beats=9))
    assert (answer.leads, answer.beat) == (True, 0)
    pool.execute("DEL", pool.keys.durability)


def test_reports_of_later_versions() -> None:
    """A further field is ignored; another observer, and what is no report, do not count."""
    known, later = b"client 3000 1000 2", (b"client 4000 2000 3 new", b"proxy 1 1 50", b"client later", b"")
    lost = summarize([known, *later])
    assert lost is not None
    assert (lost.submits, lost.reports, lost.noticed_at.timestamp()) == (5, 2, 4)
    assert summarize(later[1:]) is None
