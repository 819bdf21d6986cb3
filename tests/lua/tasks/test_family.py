"""Lists of the tasks of a session, of the children of a task, and of the sessions: written by `submit` and by ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.ids import encode_foreign
from orchestrator.tasks.model import VerdictKind
from tests.helpers.cases import each_case
from tests.lua.pool import MAX_WAIT_S, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

KEPT, KEPT_CHILDREN, SESSIONS, SLACK = 1000, 100_000, 10_000, 100
"""Of lua/includes/family.lua."""


def members(pool: Pool, key: str) -> list[str]:
    """What a list holds."""
    return [one.decode() for one in pool.execute("LRANGE", key, 0, -1)]


def in_session(pool: Pool, session: str, count: int = 1) -> list[str]:
    """Submit tasks of a session in calls of at most 500; their ids."""
    rows = [row(session=encode_foreign("session", session)) for _ in range(count)]
    for first in range(0, count, 500):
        pool.put(*rows[first : first + 500])
    return [each.id for each in rows]


def run_parent(pool: Pool) -> Delivery:
    """A task that runs, and so may have children."""
    pool.register(slots=10)
    pool.put(row(priority=0))
    return pool.one()


def bear(pool: Pool, parent: Delivery, count: int = 1) -> list[str]:
    """Submit children of a task in one call."""
    rows = [row(parent=parent.task_id, parent_generation=parent.generation) for _ in range(count)]
    return pool.put(*rows)


def test_children_in_order(pool: Pool) -> None:
    """A parent's children stand in its list in the order of their submits; its record has nothing more."""
    parent = run_parent(pool)
    before = pool.task(parent.task_id)
    ids = [*bear(pool, parent, 2), *bear(pool, parent)]
    assert members(pool, pool.keys.children(parent.task_id)) == ids
    assert pool.task(parent.task_id) == before


def test_children_are_capped(pool: Pool) -> None:
    """The newest stay, and the record counts the others."""
    parent = run_parent(pool)
    key = pool.keys.children(parent.task_id)
    ids = bear(pool, parent, 300)
    for _ in range(10):
        pool.execute("RPUSH", key, *["old"] * ((KEPT_CHILDREN - 400) // 10))
    ids += bear(pool, parent, 300)
    assert pool.execute("LLEN", key) == KEPT_CHILDREN
    assert [members(pool, key)[n] for n in (0, 99, 100, -1)] == [ids[200], ids[299], "old", ids[-1]]
    assert pool.task(parent.task_id)["dropped"] == "200"
    pool.end(parent)
    assert pool.state(parent.task_id) == "succeeded"


def test_refused_children(pool: Pool) -> None:
    """A child that is refused or is known already is not listed again."""
    parent = run_parent(pool)
    known = row(parent=parent.task_id, parent_generation=parent.generation)
    pool.put(known)
    stale = row(parent=parent.task_id, parent_generation="1")
    assert [status for status, _ in pool.submit(known, stale)] == ["duplicate", "stale"]
    assert members(pool, pool.keys.children(parent.task_id)) == [known.id]


def test_lifetime_of_a_list(pool: Pool) -> None:
    """A list lives as long as the record of any of its tasks may: the wait, the delay and the kept result."""
    parent = run_parent(pool)
    key, plain_s = pool.keys.children(parent.task_id), MAX_WAIT_S + 7200
    bear(pool, parent)
    assert pool.ttl_s(key) == plain_s
    later = row(parent=parent.task_id, parent_generation=parent.generation, delay_ms=50_000, ttl_s=7200)
    pool.put(later)
    assert pool.ttl_s(key) == MAX_WAIT_S + 50 + 7200
    bear(pool, parent)
    assert pool.ttl_s(key) == MAX_WAIT_S + 50 + 7200
    in_session(pool, "s")
    assert pool.ttl_s(pool.keys.session("s")) == plain_s


def test_a_session_and_its_tasks(pool: Pool) -> None:
    """Tasks stand in the list of their session in order; the session is listed by its last submit."""
    first = in_session(pool, "a b", 2)
    pool.sleep(1000)
    second = in_session(pool, "x")
    pool.sleep(1000)
    first += in_session(pool, "a b")
    assert members(pool, pool.keys.session("a b")) == first
    assert members(pool, pool.keys.session("x")) == second
    assert pool.members(pool.keys.sessions) == ["x", "a%20b"]
    assert pool.score(pool.keys.sessions, "a%20b") == pool.now_ms
    assert pool.task(first[0])["session"] == "a%20b"


def test_sessions_in_one_call(pool: Pool) -> None:
    """One call may submit tasks of several sessions, and of a parent."""
    parent = run_parent(pool)
    rows = [row(session=session) for session in "abab"]
    child = row(session="a", parent=parent.task_id, parent_generation=parent.generation)
    pool.put(*rows, child, row())
    assert members(pool, pool.keys.session("a")) == [rows[0].id, rows[2].id, child.id]
    assert members(pool, pool.keys.session("b")) == [rows[1].id, rows[3].id]
    assert members(pool, pool.keys.children(parent.task_id)) == [child.id]


@each_case(
    "end", ["succeeded", "dead", "cancelled unread", "cancelled", "died", "expired", "expired at assign"], fresh="pool"
)
def test_an_end_is_activity(pool: Pool, end: str) -> None:
    """However a task of a session ends, its session was active then."""
    pool.register()
    (task,) = pool.put(row(session="s", start_by_ms=pool.now_ms + 500 if end.startswith("expired") else 0))
    pool.sleep(1000)
    match end:
        case "cancelled unread":
            pool.cancel(task)
        case "expired":
            pool.promote()
        case "expired at assign":
            pool.assign()
        case "died":
            pool.one()
            pool.abandon("w1", max_deaths={"sum": 1})
        case _:
            delivery = pool.one()
            if end == "cancelled":
                pool.cancel(task)
            pool.end(delivery, VerdictKind(end), payload=b"1")
    assert pool.state(task) == end.split(maxsplit=1)[0].replace("died", "dead")
    assert pool.score(pool.keys.sessions, "s") == pool.now_ms


def test_end_after_failures(pool: Pool) -> None:
    """A task that failed before is still of its session."""
    pool.register()
    pool.put(row(session="s"))
    pool.end(pool.one(), VerdictKind.RETRY, payload=b"E")
    pool.sleep(1000)
    pool.end(pool.one(), payload=b"1")
    assert pool.score(pool.keys.sessions, "s") == pool.now_ms


@each_case("waited_ms", [30, 1070], fresh="pool")
def test_an_end_is_known_to_a_tenth_of_a_second(pool: Pool, waited_ms: int) -> None:
    """The time of an end is cut, and never lies before the activity that was known."""
    pool.register()
    pool.sleep(50)
    pool.put(row(session="s"))
    submitted_ms = pool.score(pool.keys.sessions, "s")
    assert submitted_ms == pool.now_ms
    pool.sleep(waited_ms)
    pool.end(pool.one(), payload=b"1")
    assert pool.score(pool.keys.sessions, "s") == max(submitted_ms, pool.now_ms // 100 * 100)


def test_a_forgotten_session_stays_forgotten(pool: Pool) -> None:
    """An end lists no session whose tasks are listed no more."""
    pool.register()
    pool.put(row(session="s"))
    pool.execute("DEL", pool.keys.sessions)
    pool.end(pool.one(), payload=b"1")
    assert pool.members(pool.keys.sessions) == []


def test_a_large_session_is_bounded(pool: Pool) -> None:
    """The list keeps the newest tasks, and the number of the others is kept beside it."""
    ids = in_session(pool, "big", 2300)
    assert members(pool, pool.keys.session("big")) == ids[-KEPT:]
    assert pool.execute("HGET", pool.keys.dropped_of_sessions, "big") == b"1300"


def test_sessions_are_bounded(pool: Pool) -> None:
    """When there are too many sessions, those that were active the longest ago go, with their lists."""
    pool.execute("ZADD", pool.keys.sessions, *[part for n in range(SESSIONS + SLACK - 2) for part in (n, f"old{n}")])
    pool.execute("HSET", pool.keys.dropped_of_sessions, "old0", 7, f"old{SLACK}", 8)
    append = "redis.call('RPUSH', KEYS[1] .. n, 'task'); redis.call('EXPIRE', KEYS[1] .. n, 60)"
    lists = f"for n = 0, ARGV[1] - 1 do {append} end"
    pool.execute("EVAL", lists, 1, pool.keys.session("old"), SESSIONS + SLACK - 2)
    in_session(pool, "new1")
    assert pool.execute("ZCARD", pool.keys.sessions) == SESSIONS + SLACK - 1
    in_session(pool, "new2")
    assert pool.execute("ZCARD", pool.keys.sessions) == SESSIONS
    assert pool.members(pool.keys.sessions)[0] == f"old{SLACK}"
    assert pool.execute("EXISTS", pool.keys.session("old0")) == 0
    assert members(pool, pool.keys.session(f"old{SLACK}")) == ["task"]
    assert pool.execute("HKEYS", pool.keys.dropped_of_sessions) == [f"old{SLACK}".encode()]


def test_a_session_that_returns(pool: Pool) -> None:
    """Once its list has expired, the tasks that the list had dropped count no more."""
    ids = in_session(pool, "s", KEPT + 1)
    assert pool.execute("HGET", pool.keys.dropped_of_sessions, "s") == b"1"
    pool.execute("DEL", pool.keys.session("s"))
    assert in_session(pool, "s") != ids
    assert pool.execute("HGET", pool.keys.dropped_of_sessions, "s") is None


def test_sessions_without_a_list_are_removed(pool: Pool) -> None:
    """New sessions remove those whose lists have expired, and no other one."""
    for n in range(30):
        in_session(pool, f"old{n}")
    pool.execute("HSET", pool.keys.dropped_of_sessions, "old1", 5)
    pool.execute("DEL", *(pool.keys.session(f"old{n}") for n in range(30)))
    for n in range(200):
        in_session(pool, f"new{n}")
    names = set(pool.members(pool.keys.sessions))
    assert {f"new{n}" for n in range(200)} <= names
    assert len(names) < 205
    assert pool.execute("HGET", pool.keys.dropped_of_sessions, "old1") is None or "old1" in names


def test_deleted_with_the_task(pool: Pool) -> None:
    """A deleted task leaves the list of its session, and its children are no longer listed."""
    pool.register(slots=10)
    (task,) = pool.put(row(session="s"))
    (other,) = in_session(pool, "s")
    first, second = pool.deliver()
    parent = first if first.task_id == task else second
    bear(pool, parent)
    pool.end(parent, payload=b"1")
    pool.delete(task)
    assert members(pool, pool.keys.session("s")) == [other]
    assert pool.execute("EXISTS", pool.keys.children(task)) == 0


def test_old_programs(pool: Pool) -> None:
    """A task whose program stored no session ends without one."""
    pool.register()
    (task,) = in_session(pool, "s")
    pool.execute("HDEL", pool.keys.task(task), "session")
    before = pool.score(pool.keys.sessions, "s")
    pool.sleep(1000)
    pool.end(pool.one(), payload=b"1")
    assert pool.score(pool.keys.sessions, "s") == before
