"""A call with one plain task takes a short way through `submit.lua`; it answers and stores as the long way does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.control.commands import DrainQueue, Start, Stop
from orchestrator.store.calls import opaque
from orchestrator.tasks.scripts import NO_CAPS, SubmitCaps
from tests.lua.pool import USUAL_TTL_S, counted_id, envelope, row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lua.pool import Pool, Row

pytestmark = pytest.mark.every_server

OTHER = row(queue="skill:other", envelope=opaque(envelope("other")))
"""A task with a column more. A call that brings it, too, takes the long way."""


def plain(task_id: str | None = None) -> Row:
    """A task without any option."""
    return row(task_id, ttl_s=USUAL_TTL_S)


def mark(pool: Pool, queue: str) -> None:
    """Mark a queue as one that had reached its cap of bytes, and let it hold 5,000 bytes."""
    pool.execute("HSET", f"{pool.keys.root}:queues:bytes", queue, 5000, "*", 5000)
    pool.execute("SADD", f"{pool.keys.root}:queues:full", queue)
    pool.execute("EXPIRE", f"{pool.keys.root}:queues:full", 86_400)


def stop_other(pool: Pool) -> None:
    """Stop something else."""
    pool.append(Stop(skill="none"))
    pool.append(Stop(agent="none"))


def stop_and_start(pool: Pool) -> None:
    """Leave the slot of a stop that has ended."""
    pool.append(Stop(refuse=True))
    pool.append(Start())


ACCEPTED: dict[str, Callable[[Pool], object]] = {
    "empty pool": lambda _: None,
    "filled queue": lambda pool: pool.put(row(), row()),
    "another stop": stop_other,
    "ended stop": stop_and_start,
    "stopped session": lambda pool: pool.append(Stop(session="s")),
    "suspects": lambda pool: pool.execute("SADD", f"{pool.keys.root}:suspects", "skill:else"),
    "held tasks": lambda pool: pool.execute("SADD", f"{pool.keys.root}:held", "skill:else"),
    "marked queue": lambda pool: mark(pool, "skill:else"),
}


@pytest.mark.parametrize("circumstance", ACCEPTED)
def test_accepted(pool: Pool, circumstance: str) -> None:
    """Both ways store the same."""
    found = []
    for others in ([], [OTHER]):
        pool.start_afresh()
        ACCEPTED[circumstance](pool)
        one = plain()
        assert pool.submit(one, *others) == [("created", "")] * (1 + len(others))
        lifetime = pool.execute("PTTL", pool.keys.task(one.id))
        found.append(
            (
                pool.task(one.id),
                round(lifetime / 10_000),
                pool.execute("ZSCORE", pool.keys.queue("skill:sum"), one.id),
                pool.execute("ZCARD", pool.keys.queue("skill:sum")),
                pool.execute("SISMEMBER", pool.keys.queues, "skill:sum"),
                int(pool.execute("HGET", f"{pool.keys.root}:stats:TOTAL", "submitted")) - len(others),
                sum(b"queue:skill:sum" in entry[1] for entry in pool.execute("XRANGE", pool.keys.doorbell, "-", "+")),
            )
        )
    assert found[0] == found[1]


def refuse_known(pool: Pool, one: Row) -> None:
    """The task exists."""
    pool.submit(one)


REFUSED: dict[str, tuple[Callable[[Pool, Row], object], dict[str, Any], str]] = {
    "known": (refuse_known, {}, "duplicate"),
    "stop of all": (lambda pool, _: pool.append(Stop(refuse=True)), {}, "stopped"),
    "stop of the skill": (lambda pool, _: pool.append(Stop(skill="sum", refuse=True)), {}, "stopped"),
    "drained queue": (lambda pool, _: pool.append(DrainQueue(queue="skill:sum")), {}, "stopped"),
    "stop of the family": (lambda pool, one: pool.append(Stop(family=one.id, refuse=True)), {}, "stopped"),
    "full queue": (lambda pool, _: pool.put(row(), row()), {"max_tasks": 2}, "full"),
    "queue full of suspects": (
        lambda pool, _: (
            pool.execute("SADD", f"{pool.keys.root}:suspects", "skill:sum"),
            pool.execute("ZADD", f"{pool.keys.root}:suspects:skill:sum", 1, "x", 2, "y"),
        ),
        {"max_tasks": 2},
        "full",
    ),
    "bytes of the queue, which are marked": (
        lambda pool, _: mark(pool, "skill:sum"),
        {"caps": SubmitCaps(queue_bytes=5000)},
        "full",
    ),
}


@pytest.mark.parametrize("circumstance", REFUSED)
def test_refused(pool: Pool, circumstance: str) -> None:
    """Both ways give the same answer, and store nothing of the task."""
    prepare, caps, status = REFUSED[circumstance]
    answers = []
    for others in ([], [OTHER]):
        pool.start_afresh()
        one = plain()
        prepare(pool, one)
        before = pool.execute("ZCARD", pool.keys.queue("skill:sum"))
        (answer, *_) = pool.submit(one, *others, **caps)
        assert answer[0] == status
        answers.append((answer[0], answer[1].replace(one.id, "ID")))
        assert pool.execute("ZCARD", pool.keys.queue("skill:sum")) == before
    assert answers[0] == answers[1]


@pytest.mark.parametrize("task_id", ["a", "x" * 36, "0" * 37])
def test_an_invalid_id(pool: Pool, task_id: str) -> None:
    """No task of such an id is stored."""
    assert pool.submit(plain(task_id)) == [("invalid", "id")]
    assert pool.execute("EXISTS", pool.keys.queue("skill:sum")) == 0


def test_an_id_that_counts(pool: Pool) -> None:
    """The bytes of such a task are added to those of its queue, so that caps hold for small tasks, too."""
    one = plain(counted_id())
    assert pool.submit(one, caps=NO_CAPS) == [("created", "")]
    size = int(pool.execute("HGET", f"{pool.keys.root}:queues:bytes", "skill:sum"))
    assert size > 0
    assert pool.submit(plain(counted_id()), caps=SubmitCaps(queue_bytes=size)) == [("full", f"bytes {size} skill:sum")]
    assert pool.submit(plain(), caps=SubmitCaps(queue_bytes=size)) == [("full", f"bytes {size} skill:sum")]
