"""A rolling upgrade that changes a lease or a heartbeat costs no living worker its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.agents import queries as registry
from orchestrator.tasks import queries
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


class Waiting:
    """An agent whose handlers wait; two of them with one name are two versions of a program."""

    def __init__(self, *, lease_s: float) -> None:
        self.agent = Agent("keeper", concurrency=5, lease=lease_s)
        self.begun = 0
        self.opened = anyio.Event()

        @self.agent.skill
        async def keep(ctx: TaskContext) -> int:
            self.begun += 1
            await self.opened.wait()
            return ctx.attempt


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"worker__heartbeat_s": 5.0, "supervisor__sweep_s": 0.5}], indirect=True)
async def test_a_shorter_lease_takes_no_task_from_a_living_worker(team: LocalTeam) -> None:
    """The old worker renews every 5 s; the new one, and the supervisor, judge its entries by its own lease."""
    old, new = Waiting(lease_s=15.0), Waiting(lease_s=1.0)
    await team.work(old.agent)
    handles = [await team.orc.submit("keep") for _ in range(5)]
    await wait_for(lambda: old.begun == 5, "five tasks to begin")
    await team.work(new.agent)
    await anyio.sleep(4)
    assert new.begun == 0
    old.opened.set()
    assert [await handle.result(TIMEOUT_S) for handle in handles] == [1] * 5
    counted = await queries.counters(team.services.store)
    assert not {"adopted", "recovered", "abandoned"} & counted.keys()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"worker__heartbeat_s": 0.25, "supervisor__sweep_s": 0.2}], indirect=True)
async def test_a_longer_heartbeat_than_the_supervisors_is_no_silence(team: LocalTeam) -> None:
    """The supervisor would forget a worker of its own settings after one second; this one may be silent for longer."""
    await team.work(Waiting(lease_s=60.0).agent, worker__heartbeat_s=20.0)
    await anyio.sleep(2.5)
    (worker,) = await registry.workers(team.services.store)
    assert (await registry.agent(team.services.store, "keeper")).slots == 5
    assert worker.agents == {"keeper": 5}
