"""lua/tasks/check_inbox.lua: an inbox holds the entries of attempts, and can be read."""

from __future__ import annotations

import pytest

from tests.lua.pool import Pool, row

pytestmark = pytest.mark.every_server


def test_sound_inboxes_are_left_alone(pool: Pool) -> None:
    """Unread entries, read ones, and those of later attempts: nothing is found, nothing changes."""
    pool.register(slots=9)
    pool.put(row(), row(), row())
    first = pool.deliver(limit=2)[0]
    pool.assign()
    pool.adopt("w2", own=True)
    pool.abandon("w1")
    pool.deliver("w2")
    assert first.task_id
    with pool.unchanged():
        assert pool.check_inbox() == pool.check_inbox(repair=False) == pool.check_inbox(limit=1) == []
        assert pool.check_inbox("nobody") == []


def test_entries_of_no_attempt(pool: Pool) -> None:
    """Of tasks that are gone, have ended, wait or run elsewhere: they leave, read or not, and what is whole stays."""
    pool.register(slots=9)
    pool.put(row(), row(), row(), row())
    gone, ended, back, held = pool.deliver()
    pool.execute("DEL", pool.keys.task(gone.task_id))
    pool.execute("HSET", pool.keys.task(ended.task_id), "state", "succeeded")
    pool.execute("HSET", pool.keys.task(back.task_id), "state", "ready")
    copy = pool.execute("XADD", pool.keys.inbox("ed"), "*", "t", held.task_id, "g", held.generation, "e", "").decode()
    expected = [(entry, "stray-entry") for entry in (gone.entry, ended.entry, back.entry, copy)]
    with pool.unchanged():
        assert pool.check_inbox(repair=False) == expected
    assert pool.check_inbox(limit=1) == expected
    assert [entry for entry, _ in pool.entries(pool.keys.inbox("ed"))] == [held.entry]
    assert pool.pending() == [(held.entry, "w1")]
    assert pool.stats()["repaired"] == 4
    assert pool.check_inbox() == []


def test_room_rings(pool: Pool) -> None:
    """What an entry of nobody took away from a full inbox is told to those who wait for it."""
    pool.register(slots=1)
    pool.put()
    lost = pool.one()
    pool.put()
    pool.assign()
    pool.execute("DEL", pool.keys.task(lost.task_id))
    pool.notifications()
    pool.check_inbox()
    assert pool.notifications() == ["agent:ed"]
    pool.one()


def test_garbage(pool: Pool) -> None:
    """An entry that is none of ours would stop its reader; it is removed."""
    pool.register(slots=9)
    pool.put()
    pool.one()
    bad = [
        pool.execute("XADD", pool.keys.inbox("ed"), "*", *fields).decode() for fields in (("x", b"\xff"), ("t", "1"))
    ]
    assert pool.check_inbox() == [(entry, "damaged") for entry in bad]
    assert pool.inbox_length() == 1


def test_an_inbox_that_nobody_can_read_or_finds(pool: Pool) -> None:
    """Its group is made again from the beginning; its agent is known again, so that the recoverer looks at it."""
    pool.register(slots=9)
    (waiting,) = pool.put()
    pool.assign()
    pool.execute("XGROUP", "DESTROY", pool.keys.inbox("ed"), "workers")
    pool.execute("DEL", pool.keys.agents)
    assert pool.check_inbox(repair=False) == [("", "no-group"), ("", "unlisted-agent")]
    assert pool.check_inbox() == [("", "no-group"), ("", "unlisted-agent")]
    assert pool.score(pool.keys.agents, "ed") == pool.now_ms
    assert [delivery.task_id for delivery in pool.read()] == [waiting]


@pytest.mark.parametrize("key", ["agent:ed", "doorbell", "stats:TOTAL"])
def test_another_type_where_a_repair_writes(pool: Pool, key: str) -> None:
    """Then nothing is written at all, and what is wrong is found all the same."""
    pool.register()
    bad = pool.execute("XADD", pool.keys.inbox("ed"), "*", "x", "y").decode()
    pool.execute("DEL", f"{pool.keys.root}:{key}")
    pool.execute("SET", f"{pool.keys.root}:{key}", "x", "EX", 100)
    with pool.unchanged():
        assert pool.check_inbox() == [(bad, "damaged")]
    pool.execute("DEL", f"{pool.keys.root}:{key}")


def test_another_type_in_place_of_an_inbox(pool: Pool) -> None:
    """It is passed by."""
    pool.execute("SET", pool.keys.inbox("ed"), "x", "EX", 100)
    assert pool.check_inbox() == []


def test_cost_does_not_grow(pool: Pool) -> None:
    """A call looks at `limit` entries, however many there are."""
    pool.register(slots=500)
    pool.put(*[row() for _ in range(200)])
    pool.assign()
    from orchestrator.tasks import scripts

    call = scripts.check_inbox(pool.keys, agent="ed", after="0-0", limit=5, repair=True)
    pool.call(call)
    before = pool.commands()
    pool.call(call)
    assert pool.commands() - before < 40
