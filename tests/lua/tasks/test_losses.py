"""`count_durable`, `find_lost`, `report_lost`: counters of durable submits, and what Redis has lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agents.scripts import lead
from orchestrator.tasks import scripts
from orchestrator.tasks.losses import summarize
from tests.lua.pool import row

if TYPE_CHECKING:
    from orchestrator.agents.scripts import LeadReply
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
    assert (first.stored_last, first.request, other.stored_last, other.request) == (0, 1, 1, 2)
    pool.put(row())
    after = pool.call(lead(pool.keys, supervisor="a", lease_ms=5000, last=9))
    assert (after.stored_last, after.request > 9, after.submitted) == (1, True, 1)


def test_the_requests_of_another_supervisor_hide_no_loss(pool: Pool) -> None:
    """A supervisor whose last request is lost learns it, although another one has asked since; one reports it."""

    def ask(who: str, last: int) -> LeadReply:
        return pool.call(lead(pool.keys, supervisor=who, lease_ms=5000, last=last))

    one, two = ask("a", 0), ask("b", 0)
    kept = {key: pool.execute("DUMP", key) for key in (pool.keys.durability, pool.keys.supervisor_requests)}
    lost = ask("b", two.request)
    for key, dumped in kept.items():
        pool.execute("RESTORE", key, 0, dumped, "REPLACE")
    after = ask("a", one.request)
    assert after.stored_last == one.request, "its own requests are all there"
    found = ask("b", lost.request)
    assert found.stored_last == two.request < lost.request
    # Both have lost requests: the second one finds the shared number above its own, and goes on from there.
    for key, dumped in kept.items():
        pool.execute("RESTORE", key, 0, dumped, "REPLACE")
    again, other = ask("b", found.request), ask("a", after.request)
    assert again.stored_last < found.request
    assert other.stored_last >= after.request
    assert ask("a", other.request).stored_last == other.request
    assert ask("b", again.request).stored_last >= again.request


def test_the_numbers_of_supervisors_that_are_gone_go(pool: Pool) -> None:
    """A supervisor that was removed from the list, and comes back, has lost nothing."""
    here = pool.call(lead(pool.keys, supervisor="here", lease_ms=5000))
    for number in range(50):
        pool.call(lead(pool.keys, supervisor=f"gone-{number}", lease_ms=5000))
    assert pool.execute("HLEN", pool.keys.supervisor_requests) == 51
    pool.execute("DEL", pool.keys.supervisors)
    gone = pool.call(lead(pool.keys, supervisor="new", lease_ms=5000))
    assert pool.execute("HKEYS", pool.keys.supervisor_requests) == [b"new"]
    back = pool.call(lead(pool.keys, supervisor="here", lease_ms=5000, last=here.request))
    assert back.stored_last == gone.request > here.request
    assert 86_000 < pool.execute("TTL", pool.keys.supervisor_requests) <= 86_400


def test_a_key_of_another_type_stops_no_leader(pool: Pool) -> None:
    """Nothing is counted then, and nothing reported."""
    pool.execute("SET", pool.keys.durability, "x")
    answer = pool.call(lead(pool.keys, supervisor="a", lease_ms=5000, last=9))
    assert (answer.leads, answer.request) == (True, 0)
    pool.execute("DEL", pool.keys.durability)


def test_reports_of_later_versions() -> None:
    """A further field is ignored; another observer, and what is no report, do not count."""
    known, later = b"client 3000 1000 2", (b"client 4000 2000 3 new", b"proxy 1 1 50", b"client later", b"")
    lost = summarize([known, *later])
    assert lost is not None
    assert (lost.submits, lost.reports, lost.noticed_at.timestamp()) == (5, 2, 4)
    assert summarize(later[1:]) is None
