"""lua/tasks/unlist_session.lua: a session leaves the list of sessions with the last task that exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks import scripts as task_scripts
from tests.lua.pool import row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def _unlist(pool: Pool, *ids: str, session: str = "s") -> int:
    return pool.call(task_scripts.unlist_session(pool.keys, session=session, ids=ids))


def _listed(pool: Pool) -> list[str]:
    return [id_.decode() for id_ in pool.execute("LRANGE", pool.keys.session("s"), 0, -1)]


def test_only_what_no_longer_exists_goes(pool: Pool) -> None:
    """Deleted and expired tasks leave the list; a task that exists stays, and so does the session."""
    deleted, expired, waiting, other = pool.put(*[row(session="s") for _ in range(4)])
    pool.cancel(deleted)
    pool.delete(deleted)
    pool.execute("DEL", pool.keys.task(expired))
    assert _unlist(pool, deleted, expired, waiting) == 2
    assert _listed(pool) == [waiting, other]
    assert pool.execute("ZSCORE", pool.keys.sessions, "s") is not None
    with pool.unchanged():
        assert _unlist(pool, deleted, expired, waiting) == 2


def test_the_session_goes_with_its_last_task(pool: Pool) -> None:
    """Its entry and the number of dropped tasks go; another session stays. A new task lists it again."""
    ids = pool.put(*[row(session="s") for _ in range(500)])
    pool.put(row(session="t"))
    pool.execute("HSET", pool.keys.dropped_of_sessions, "s", 7, "t", 8)
    for id_ in ids:
        pool.execute("DEL", pool.keys.task(id_))
    assert _unlist(pool, *ids) == 0
    assert pool.execute("ZRANGE", pool.keys.sessions, 0, -1) == [b"t"]
    assert pool.execute("HGETALL", pool.keys.dropped_of_sessions) == [b"t", b"8"]
    assert _unlist(pool, *ids) == 0
    (again,) = pool.put(row(session="s"))
    assert _listed(pool) == [again]
    assert pool.execute("ZSCORE", pool.keys.sessions, "s") is not None
