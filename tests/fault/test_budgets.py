"""Workers that are killed in the middle of calls that spend: budgets hold, and each call counts once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from orchestrator.views.budgets import show_budget
from tests.helpers import subprocesses
from tests.helpers.end_state import find_violations
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.views.budgets import BudgetUnit
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

pytestmark = pytest.mark.slow

AGENT = "tests.fault.budget_agents:lab"
WAIT_S = 40


@pytest.fixture
async def orc(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> AsyncIterator[Orchestrator]:
    """A client of a pool with a supervisor and three worker processes."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        stack.enter_context(subprocesses.host(settings, attempt_log, processes=3, slots=4, agents=AGENT))
        async with Orchestrator(settings=settings) as client:
            yield client
        direct = stack.enter_context(redis_server.client())
        assert find_violations(direct, pool_keys(settings)) == []


async def usd(orc: Orchestrator) -> BudgetUnit:
    """Dollars of the budget."""
    return (await show_budget(orc.services, "run")).units[0]


@pytest.mark.parametrize("lost", ["spent", "free"])
async def test_killed_in_the_middle(orc: Orchestrator, lost: str) -> None:
    """Calls of killed workers count as the budget says, those of the next attempts once, and nothing stays held."""
    await orc.admin.set_budget("run", usd=1, lost=lost)
    handles = [await orc.submit("study", {"die": number < 2}, budget="run") for number in range(3)]
    for handle in handles:
        assert await handle.result(WAIT_S) == "done"
    deaths = sum([len((await handle.info()).deaths) for handle in handles])
    assert deaths >= 1

    async def nothing_held() -> bool:
        return (await usd(orc)).held == 0

    await wait_for(nothing_held, "nothing is held", WAIT_S)
    assert (await usd(orc)).spent == pytest.approx(0.03 + 0.01 * deaths * (lost == "spent"))


async def test_several_workers_spend_one_budget(orc: Orchestrator, attempt_log: AttemptLog) -> None:
    """Three workers with twelve slots spend exactly the limit, and each call counts once."""
    await orc.admin.set_budget("run", usd=1)
    handles = await orc.submit_many([Submission("explore", budget="run") for _ in range(12)])

    async def exhausted() -> bool:
        found = await usd(orc)
        return (found.spent, found.held) == (1.0, 0.0)

    await wait_for(exhausted, "the limit is spent", WAIT_S)
    assert len(attempt_log.notes("called")) == 100
    # Tasks that had not started wait for room.
    await orc.admin.set_budget("run", usd=1.5)
    results = [await handle.result(WAIT_S) for handle in handles]
    calls = sum(int(result.removeprefix("partial, ")) for result in results)
    assert len(attempt_log.notes("called")) == calls
    assert (await usd(orc)).spent == pytest.approx(calls / 100)
    assert calls <= 150
