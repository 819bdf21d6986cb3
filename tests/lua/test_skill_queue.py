"""A task of a skill queue does not store the queue's name: whatever sends it back reads the skill in its envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.store.calls import opaque
from orchestrator.tasks.model import CancelStatus, Envelope, VerdictKind, encode_envelope
from tests.helpers.cases import each_case
from tests.lua.pool import LEASE_MS, Team, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool, Row

pytestmark = pytest.mark.every_server


def task_of(skill: str, *, start_by_ms: int = 0, depth: int = 0) -> Row:
    """A row for a skill, with its real envelope."""
    packed = encode_envelope(Envelope(skill, b"{}", depth=depth))
    return row(queue=f"skill:{skill}", envelope=opaque(packed), start_by_ms=start_by_ms)


@each_case("depth", [0, 1], fresh="pool")
@each_case("length", [1, 31, 32, 128], fresh="pool")
def test_ways_back(pool: Pool, length: int, depth: int) -> None:
    """After a retry, a snooze and a lost lease it is in its skill's queue again, however long the name."""
    skill = "s" * length
    pool.register(team=Team(skills=frozenset({skill})))
    (task_id,) = pool.put(task_of(skill, depth=depth))
    assert "queue" not in pool.task(task_id)
    pool.end(pool.one(), VerdictKind.RETRY)
    assert pool.queue(f"skill:{skill}") == [task_id]
    pool.end(pool.one(), VerdictKind.SNOOZE, delay_ms=5)
    pool.sleep(5)
    pool.promote()
    assert pool.queue(f"skill:{skill}") == [task_id]
    pool.one("w2")
    pool.age(LEASE_MS + 1)
    pool.abandon("w2")
    assert pool.queue(f"skill:{skill}") == [task_id]


@pytest.mark.parametrize("length", [1, 31, 32, 128])
def test_ends_in_the_queue(pool: Pool, length: int) -> None:
    """One that is cancelled or expires while it waits leaves its skill's queue, however long the name."""
    skill = "s" * length
    cancelled, expiring, stays = pool.put(task_of(skill), task_of(skill, start_by_ms=pool.now_ms + 5), task_of(skill))
    pool.cancel(cancelled)
    pool.sleep(5)
    pool.promote()
    assert (pool.state(cancelled), pool.state(expiring)) == ("cancelled", "expired")
    assert pool.queue(f"skill:{skill}") == [stays]


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"\x92\xd9", b"\x92\x05"])
def test_damaged_envelope(pool: Pool, damaged: bytes) -> None:
    """A task whose envelope was damaged can still be cancelled; what is left of it in the queue hands out nothing."""
    pool.register()
    (task_id,) = pool.put(task_of("sum"))
    pool.execute("HSET", pool.keys.task(task_id), "env", damaged)
    assert pool.cancel(task_id)[0][0] == CancelStatus.ENDED
    assert pool.deliver() == []
    assert pool.queue() == []
