"""lua/tasks/emit.lua: only the attempt that has a task adds to its output, each row once, within a cap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from orchestrator.tasks.model import EmitStatus, VerdictKind
from tests.helpers.cases import each_case
from tests.lua.pool import MAX_WAIT_S, chunk, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

OK, STALE = EmitStatus.OK, EmitStatus.STALE


def start(pool: Pool) -> Delivery:
    """One task, delivered to w1."""
    pool.register()
    pool.put()
    return pool.one()


def numbers(pool: Pool, delivery: Delivery) -> list[int]:
    """The numbers of the chunks in a stream."""
    return [int(fields[fields.index("n") + 1]) for _, fields in pool.entries(pool.keys.out(delivery.task_id))]


def test_output(pool: Pool) -> None:
    """Chunks are stored as they came, with generation, attempt and number; the task notes the last row."""
    mine = start(pool)
    assert pool.emit(chunk(mine, 1, b'{"a":[]}'), chunk(mine, 2, b"1.0")) == [OK, OK]
    assert pool.out(mine.task_id) == [
        ("output", mine.generation, 1, '{"a":[]}'),
        ("output", mine.generation, 1, "1.0"),
    ]
    assert numbers(pool, mine) == [1, 2]
    assert pool.task(mine.task_id)["out"] == f"{mine.generation} 2 -"
    assert "progress" not in pool.task(mine.task_id)


def test_payloads_are_opaque(pool: Pool) -> None:
    """Bytes that are no text, and JSON that Lua would rewrite, come back byte for byte."""
    mine = start(pool)
    data = bytes(range(256)) + b'{"n":9007199254740993,"e":[],"f":1.0}'
    pool.emit(chunk(mine, 1, data))
    ((_, flat),) = pool.execute("XRANGE", pool.keys.out(mine.task_id), "-", "+")
    assert flat[flat.index(b"d") + 1] == data


def test_progress(pool: Pool) -> None:
    """The latest progress is kept in the task, and takes the place of one right before it, but not of output."""
    mine = start(pool)
    rows = [chunk(mine, n, b"[%d]" % n, kind="progress") for n in (1, 2)]
    assert pool.emit(*rows, chunk(mine, 3), chunk(mine, 4, b"[4]", kind="progress")) == [OK] * 4
    pool.emit(chunk(mine, 5, b"[5]", kind="progress"))
    assert [(kind, data) for kind, _, _, data in pool.out(mine.task_id)] == [
        ("progress", "[2]"),
        ("output", "1"),
        ("progress", "[5]"),
    ]
    assert pool.task(mine.task_id)["progress"] == f"{mine.generation} [5]"


def test_progress_of_an_earlier_attempt_stays(pool: Pool) -> None:
    """A new attempt's first progress replaces nothing that an earlier attempt said."""
    mine = start(pool)
    pool.emit(chunk(mine, 1, b"[1]", kind="progress"))
    pool.end(mine, VerdictKind.SNOOZE)
    again = pool.one()
    pool.emit(chunk(again, 1, b"[0]", kind="progress"))
    assert [data for kind, _, _, data in pool.out(mine.task_id) if kind == "progress"] == ["[1]", "[0]"]


def test_repeat(pool: Pool) -> None:
    """The same call again answers the same and changes nothing; a row that is new in it is taken."""
    mine = start(pool)
    rows = [chunk(mine, 1), chunk(mine, 2, b"[1]", kind="progress"), chunk(mine, 3)]
    pool.emit(*rows)
    with pool.unchanged():
        assert pool.emit(*rows) == [OK] * 3
        assert pool.emit(rows[0]) == [OK]
    assert pool.emit(*rows, chunk(mine, 4)) == [OK] * 4
    assert numbers(pool, mine) == [1, 0, 3, 4]


def test_each_row_is_judged_for_itself(pool: Pool) -> None:
    """A stale row does not hold up its neighbours, of the same task or of another one."""
    pool.register()
    pool.put(row(), row())
    mine, other = pool.deliver()
    older = replace(mine, generation=str(int(mine.generation) - 1))
    assert pool.emit(chunk(mine, 1), chunk(older, 1), chunk(other, 1), chunk(mine, 2)) == [OK, STALE, OK, OK]
    assert numbers(pool, mine) == [1, 2]
    assert numbers(pool, other) == [1]


@each_case("kind", list(VerdictKind), fresh="pool")
def test_stale_after_a_verdict(pool: Pool, kind: VerdictKind) -> None:
    """Whatever an attempt decided: from then on it can add nothing."""
    mine = start(pool)
    pool.emit(chunk(mine, 1))
    pool.end(mine, kind)
    with pool.unchanged():
        assert pool.emit(chunk(mine, 2), chunk(mine, 3, b"[1]", kind="progress")) == [STALE, STALE]


def test_stale_when_taken_away(pool: Pool) -> None:
    """An attempt whose task was given to another adds nothing; the other one counts from 1."""
    mine = start(pool)
    pool.emit(chunk(mine, 1), chunk(mine, 2))
    (taken,) = pool.adopt("w1", own=True)
    with pool.unchanged():
        assert pool.emit(chunk(mine, 3)) == [STALE]
    assert pool.emit(chunk(taken, 1)) == [OK]
    assert numbers(pool, mine) == [1, 2, 1]


def test_stale_when_it_only_waits(pool: Pool) -> None:
    """A guess at the generation of a task that waits, or an unknown id, adds nothing and makes no key."""
    mine = start(pool)
    pool.end(mine, VerdictKind.RETRY)
    guess = replace(mine, generation=pool.task(mine.task_id)["gen"])
    with pool.unchanged():
        assert pool.emit(chunk(guess, 1), chunk(replace(mine, task_id="gone"), 1)) == [STALE, STALE]


def test_cap(pool: Pool) -> None:
    """A stream keeps about `max_chunks` entries, the newest, and their numbers show what is gone."""
    mine = start(pool)
    for first in range(1, 1501, 500):
        pool.emit(*[chunk(mine, seq) for seq in range(first, first + 500)], max_chunks=50)
    left = numbers(pool, mine)
    assert 50 <= len(left) <= 250
    assert left == list(range(1501 - len(left), 1501))


def test_lives_as_its_task(pool: Pool) -> None:
    """The stream has the task's time to live: while it waits, while it is renewed, when it goes back, after its end."""
    pool.register()
    pool.put(row(ttl_s=7200), max_wait_s=60)
    mine = pool.one()
    pool.emit(chunk(mine, 1))
    record, out = pool.keys.task(mine.task_id), pool.keys.out(mine.task_id)
    assert pool.ttl_s(out) == pool.ttl_s(record) == 60
    pool.renew([mine])
    assert pool.ttl_s(out) == pool.ttl_s(record) == 86_400
    pool.end(mine, VerdictKind.RETRY)
    assert pool.ttl_s(out) == pool.ttl_s(record) == MAX_WAIT_S
    pool.end(pool.one())
    assert pool.ttl_s(out) == pool.ttl_s(record) == 7200


@pytest.mark.parametrize("lost", ["stream", "lifetime"])
def test_never_without_a_lifetime(pool: Pool, lost: str) -> None:
    """A stream that data loss took is made again with a time to live; one that lost its own gets it back."""
    mine = start(pool)
    pool.emit(chunk(mine, 1))
    out = pool.keys.out(mine.task_id)
    pool.execute(*(("DEL", out) if lost == "stream" else ("PERSIST", out)))
    pool.emit(chunk(mine, 2))
    assert pool.ttl_s(out) == pool.ttl_s(pool.keys.task(mine.task_id))


def test_batch_of_500(pool: Pool) -> None:
    """A full batch over many tasks fits into one call."""
    pool.register(slots=500)
    pool.put(*[row() for _ in range(250)])
    deliveries = pool.deliver(limit=250)
    rows = [chunk(each, seq, b"x" * 2000) for each in deliveries for seq in (1, 2)]
    assert pool.emit(*rows) == [OK] * 500
    with pool.unchanged():
        assert pool.emit(*rows) == [OK] * 500


def test_cost_does_not_grow(pool: Pool) -> None:
    """A chunk costs the same on a long stream among many tasks."""

    def cost(seq: int) -> int:
        before = pool.commands()
        pool.emit(chunk(mine, seq))
        return pool.commands() - before

    mine = start(pool)
    first = cost(1)
    pool.emit(*[chunk(mine, seq) for seq in range(2, 400)])
    pool.put(*[row() for _ in range(300)])
    assert cost(400) <= first
