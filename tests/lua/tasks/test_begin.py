"""lua/tasks/begin.lua: a task with a death behind it says when it begins, and only then can it die again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from orchestrator.tasks.model import FinishStatus, LeaseStatus
from tests.lua.pool import LEASE_MS, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

KEPT, LOST = LeaseStatus.KEPT, LeaseStatus.LOST


def died_once(pool: Pool, *ids: str) -> list[Delivery]:
    """Deliver tasks to w2 that have died with w1, and that do not begin yet."""
    pool.deliver()
    pool.abandon("w1")
    found = pool.deliver("w2", begin=False)
    assert [one.deaths for one in found] == [1] * len(ids)
    return found


def test_kept_and_lost(pool: Pool) -> None:
    """What is still one's own is noted; another generation, an ended task and an unknown one are lost, untouched."""
    pool.register()
    ids = pool.put(row(), row(), row())
    fine, older, ended = died_once(pool, *ids)
    older = replace(older, generation=str(int(older.generation) - 1))
    assert pool.end(ended) == FinishStatus.OK
    assert pool.begin(fine, older, ended, replace(fine, task_id="gone")) == [KEPT, LOST, LOST, LOST]
    assert pool.task(fine.task_id)["begun"] == fine.generation
    assert "begun" not in pool.task(older.task_id)
    with pool.unchanged():
        assert pool.begin(fine) == [KEPT]


@pytest.mark.parametrize("how", ["abandon", "adopt", "recover"])
def test_what_only_waited_has_not_died(pool: Pool, how: str) -> None:
    """Of three that the dead worker held, the one that had begun dies; the others go on as they were."""
    pool.register()
    ids = pool.put(row(), row(), row())
    begun, *waited = died_once(pool, *ids)
    pool.begin(begun)
    if how == "abandon":
        assert pool.abandon("w2")[0] == 3
    elif how == "adopt":
        pool.look()
        pool.age(LEASE_MS + 1)
        assert len(pool.adopt("w3", begin=False)) == 3
    else:
        for _ in range(6):
            pool.recover()
            pool.sleep(5000)
        pool.age(3 * LEASE_MS)
        assert pool.recover() == (3, False)
    state, dead = "assigned" if how == "adopt" else "ready", pool.task(begun.task_id)
    # Only the host that saw it says which worker died.
    blame = ("1", "1") if how == "abandon" else (None, None)
    assert (dead["deaths"], dead["state"], dead.get("blamed"), dead.get("group")) == ("2", state, *blame)
    for one in waited:
        alive = pool.task(one.task_id)
        assert (alive["deaths"], alive["state"]) == ("1", state)
        assert not {"blamed", "group"} & set(alive)
        assert int(alive["gen"]) > int(one.generation)
        assert pool.end(one) == FinishStatus.STALE
