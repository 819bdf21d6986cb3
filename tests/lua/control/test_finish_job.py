"""lua/control/select.lua and finish_job.lua: what a job is for does not change any more, and a job ends once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import CancelTasks
from orchestrator.control.scripts import finish_job, select
from tests.lua.pool import seq

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def selected(pool: Pool, id_: str) -> list[str]:
    """What a job is for."""
    return [task.decode() for task in pool.execute("LRANGE", pool.keys.selection(id_), 0, -1)]


def test_select(pool: Pool) -> None:
    """Batches follow each other, and are kept for a week."""
    assert pool.call(select(pool.keys, id_="c", at=0, tasks=["1", "2"])) == 2
    assert pool.call(select(pool.keys, id_="c", at=2, tasks=["3"])) == 3
    assert selected(pool, "c") == ["1", "2", "3"]
    assert pool.ttl_s(pool.keys.selection("c")) == 604_800


def test_a_batch_sent_twice(pool: Pool) -> None:
    """It is not added again, neither at once nor after the next one."""
    pool.call(select(pool.keys, id_="c", at=0, tasks=["1", "2"]))
    with pool.unchanged():
        assert pool.call(select(pool.keys, id_="c", at=0, tasks=["1", "2"])) == 2
    pool.call(select(pool.keys, id_="c", at=2, tasks=["3"]))
    assert pool.call(select(pool.keys, id_="c", at=0, tasks=["1", "2"])) == 3
    assert selected(pool, "c") == ["1", "2", "3"]


def test_five_hundred(pool: Pool) -> None:
    """A full batch fits."""
    assert pool.call(select(pool.keys, id_="c", at=0, tasks=[str(n) for n in range(500)])) == 500


def test_settle(pool: Pool) -> None:
    """The job is to be done no more, also where its proof lies; its end is noted, its first tasks stay for a day."""
    _, issued = pool.append(CancelTasks(count=1))
    tasks = [str(n) for n in range(1200)]
    for at in (0, 500, 1000):
        pool.call(select(pool.keys, id_=issued.id, at=at, tasks=tasks[at : at + 500]))
    pool.execute("HSET", pool.keys.desired, f"verified:do:{issued.id}", "x")
    call = finish_job(pool.keys, id_=issued.id, sender="supervisor", status="done", detail="1 cancelled")
    assert pool.call(call) is True
    assert pool.desired() == {"seq": seq(1)}
    assert selected(pool, issued.id) == tasks[:1000]
    assert pool.ttl_s(pool.keys.selection(issued.id)) == 86_400
    noted = pool.execute("HGET", pool.keys.receipts(issued.id), "supervisor")
    assert noted.decode() == f"{pool.now_ms} done 1 cancelled"
    with pool.unchanged():
        assert pool.call(call) is False


def test_settle_without_a_selection(pool: Pool) -> None:
    """A job ends also when its selection is gone, or a key of another type."""
    for other in (False, True):
        _, issued = pool.append(CancelTasks(count=0))
        if other:
            pool.execute("SET", pool.keys.selection(issued.id), "x")
        call = finish_job(pool.keys, id_=issued.id, sender="supervisor", status="done", detail="nothing")
        assert pool.call(call) is True
        pool.execute("DEL", pool.keys.selection(issued.id))
