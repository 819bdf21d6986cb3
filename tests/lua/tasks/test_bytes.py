"""lua/includes/held_bytes.lua: the bytes of the tasks that wait, their caps, and the number of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.ids import TaskIds
from orchestrator.store.calls import opaque
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.model import Envelope, Verdict, VerdictKind, encode_envelope
from orchestrator.tasks.scripts import SubmitCaps
from orchestrator.tasks.values import split_row, write_commands
from tests.lua.pool import row

if TYPE_CHECKING:
    from tests.lua.pool import Pool, Row

pytestmark = pytest.mark.every_server

LARGE = encode_envelope(Envelope("sum", b'"' + b"x" * 2000 + b'"'))
SIZE = len(LARGE)


def large(**fields: Any) -> Row:
    """A task whose bytes are counted as they are."""
    return row(envelope=opaque(LARGE), **fields)


def held(pool: Pool) -> dict[str, int]:
    """The bytes by queue."""
    flat = pool.execute("HGETALL", pool.keys.queue_bytes)
    return {name.decode(): int(number) for name, number in zip(flat[::2], flat[1::2], strict=True)}


def waiting(count: int, queue: str = "skill:sum") -> dict[str, int]:
    """The bytes of some large tasks of one queue."""
    return {queue: count * SIZE, "*": count * SIZE} if count else {}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delay_ms": 60_000},
        {"lane": "a"},
        {"start_by_ms": 2**42},
        {"session": "s"},
        {"queue": "agent:ed", "skill": "sum"},
    ],
    ids=["plain", "later", "lane", "start by", "session", "agent"],
)
def test_until_a_task_is_assigned_or_ends(pool: Pool, options: dict[str, Any]) -> None:
    """A task counts while it waits: until it is cancelled, and again after a retry of its own or of an operator."""
    queue = options.get("queue", "skill:sum")
    pool.register(slots=10)
    first, second = pool.put(large(**options), large(**options))
    assert held(pool) == waiting(2, queue)
    pool.cancel(second)
    assert held(pool) == waiting(1, queue)
    pool.sleep(60_000)
    pool.promote()
    pool.assign()
    assert held(pool) == {}
    delivery = pool.one()
    pool.end(delivery, VerdictKind.RETRY, payload=b"bad", delay_ms=1000)
    assert held(pool) == waiting(1, queue)
    pool.sleep(1000)
    pool.promote()
    pool.assign()
    assert held(pool) == {}
    pool.end(pool.one(), VerdictKind.DEAD, payload=b"bad")
    assert held(pool) == {}
    pool.retry(first)
    assert held(pool) == waiting(1, queue)


def test_taken_back(pool: Pool) -> None:
    """A task that no worker has read counts again, and so does one whose worker died."""
    pool.register(slots=10)
    pool.put(large())
    pool.assign()
    delivery = pool.one()
    pool.end(delivery, VerdictKind.REQUEUE)
    assert held(pool) == waiting(1)
    pool.assign()
    pool.one()
    assert held(pool) == {}
    pool.abandon("w1")
    assert held(pool) == waiting(1)


def test_expired(pool: Pool) -> None:
    """A task that did not start in time does not wait."""
    pool.put(large(start_by_ms=pool.now_ms + 1000))
    pool.sleep(1000)
    pool.promote()
    assert held(pool) == {}


def test_large_arguments(pool: Pool) -> None:
    """Arguments that are a field of their own count, too."""
    envelope = opaque(encode_envelope(Envelope("sum", b'"' + b"x" * 9000 + b'"')))
    sent, value = split_row(row(envelope=envelope).sent())
    assert value is not None
    for command in write_commands(pool.keys, [value]):
        pool.execute(*command)
    assert pool.call(task_scripts.submit(pool.keys, rows=[sent], max_tasks=9, max_wait_s=60))[0].status == "created"
    assert 9000 < held(pool)["skill:sum"] < 9200
    pool.register(slots=10)
    pool.assign()
    assert held(pool) == {}


def test_small_tasks_are_sampled(pool: Pool) -> None:
    """One of sixteen counts for all, so that the sum is about right, and 0 when all have left the queue."""
    pool.register(slots=1000)
    ids = TaskIds(listens=False).take(640)
    for first in range(0, 640, 128):
        pool.put(*[row(id_) for id_ in ids[first : first + 128]])
    size = len(bytes(row().envelope))
    assert held(pool)["*"] == pytest.approx(640 * size, rel=0.25)
    while pool.assign().count:
        pass
    assert held(pool) == {}


def test_cap_of_a_queue(pool: Pool) -> None:
    """A submit that would exceed the cap is refused with what the queue holds; other queues have room."""
    caps = SubmitCaps(queue_bytes=2 * SIZE + 10)
    answers = pool.submit(large(), large(), large(), large(queue="skill:b"), caps=caps)
    assert answers == [("created", ""), ("created", ""), ("full", f"bytes {2 * SIZE} skill:sum"), ("created", "")]
    assert pool.submit(row(queue="skill:b"), caps=caps)[0][0] == "created"
    # A mark lets small tasks be refused that count for none.
    assert pool.submit(row(), caps=caps) == [("full", f"bytes {2 * SIZE} skill:sum")]
    pool.register(slots=1)
    pool.assign(limit=1)
    assert [status for status, _ in pool.submit(row(), large(), caps=caps)] == ["created", "created"]
    assert not pool.execute("EXISTS", f"{pool.keys.root}:queues:full")


def test_cap_of_the_pool(pool: Pool) -> None:
    """The queues of a pool share a cap."""
    caps = SubmitCaps(pool_bytes=2 * SIZE + 10)
    answers = pool.submit(large(), large(queue="skill:b"), large(queue="skill:c"), caps=caps)
    assert answers[2] == ("full", f"bytes {2 * SIZE} *")
    assert pool.submit(row(queue="skill:d"), caps=caps)[0][0] == "full"


def test_number_of_queues(pool: Pool) -> None:
    """A task for a queue more than the cap is refused; one for a queue that holds tasks is not."""
    caps = SubmitCaps(queues=2)
    answers = pool.submit(large(), large(queue="skill:b"), large(queue="skill:c"), large(), caps=caps)
    assert [status for status, _ in answers] == ["created", "created", "full", "created"]
    assert pool.submit(row(queue="skill:d"), caps=caps) == [("full", "queues")]
    pool.register(slots=10)
    pool.assign()
    assert pool.submit(row(queue="skill:d"), caps=caps)[0][0] == "created"


@pytest.mark.parametrize("damage", [("HSET", "skill:sum", "nan"), ("HSET", "*", "1e300"), ("SET", "not ours")])
def test_damage_refuses_no_task(pool: Pool, damage: tuple[str, ...]) -> None:
    """Numbers that are none, and a key of another type, neither refuse a task nor keep it from being assigned."""
    pool.register(slots=10)
    pool.execute(damage[0], pool.keys.queue_bytes, *damage[1:])
    pool.execute("SET", f"{pool.keys.root}:queues:full", "not ours", "EX", 60)
    task = large()
    assert pool.submit(task, caps=SubmitCaps(10**6, 10**6, 10))[0][0] == "created"
    pool.assign()
    pool.end(pool.one())
    assert pool.state(task.id) == "succeeded"


def test_a_queue_that_had_less_than_is_taken(pool: Pool) -> None:
    """An older program did not add what this one subtracts: its queue has nothing then; the pool keeps the others."""
    pool.register(slots=10)
    pool.put(large(), large(queue="skill:b"))
    pool.execute("HSET", pool.keys.queue_bytes, "skill:sum", SIZE - 100, "*", 2 * SIZE - 100)
    pool.assign()
    assert held(pool) == waiting(1, "skill:b")


def test_a_key_of_another_type_is_not_corrected(pool: Pool) -> None:
    """It ends no scan, which reports it."""
    pool.execute("SET", pool.keys.queue_bytes, "not ours")
    assert pool.call(task_scripts.correct_bytes(pool.keys, changes={b"skill:a": 5})) == 0


def test_unchanged_costs(pool: Pool) -> None:
    """A small task costs no command more, and a large one a few per call."""
    pool.register(slots=100)

    def cost(*rows: Row) -> tuple[int, int, int]:
        before = pool.commands()
        pool.put(*rows)
        submitted = pool.commands()
        pool.assign()
        assigned = pool.commands()
        pool.finish(*[(one, Verdict(VerdictKind.SUCCEEDED, b"1")) for one in pool.read()])
        return submitted - before, assigned - submitted, pool.commands() - assigned

    cost(row(), row())
    small, many = cost(row()), cost(large())
    assert [more - less for more, less in zip(many, small, strict=True)][1:] == [3, 0]
    assert many[0] - small[0] <= 9
