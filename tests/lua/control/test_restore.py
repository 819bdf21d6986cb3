"""lua/control/restore.lua and prune.lua: what Redis has lost comes back, and nothing that is newer is written over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import ResetLimit, SetLimit, Start, Stop
from orchestrator.control.scripts import RestoreRow, prune, restore

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

STOP_SLOT = "stop:all"


def write_back(pool: Pool, *rows: RestoreRow, verified: bool = False, epoch: int = 0, pruned: int = 0) -> int:
    """Run restore."""
    return pool.call(restore(pool.keys, rows=rows, verified=verified, epoch=epoch, pruned=pruned))


def revision(pool: Pool, slot: str) -> int:
    """The revision of a slot; 0 without one."""
    return int(pool.execute("HGET", pool.keys.desired_revisions, slot) or 0)


def stopped(pool: Pool, session: str | None = None) -> RestoreRow:
    """Stop; how a reader knows it."""
    pool.append(Stop(session=session))
    (slot,) = [slot for slot in pool.desired() if slot.startswith("stop:")]
    return RestoreRow(slot, revision(pool, slot), pool.desired()[slot])


def lose(pool: Pool, *keys: str) -> None:
    """Remove the desired state, or one of its keys."""
    pool.execute("DEL", *(keys or (pool.keys.desired, pool.keys.desired_revisions)))
    pool.notifications()


def test_a_lost_stop(pool: Pool) -> None:
    """The slot returns with its revision, in a state with a newer number; a repeat changes nothing."""
    row = stopped(pool)
    lose(pool)
    pool.sleep(5)
    assert write_back(pool, row, epoch=7) == 2
    assert pool.desired() == {STOP_SLOT: row.value, "seq": str(row.revision + 5).encode(), "epoch": b"7"}
    assert revision(pool, STOP_SLOT) == row.revision
    assert pool.notifications() == ["agents"]
    with pool.unchanged():
        assert write_back(pool, row, epoch=7) == 0


@pytest.mark.parametrize("lost", ["desired", "desired_revisions"])
def test_one_of_the_keys(pool: Pool, lost: str) -> None:
    """Revisions without their state tell nothing; a state without its revisions gets them back."""
    row = stopped(pool)
    lose(pool, getattr(pool.keys, lost))
    assert write_back(pool, row) == 1
    assert pool.desired()[STOP_SLOT] == row.value


def test_a_newer_start_stays(pool: Pool) -> None:
    """A start after the loss is newer than the stop that a reader knows."""
    row = stopped(pool)
    lose(pool)
    pool.sleep(1)
    pool.append(Start())
    with pool.unchanged():
        assert write_back(pool, row) == 0


def test_newest_reader_wins(pool: Pool) -> None:
    """A reader that knows the end of the stop overrules the one that was cut off before; also after the prune."""
    row = stopped(pool)
    pool.sleep(1)
    pool.append(Start())
    ended = RestoreRow(STOP_SLOT, revision(pool, STOP_SLOT))
    lose(pool)
    assert write_back(pool, row) == 1
    assert write_back(pool, ended) == 1
    assert STOP_SLOT not in pool.desired()
    with pool.unchanged():
        assert write_back(pool, row) == 0
    pool.call(prune(pool.keys, rows=[(STOP_SLOT, ended.revision)]))
    with pool.unchanged():
        assert write_back(pool, row) == 0


def test_verified(pool: Pool) -> None:
    """A signed slot returns with its verified copy, because the control stream may be lost too."""
    row = stopped(pool)
    lose(pool)
    write_back(pool, row, verified=True)
    assert pool.desired()[f"verified:{STOP_SLOT}"] == row.value


def test_sessions_and_limits(pool: Pool) -> None:
    """The count of stopped sessions and the rates of limits follow."""
    session = stopped(pool, session="a")
    pool.execute("HSET", pool.keys.limits, "model", "10 60000000")
    pool.append(SetLimit(limit="model", rate="5/s"))
    limit = RestoreRow("limit:model", revision(pool, "limit:model"), pool.desired()["limit:model"], 5, 1_000_000)
    lose(pool)
    pool.execute("HSET", pool.keys.limits, "model", "10 60000000")
    pool.execute("HDEL", pool.keys.limits, "=model")
    assert write_back(pool, session, limit) == 2
    assert pool.desired()["sessions"] == b"1"
    assert pool.execute("HGET", pool.keys.limits, "model") == b"5 1000000"
    pool.append(ResetLimit(limit="model"))
    assert pool.execute("HGET", pool.keys.limits, "model") == b"10 60000000"


def test_prune(pool: Pool) -> None:
    """The revision of an ended command goes; that of an active one, or of a newer change, stays."""
    active = stopped(pool, session="a")
    pool.append(Stop())
    old = revision(pool, STOP_SLOT)
    pool.append(Start())
    ended = revision(pool, STOP_SLOT)
    rows = [(active.slot, active.revision), (STOP_SLOT, old)]
    with pool.unchanged():
        assert pool.call(prune(pool.keys, rows=rows)) == 0
    assert pool.call(prune(pool.keys, rows=[(STOP_SLOT, ended)])) == 1
    assert (revision(pool, STOP_SLOT), revision(pool, "pruned")) == (0, ended)


def test_cost_does_not_grow(pool: Pool) -> None:
    """A row costs the same in a state with many slots."""

    def cost(row: RestoreRow) -> int:
        before = pool.commands()
        write_back(pool, row)
        return pool.commands() - before

    first = cost(RestoreRow("stop:agent:a", pool.now_ms, b"1-"))
    write_back(pool, *[RestoreRow(f"stop:agent:a{i}", pool.now_ms, b"1-") for i in range(300)])
    assert cost(RestoreRow("stop:agent:b", pool.now_ms, b"1-")) <= first
