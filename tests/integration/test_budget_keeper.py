"""The loop of the supervisor that keeps budgets in order, beside damage and many waiting tasks."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator.core.wakeups import Wakeup
from orchestrator.store.store import Endpoint, SyncStore
from orchestrator.supervisor.budget_keeper import BudgetKeeper
from tests.helpers.local_team import run_local_team
from tests.helpers.waiting import wait_for
from tests.lua.budgets.test_waiting import held, reserving
from tests.lua.pool import Pool, Team, row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from tests.faultkit.servers import RedisServer


@pytest.fixture
async def services(settings: Settings) -> AsyncIterator[Services]:
    """The services of a pool that no supervisor leads."""
    async with run_local_team(settings, supervised=False) as running:
        yield running.services


@pytest.fixture
def pool(redis_server: RedisServer, prefix: str, services: Services) -> Pool:
    """The same pool, for calls of scripts."""
    pool = Pool(redis_server.url, prefix)
    pool.keys = services.keys
    pool.store = SyncStore(Endpoint.at(redis_server.url), services.keys, name="test")
    pool.link = pool.store._router
    pool.set_server_time()
    return pool


def waits(pool: Pool) -> str:
    """Put a task that waits for a budget without room."""
    pool.set_budget(usd=0)
    pool.register()
    (id_,) = pool.put(row(budget="b"))
    hold(pool, 1)
    return id_


def hold(pool: Pool, count: int) -> None:
    """Assign until `count` tasks wait for their budget."""
    while pool.assign().left:
        pass
    assert held(pool) == count


async def test_a_damaged_record_of_another_agent(pool: Pool, services: Services) -> None:
    """Tasks that wait start also while the record of an agent is a key of another type."""
    waits(pool)
    pool.register("w2", Team("bob"))
    pool.execute("DEL", pool.keys.agent("bob"))
    pool.execute("SET", pool.keys.agent("bob"), "x", "EX", 60)
    pool.set_budget(usd=1)
    async with anyio.create_task_group() as running:
        running.start_soon(BudgetKeeper(services, Wakeup()).run)
        await wait_for(lambda: held(pool) == 0, "no task that waits")
        running.cancel_scope.cancel()


async def test_the_last_task_that_waited_ends(pool: Pool, services: Services) -> None:
    """A budget for which no task waits any longer is unlisted, so that later submits look for no scope of it."""
    id_, wakeup = waits(pool), Wakeup()
    async with anyio.create_task_group() as running:
        running.start_soon(BudgetKeeper(services, wakeup).run)
        await wait_for(lambda: held(pool) == 0, "the first pass, which moves all")
        hold(pool, 1)
        pool.cancel(id_)
        assert pool.execute("SMEMBERS", pool.keys.suspended_scopes) == [b"budget:b"]
        wakeup.notify("budgets")
        await wait_for(lambda: not pool.execute("EXISTS", pool.keys.suspended_scopes), "no scope")
        running.cancel_scope.cancel()


async def test_passes_leave_time_to_others(pool: Pool, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """While each call of a budget with many waiting tasks asks for a pass, passes take a small part of the time."""
    # None of the tasks fits, and some is left.
    pool.set_budget(usd=4.9)
    pool.register(team=reserving(5))
    for _ in range(3):
        pool.put(*[row(budget="b") for _ in range(500)])
    hold(pool, 1500)
    wakeup, took_s, passes = Wakeup(), 0.0, 0
    sweep_all = BudgetKeeper._sweep_all

    async def timed(keeper: BudgetKeeper, turn: object) -> None:
        nonlocal took_s, passes
        began_s = monotonic()
        await sweep_all(keeper, turn)  # type: ignore[arg-type]
        took_s, passes = took_s + monotonic() - began_s, passes + 1
        if passes > 1:
            wakeup.notify("budgets")

    monkeypatch.setattr(BudgetKeeper, "_sweep_all", timed)
    async with anyio.create_task_group() as running:
        running.start_soon(BudgetKeeper(services, wakeup).run)
        await wait_for(lambda: passes > 0, "the first pass, which moves all")
        hold(pool, 1500)
        began_s, took_s = monotonic(), 0.0
        wakeup.notify("budgets")
        await wait_for(lambda: passes >= 5, "some passes")
        assert took_s < (monotonic() - began_s) / 3
        running.cancel_scope.cancel()
