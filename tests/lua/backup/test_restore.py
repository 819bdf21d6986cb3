"""`backup/restore_tasks`, `backup/restore_output`, `backup/restore_keys`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.backup.scripts import (
    RestoredKey,
    RestoredOutput,
    RestoredTask,
    begin,
    finish,
    raw,
    restore_keys,
    restore_output,
    restore_tasks,
)
from orchestrator.control import scripts as control_scripts
from orchestrator.core.errors import RestoreRefused
from orchestrator.core.ids import new_task_id
from orchestrator.store.calls import opaque
from tests.helpers.cases import each_case
from tests.lua.pool import envelope

if TYPE_CHECKING:
    from orchestrator.store.calls import Call
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server
DAY_MS = 86_400_000


def task(state: str, *, id_: str | None = None, left_ms: int = 50_000, **changed: Any) -> RestoredTask:
    """A task of a backup; fields of the record and of the row by their names."""
    columns = {name: changed.pop(name) for name in list(changed) if name in RestoredTask._fields}
    record = {"env": envelope(), "gen": b"5", "state": state.encode()}
    record |= {name: str(value).encode() for name, value in changed.items()}
    given: dict[str, Any] = {
        "id": id_ or new_task_id(),
        "left_ms": left_ms,
        "fields": [opaque(part) for name, value in record.items() for part in (name.encode(), value)],
        "score": "",
        "turn": "",
        "began": False,
        "digest": raw(""),
        "children": [],
        "children_ms": 0,
        "dead_ms": 0,
    }
    return RestoredTask(**(given | columns))


MARK = "restoring a file"


def begin_run(pool: Pool, run: str = "1") -> str:
    """Mark the pool for a run, and return the mark."""
    pool.execute("SET", pool.keys.format, f"{MARK} {run}")
    return f"{MARK} {run}"


def restore(pool: Pool, *rows: RestoredTask) -> tuple[int, int, int]:
    """Run restore_tasks."""
    return pool.call(
        restore_tasks(pool.keys, mark=begin_run(pool), rows=rows, origin="a file", keep_ms=DAY_MS, dead_ttl_s=1000)
    )


@each_case(
    ("state", "fields", "place", "score"),
    [
        ("ready", {"score": "77"}, "queue:skill:sum", 77),
        ("ready", {"at": "ed 1-1 78"}, "queue:skill:sum", 78),
        ("ready", {"due": 9}, "queue:skill:sum", 20_000_000_000_009),
        ("ready", {"queue": "agent:ed", "skill": "sum"}, "queue:agent:ed", 20_000_000_000_005),
        ("scheduled", {"due": 123}, "scheduled", 123),
        ("awaiting_input", {"due": 124}, "asking", 124),
        ("awaiting_input", {}, "asking", float("inf")),
        ("waiting", {"lane": "l", "turn": "9"}, "lane:l", 9),
        ("waiting", {"lane": "l"}, "lane:l", 5000),
        ("scheduled", {"due": 123, "by": 200}, "expiring", 200),
        ("dead", {"ended": 3, "dead_ms": 10**15}, "dead", 10**15),
    ],
)
def test_places(pool: Pool, state: str, fields: dict[str, Any], place: str, score: float) -> None:
    """A task returns to the place of its state, with its lifetime; a second time changes nothing."""
    row = task(state, **fields)
    assert restore(pool, row) == (1, 0, 0)
    assert pool.execute("ZSCORE", f"{pool.keys.root}:{place}", row.id) in {str(score).encode(), f"{score:g}".encode()}
    assert 40 < pool.ttl_s(pool.keys.task(row.id)) <= 50
    with pool.unchanged():
        assert restore(pool, row) == (0, 1, 0)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("at_once", [1, 100])
def test_a_flow(pool: Pool, *, backwards: bool, at_once: int) -> None:
    """Tasks of a flow wait for the predecessors that had not ended, in whatever order the rows come."""
    ids = {name: new_task_id() for name in "abcdefg"}
    done, open_, failed = ids["a"], ids["b"], ids["c"]
    rows = [
        task("succeeded", id_=done, ended=3, joined="+1000", followers=f"{ids['d']} {ids['e']}"),
        task("ready", id_=open_, joined="+1000", followers=ids["d"]),
        task("dead", id_=failed, ended=3, dead_ms=10**15, joined="+1000", followers=f"{ids['f']} {ids['g']}"),
        task("awaiting_tasks", id_=ids["d"], after=f"{done} {open_}"),
        task("awaiting_tasks", id_=ids["e"], after=done, lane="l"),
        task("awaiting_tasks", id_=ids["f"], after=failed),
        task("awaiting_tasks", id_=ids["g"], after=f"{failed}+", later="5000 0"),
    ]
    rows = rows[::-1] if backwards else rows
    for first in range(0, len(rows), at_once):
        restore(pool, *rows[first : first + at_once])
    found = {name: pool.state(id_) for name, id_ in ids.items() if name in "defg"}
    assert found == {"d": "awaiting_tasks", "e": "ready", "f": "cancelled", "g": "scheduled"}
    assert pool.members(pool.keys.after(ids["d"])) == [open_]
    assert pool.members(pool.keys.lane("l")) == [ids["e"]]
    assert pool.members(pool.keys.awaiting_tasks) == [ids["d"]]


@pytest.mark.parametrize("backwards", [False, True])
def test_a_flow_behind_a_deleted_task(pool: Pool, *, backwards: bool) -> None:
    """A follower goes on by the stub of a predecessor that succeeded and was deleted."""
    done, open_ = new_task_id(), new_task_id()
    first, second = new_task_id(), new_task_id()
    fields = [opaque(text) for text in (b"deleted", b"9", b"ended_as", b"succeeded")]
    rows = [
        task("ready", id_=done)._replace(fields=fields),
        task("ready", id_=open_, joined="+1000", followers=second),
        task("awaiting_tasks", id_=first, after=done),
        task("awaiting_tasks", id_=second, after=f"{done} {open_}"),
    ]
    assert restore(pool, *(rows[::-1] if backwards else rows)) == (3, 0, 0)
    assert pool.task(done) == {"deleted": "9", "ended_as": "succeeded"}
    if backwards:
        pool.repair(first, second)
    assert (pool.state(first), pool.state(second)) == ("ready", "awaiting_tasks")
    assert pool.members(pool.keys.after(second)) == [open_]


def test_assigned(pool: Pool) -> None:
    """An assigned task is ready at its place in a new generation; no attempt counts, and its record tells."""
    ran, unread = task("assigned", at="ed 1-1 78", began=True, by=9), task("assigned", at="ed 2-1 79")
    assert restore(pool, ran, unread) == (2, 0, 0)
    assert pool.queue() == [ran.id, unread.id]
    record = pool.task(ran.id)
    assert (record["state"], record["restored"]) == ("ready", f"{pool.now_ms} running a file")
    assert record["ran:1"] == f"interrupted 1 5 0 {pool.now_ms} ed - restored from a file"
    assert int(record["gen"]) > 5
    assert record.keys().isdisjoint({"fails", "deaths", "by"})
    record = pool.task(unread.id)
    assert (record["restored"], "ran" in record) == (f"{pool.now_ms} assigned a file", False)


def test_cancelled_while_it_ran(pool: Pool) -> None:
    """A task that was told to stop ends, because it must not run again."""
    row = task("assigned", at="ed 1-1 78", cancel="enough", began=True)
    assert restore(pool, row) == (1, 0, 1)
    assert pool.state(row.id) == "cancelled"
    assert pool.queue() == []


def test_what_belongs_to_a_task(pool: Pool) -> None:
    """The idempotency key and the list of children come with it; a record without a lifetime gets one."""
    child = new_task_id()
    row = task(
        "succeeded",
        left_ms=0,
        ended=4,
        result=b"1",
        idem="k",
        digest=raw("d"),
        children=[child],
        children_ms=2 * DAY_MS,
    )
    assert restore(pool, row) == (1, 0, 0)
    assert pool.execute("GET", f"{pool.keys.root}:idem:k") == f"{row.id} d".encode()
    assert pool.execute("LRANGE", pool.keys.children(row.id), 0, -1) == [child.encode()]
    assert pool.ttl_s(pool.keys.task(row.id)) == DAY_MS / 1000
    assert pool.ttl_s(pool.keys.children(row.id)) == 2 * DAY_MS / 1000


def test_a_large_record(pool: Pool) -> None:
    """A record may have more fields than one command takes, and any bytes."""
    many = {f"once:{n}": bytes([n % 256, 0, 255]) for n in range(2000)}
    row = task("ready")
    fields = [*row.fields, *[opaque(part) for name, value in many.items() for part in (name.encode(), value)]]
    assert restore(pool, row._replace(fields=fields)) == (1, 0, 0)
    assert pool.execute("HGET", pool.keys.task(row.id), "once:1999") == bytes([1999 % 256, 0, 255])
    assert pool.execute("HLEN", pool.keys.task(row.id)) == 2003


def test_output(pool: Pool) -> None:
    """Entries keep their ids; those that are there already stay, and the output of a known task is not touched."""
    id_ = new_task_id()
    entries = [(f"{n}-1", [raw("k"), raw("output"), raw("d"), raw("\xff")]) for n in (5, 6, 7)]
    assert (
        pool.call(restore_output(pool.keys, mark=begin_run(pool), rows=[RestoredOutput(id_, 50_000, entries[:2])])) == 2
    )
    assert pool.call(restore_output(pool.keys, mark=begin_run(pool), rows=[RestoredOutput(id_, 50_000, entries)])) == 1
    assert [entry for entry, _ in pool.execute("XRANGE", pool.keys.out(id_), "-", "+")] == [b"5-1", b"6-1", b"7-1"]
    restore(pool, task("ready", id_=id_))
    more = RestoredOutput(id_, 50_000, [("8-1", [raw("k"), raw("output")])])
    assert pool.call(restore_output(pool.keys, mark=begin_run(pool), rows=[more])) == 0


@each_case(
    ("type_", "values", "read", "found"),
    [
        ("string", ["a\xff"], ("GET",), b"a\xff"),
        ("hash", ["a", "\x00"], ("HGETALL",), [b"a", b"\x00"]),
        ("list", ["b", "a"], ("LRANGE", 0, -1), [b"b", b"a"]),
        ("set", ["b"], ("SMEMBERS",), [b"b"]),
        ("zset", ["inf", "x", "-1.5", "y"], ("ZRANGE", 0, -1, "WITHSCORES"), [b"y", b"-1.5", b"x", b"inf"]),
    ],
)
def test_keys(pool: Pool, type_: str, values: list[str], read: tuple[Any, ...], found: Any) -> None:
    """A key of each type: a first part replaces what is there, a further one adds to it."""
    key = f"{pool.keys.root}:limits"
    row = RestoredKey(
        "limits", type_, [raw(value) for value in values], first=True, before=0, left_ms=50_000, until_ms=0
    )
    for _ in range(2):
        assert pool.call(restore_keys(pool.keys.root, mark=begin_run(pool), rows=[row])) == 1
        assert pool.execute(read[0], key, *read[1:]) == found
        assert 40 < pool.ttl_s(key) <= 50
    if type_ == "list":
        more = row._replace(first=False, before=2)
        for _ in range(2):
            pool.call(restore_keys(pool.keys.root, mark=begin_run(pool), rows=[more]))
            assert pool.execute("LLEN", key) == 4
    pool.execute("DEL", key)


def test_streams_and_times(pool: Pool) -> None:
    """Entries of a stream keep their ids; a key that has ended meanwhile is left out."""
    entries = [("5-1", [raw("c"), raw("\x92")])]
    log = RestoredKey("control", "stream", entries, first=True, before=0, left_ms=0, until_ms=0)
    over = RestoredKey(
        "limit:x", "zset", [raw("1"), raw("a")], first=True, before=0, left_ms=0, until_ms=pool.now_ms - 1
    )
    later = over._replace(suffix="limit:y", until_ms=pool.now_ms + DAY_MS)
    assert pool.call(restore_keys(pool.keys.root, mark=begin_run(pool), rows=[log, over, later])) == 2
    assert pool.execute("XRANGE", pool.keys.control, "-", "+") == [[b"5-1", [b"c", b"\x92"]]]
    more = log._replace(values=[("5-2", [raw("c"), raw("x")])], first=False)
    for _ in range(2):
        assert pool.call(restore_keys(pool.keys.root, mark=begin_run(pool), rows=[more])) == 1
    assert pool.execute("XLEN", pool.keys.control) == 2
    assert pool.execute("EXISTS", pool.keys.limit("x")) == 0


def test_begin(pool: Pool) -> None:
    """One script looks for programs and sets the mark; the same file goes on, another one does not."""
    called = begin(pool.keys, mark=MARK, run="1")
    assert [pool.call(called) for _ in range(2)] == ["begun", "continued"]
    assert pool.call(begin(pool.keys, mark="restoring b", run="1")) == "occupied"
    assert pool.execute("GET", pool.keys.format) == f"{MARK} 1".encode()
    pool.execute("SET", pool.keys.format, "3")
    pool.execute("SADD", pool.keys.workers, "w")
    assert pool.call(called) == "used"
    assert pool.execute("GET", pool.keys.format) == b"3"


@pytest.mark.parametrize("floor", ["restoring a file 2", "3"], ids=["replaced", "ended"])
def test_a_run_that_is_over(pool: Pool, floor: str) -> None:
    """No script of a run changes anything when a later run has begun, or has ended."""
    mark = begin_run(pool)
    pool.execute("SET", pool.keys.format, floor)
    output = RestoredOutput(new_task_id(), 50_000, [("1-1", [raw("k"), raw("output")])])
    key = RestoredKey("limits", "hash", [raw("a"), raw("1 5")], first=True, before=0, left_ms=0, until_ms=0)
    calls: list[Call[Any]] = [
        restore_tasks(pool.keys, mark=mark, rows=[task("ready")], origin="f", keep_ms=DAY_MS, dead_ttl_s=9),
        restore_output(pool.keys, mark=mark, rows=[output]),
        restore_keys(pool.keys.root, mark=mark, rows=[key]),
        finish(pool.keys, mark=mark, floor=2),
    ]
    with pool.unchanged():
        for call in calls:
            with pytest.raises(RestoreRefused, match="another run of this restore"):
                pool.call(call)
        slots = control_scripts.restore(pool.keys, rows=[], verified=False, epoch=9, pruned=0, mark=mark)
        assert pool.call(slots) == -1
    pool.execute("SET", pool.keys.format, mark)
    assert pool.call(finish(pool.keys, mark=mark, floor=2)) == 0
    assert pool.call(finish(pool.keys, mark=mark, floor=2)) == 0
    assert pool.execute("GET", pool.keys.format) == b"2"
