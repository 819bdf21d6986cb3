"""lua/control/release.lua: what a stop held back goes to its queues, with its places (see also test_gates.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import make_command
from orchestrator.control.scripts import release
from tests.lua.pool import row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

SCOPE, SLOT = "skill:sum", "stop:skill:sum"


def held(pool: Pool, count: int) -> list[str]:
    """Tasks that are held back; the stop is over."""
    pool.register()
    ids = pool.put(*[row(queue="agent:ed", skill="sum") for _ in range(count)])
    pool.append(make_command("stop", {"skill": "sum"}))
    while pool.assign().left:
        pass
    assert set(pool.members(pool.keys.held(SCOPE))) == set(ids)
    pool.append(make_command("start", {"skill": "sum"}))
    pool.notifications()
    return ids


def let_go(pool: Pool, limit: int = 500) -> tuple[int, bool]:
    """Let go what is held."""
    return pool.call(release(pool.keys, scope=SCOPE, slot=SLOT, limit=limit))


def test_released(pool: Pool) -> None:
    """All go back in their order; the supervisor hears of the queue; a repeat finds nothing."""
    ids = held(pool, 3)
    assert let_go(pool) == (3, False)
    assert pool.queue("agent:ed") == ids
    assert pool.notifications() == ["queue:agent:ed"]
    assert pool.execute("EXISTS", pool.keys.held(SCOPE), pool.keys.suspended_scopes) == 0
    with pool.unchanged():
        assert let_go(pool) == (0, False)


def test_not_while_it_is_stopped(pool: Pool) -> None:
    """A stop that came again meanwhile keeps them."""
    held(pool, 2)
    pool.append(make_command("stop", {"skill": "sum"}))
    with pool.unchanged():
        assert let_go(pool) == (0, False)


def test_those_that_ended(pool: Pool) -> None:
    """What was cancelled meanwhile does not come back."""
    first, second = held(pool, 2)
    pool.cancel(first)
    pool.execute("ZADD", pool.keys.held(SCOPE), 1, first)
    assert let_go(pool) == (1, False)
    assert pool.queue("agent:ed") == [second]


def test_in_batches(pool: Pool) -> None:
    """It says whether there are more, and does five hundred at once."""
    held(pool, 501)
    assert let_go(pool) == (500, True)
    assert let_go(pool) == (1, False)


def test_a_list_of_another_type_holds_no_agent_up(pool: Pool) -> None:
    """A key that a client wrote in place of held tasks is renamed when the next one is held; others start meanwhile."""
    pool.register()
    pool.append(make_command("stop", {"skill": "sum"}))
    pool.execute("SET", pool.keys.held(SCOPE), "x")
    pool.execute("SET", pool.keys.suspended_scopes, "x")
    (stopped, plain) = pool.put(row(queue="agent:ed", skill="sum"), row(queue="agent:ed"))
    assert pool.assign().count == 1
    assert [one.task_id for one in pool.read()] == [plain]
    assert pool.members(pool.keys.held(SCOPE)) == [stopped]
    renamed = [name for name in pool.names() if ":mistyped:held" in name]
    assert len(renamed) == 2
    assert all(0 < pool.ttl_s(name) <= 30 * 86_400 for name in renamed)


def test_a_damaged_list_is_released_by_nobody(pool: Pool) -> None:
    """What is no list of tasks releases nothing, and a task that it lost can be cancelled."""
    first, _ = held(pool, 2)
    pool.execute("DEL", pool.keys.held(SCOPE))
    pool.execute("SET", pool.keys.held(SCOPE), "x")
    assert let_go(pool) == (0, False)
    pool.cancel(first)
    assert pool.task(first)["state"] == "cancelled"
