"""Indices of the tasks with a tag: written by `submit` and `delete`, repaired by `repair`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.ids import task_ms
from orchestrator.tasks.model import Envelope, encode_envelope
from tests.lua.pool import row, tagged

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

TRIM_AFTER, TRIM_OLDEST = 64, 100
"""Of lua/includes/tag.lua."""


def listed(pool: Pool, tag: str) -> list[str]:
    """The tasks of a tag."""
    return pool.members(pool.keys.tag(tag))


def test_tags_in_order(pool: Pool) -> None:
    """Each tag lists its tasks by the time in their ids; what is refused, or known already, is not listed."""
    one, both = tagged("a b/ä"), tagged("a b/ä", "eu")
    pool.put(one, both)
    assert (listed(pool, "a b/ä"), listed(pool, "eu")) == ([one.id, both.id], [both.id])
    assert pool.execute("ZSCORE", pool.keys.tag("eu"), both.id) == str(task_ms(both.id)).encode()
    full = tagged("eu")
    assert [status for status, _ in pool.submit(one, full, max_tasks=2)] == ["duplicate", "full"]
    assert listed(pool, "eu") == [both.id]


def test_many_at_once(pool: Pool) -> None:
    """A call takes 500 tasks of one tag."""
    rows = [tagged("eu") for _ in range(500)]
    pool.put(*rows)
    assert listed(pool, "eu") == [each.id for each in rows]


def test_deleted_tasks_leave(pool: Pool) -> None:
    """A deleted task leaves its indices, and the last one takes the key along."""
    pool.register()
    pool.put(tagged("a b/ä", "eu"))
    held = pool.one()
    pool.end(held)
    assert listed(pool, "eu") == [held.task_id]
    pool.delete(held.task_id)
    assert listed(pool, "eu") == listed(pool, "a b/ä") == []
    pool.put(row())
    held = pool.one()
    pool.end(held)
    assert pool.delete(held.task_id)[0][0] == "deleted"


def expire(pool: Pool, *ids: str) -> None:
    """The records go, as at the end of their lifetimes."""
    pool.execute("UNLINK", *(pool.keys.task(id_) for id_ in ids))


def test_expired_tasks_leave(pool: Pool) -> None:
    """Submits of a tag remove its old tasks that are gone, some at a time; those that exist stay, wherever they are."""
    old = pool.put(*(tagged("eu") for _ in range(2 * TRIM_OLDEST)))
    stays = {old[0], old[TRIM_OLDEST - 1]}
    expire(pool, *(id_ for id_ in old if id_ not in stays))
    left = TRIM_AFTER - len(old) % TRIM_AFTER
    pool.put(*(tagged("eu") for _ in range(left - 1)))
    assert len(listed(pool, "eu")) == len(old) + left - 1
    pool.put(tagged("eu"))
    assert set(listed(pool, "eu")[:TRIM_OLDEST]) & set(old[:TRIM_OLDEST]) == stays
    for _ in range(3 * TRIM_AFTER):
        pool.put(tagged("eu"))
    assert set(listed(pool, "eu")) & set(old) == stays


def test_a_lost_index_is_made_again(pool: Pool) -> None:
    """A scan lists waiting, running and ended tasks again; a task that is deleted, or damaged, is not listed."""
    pool.register(slots=2)
    ids = pool.put(tagged("eu", "b"), tagged("eu"), tagged("eu", delay_ms=5000))
    pool.assign(limit=1)
    (held,) = pool.read()
    pool.end(held)
    pool.execute("UNLINK", pool.keys.tag("eu"))
    found = [(id_, "lost-tag") for id_ in ids]
    assert pool.repair(*ids, repair=False) == found
    assert listed(pool, "eu") == []
    assert pool.repair(*ids) == found
    assert listed(pool, "eu") == ids
    assert pool.repair(*ids) == []
    pool.delete(held.task_id)
    assert pool.repair(held.task_id) == []
    assert listed(pool, "eu") == [id_ for id_ in ids if id_ != held.task_id]
    pool.execute("HSET", pool.keys.task(ids[2]), "env", b"\x93\xa3sum\xc4\x02{}\xc1")
    pool.repair(ids[2])


def test_entries_without_a_task(pool: Pool) -> None:
    """A scan removes the entries of tasks that are gone, which is no damage, and those of deleted ones."""
    pool.register()
    ids = pool.put(tagged("eu"), tagged("eu"))
    held = pool.deliver("w1")[0]
    pool.end(held)
    pool.delete(held.task_id)
    pool.execute("ZADD", pool.keys.tag("eu"), 1, held.task_id)
    expire(pool, *(id_ for id_ in ids if id_ != held.task_id))
    rows = [(id_, "tag:eu") for id_ in ids]
    assert pool.repair(*rows) == [(held.task_id, "misplaced")]
    assert listed(pool, "eu") == []


@pytest.mark.parametrize(("skill", "size"), [("sum", 2), ("s" * 40, 300), ("sum", 70_000)])
def test_envelopes_that_are_cut_off(pool: Pool, skill: str, size: int) -> None:
    """A damaged envelope, wherever it ends, fails no scan, and its task can be deleted."""
    pool.register()
    envelope = encode_envelope(Envelope(skill, b" " * size, session="s", tags=("eu",)))
    for length in range(60):
        pool.put(row())
        held = pool.one()
        pool.end(held)
        pool.execute("HSET", pool.keys.task(held.task_id), "env", envelope[:length])
        pool.repair(held.task_id)
        assert pool.delete(held.task_id)[0][0] == "deleted"


def test_another_type(pool: Pool) -> None:
    """A key of another type in place of an index leaves the rest of a repair alone."""
    (id_,) = pool.put(tagged("eu"))
    pool.execute("UNLINK", pool.keys.tag("eu"))
    pool.execute("SET", pool.keys.tag("eu"), "x")
    assert pool.repair(id_) == []
