"""lua/tasks/return_unseen.lua: entries that a living worker has not seen go back and count no death."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.rates import Rate
from orchestrator.tasks.model import CancelStatus, FinishStatus
from tests.lua.pool import LEASE_MS, Team, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_no_inbox(pool: Pool) -> None:
    """Without an inbox there is nothing to return and nothing changes."""
    with pool.unchanged():
        assert pool.return_unseen("w1") == []


def test_unseen_entries_go_back(pool: Pool) -> None:
    """They return to their places with a new generation. Held entries stay, and those of other workers."""
    pool.register(slots=9)
    pool.register("w2", slots=9)
    unseen, held, other = pool.put(row(reply="c1"), row(), row())
    first, second = pool.deliver(limit=2)
    pool.assign()
    pool.read("w2")
    score = pool.task(unseen)["at"].split()[2]
    assert pool.return_unseen("w1", held=[second.entry]) == [first.entry]
    assert pool.queue() == [unseen]
    assert pool.score(pool.keys.queue("skill:sum"), unseen) == float(score)
    found = pool.task(unseen)
    assert "deaths" not in found
    assert int(found["gen"]) > int(first.generation)
    assert (pool.state(held), pool.state(other)) == ("assigned", "assigned")
    assert pool.stats()["given_back"] == 1
    with pool.unchanged():
        assert pool.return_unseen("w1", held=[second.entry]) == []
    assert pool.end(first) is FinishStatus.STALE


def test_young_entries_stay(pool: Pool) -> None:
    """An entry that the worker has just read may be on its way to the event loop."""
    pool.register()
    pool.put(row())
    delivery = pool.one()
    with pool.unchanged():
        assert pool.return_unseen("w1", idle_ms=LEASE_MS // 2) == []
    pool.age(LEASE_MS // 2 + 1)
    assert pool.return_unseen("w1", idle_ms=LEASE_MS // 2) == [delivery.entry]


def test_in_bounds(pool: Pool) -> None:
    """One call returns at most `limit` entries, however many are held."""
    pool.register(slots=9)
    pool.put(*[row() for _ in range(5)])
    entries = [one.entry for one in pool.deliver()]
    assert pool.return_unseen("w1", held=entries[:2], limit=2) == entries[2:4]
    assert pool.return_unseen("w1", held=entries[:2], limit=2) == entries[4:]


def test_tasks_that_may_not_start_end(pool: Pool) -> None:
    """A cancelled task and one past its `start_by` end; an entry of no attempt is removed."""
    pool.register(slots=9)
    cancelled, late, gone = pool.put(row(), row(start_by_ms=pool.now_ms + 10), row())
    entries = [one.entry for one in pool.deliver()]
    assert pool.cancel(cancelled)[0][0] == CancelStatus.SIGNALLED
    pool.execute("DEL", pool.keys.task(gone))
    pool.sleep(10)
    assert pool.return_unseen("w1") == entries
    assert (pool.state(cancelled), pool.state(late)) == ("cancelled", "expired")
    assert (pool.pending(), pool.inbox_length(), pool.queue()) == ([], 0, [])


def test_slots_of_limits_return(pool: Pool) -> None:
    """A task that did not begin has used no rate limit."""
    pool.register(team=Team(rate=Rate(1, 60_000_000)))
    pool.put(row())
    pool.one()
    assert pool.members(pool.keys.limit("@ed")) != []
    pool.return_unseen("w1")
    assert pool.deliver() != []
