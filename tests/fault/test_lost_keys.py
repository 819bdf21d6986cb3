"""Keys of the pool vanish while it works: the team makes them again, or the reconciler puts things back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.repair.scan import KeyLifetimes, PoolScan
from orchestrator.services import open_services
from orchestrator.testing.waiting import wait_for
from tests.helpers.end_state import counters, find_violations

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from tests.helpers.team import Team

TASKS = 20
MADE_AGAIN = (
    "doorbell",
    "events",
    "limits",
    "limit:@clerk",
    "agents",
    "agent:scribe",
    "agent:clerk",
    "agent:scribe:workers",
    "workers",
    "worker:*",
    "skills:echo",
    "skills:stamp",
    "leader",
    "replies:*",
    "stats:TOTAL",
)
"""What the next heartbeat, call or entry brings back."""
PUT_BACK = (
    "inbox:scribe",
    *[pytest.param(key, marks=pytest.mark.slow) for key in ("queues", "queue:skill:pause", "scheduled")],
)
"""Where tasks were: only their records tell that they are missing."""


def lose(team: Team, suffix: str) -> int:
    """Delete a key of the pool, or all of one kind; how many there were."""
    names: Any = list(team.direct.scan_iter(f"{team.keys.root}:{suffix}", count=1000))
    return int(team.direct.unlink(*names)) if names else 0


async def put_to_work(orc: Orchestrator) -> list[TaskHandle[Any]]:
    """Tasks that run, that wait in queues, that are limited, and that wait for their time."""
    handles = [await orc.submit("pause", {"seconds": 0.05}) for _ in range(TASKS)]
    handles += [await orc.submit("stamp") for _ in range(TASKS)]
    return [*handles, await orc.submit("echo", {"n": 1}, delay=1.0)]


@pytest.mark.slow
async def test_what_the_team_makes_again(make_team: Callable[..., Team]) -> None:
    """Each of these keys is deleted in the middle of the work: all tasks end once, nobody needs to repair anything."""
    async with make_team(slots=4, heartbeat_s=0.1, sweep_s=0.3, leader_lease_s=1.0) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            assert await (await orc.submit("stamp")).result(timeout=4) == "stamped"
            lost, handles = [], []
            for suffix in MADE_AGAIN:
                handles = await put_to_work(orc)
                if lose(team, suffix):
                    lost.append(suffix)
                states = [await _result(handle) for handle in handles[: 2 * TASKS]]
                assert len(states) == 2 * TASKS, suffix
            await handles[-1].result(timeout=10)
            await wait_for(lambda: not team.direct.exists(team.keys.scheduled), "what was scheduled", 10)
        await worker.drain()
        assert set(lost) >= set(MADE_AGAIN) - {"limit:@clerk", "replies:*"}, "too few keys were there to be lost"
        assert team.attempt_log.attempts_run_twice() == []
        assert [each for each in find_violations(team.direct, team.keys) if "its endings were" not in each] == []


@pytest.mark.parametrize("suffix", PUT_BACK)
async def test_what_the_reconciler_puts_back(suffix: str, make_team: Callable[..., Team]) -> None:
    """Tasks lose the place where they stood; without a repair they wait for ever, after it they end."""
    async with make_team(slots=4, heartbeat_s=0.1, sweep_s=0.3, leader_lease_s=1.0) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            handles = [await orc.submit("pause", {"seconds": 0.3}) for _ in range(TASKS)]
            handles.append(await orc.submit("echo", {"n": 1}, delay=2.0))
            await wait_for(lambda: team.attempt_log.notes("begun"), "the first to run")
            assert lose(team, suffix), "there was nothing to lose"
            with anyio.fail_after(20):
                while not all([(await handle.status()).state.final for handle in handles]):
                    await repair(team)
                    await anyio.sleep(0.1)
            assert [await handle.result(timeout=4) is not None for handle in handles] == [True] * len(handles)
        await worker.drain()
        counted = counters(team.direct, team.keys)
        assert counted["repaired"], "nothing was missing"
        assert counted["succeeded"] == len(handles)
        assert find_violations(team.direct, team.keys) == []


@pytest.mark.every_server(alone=True)
async def test_a_group_that_is_destroyed_is_made_again(
    make_team: Callable[..., Team], caplog: pytest.LogCaptureFixture
) -> None:
    """What was read is read again from the beginning; every task ends once, whatever was run twice for it."""
    async with make_team(slots=4, heartbeat_s=0.1, sweep_s=0.3, leader_lease_s=1.0) as team:
        await team.start_supervisor()
        workers = [await team.start_worker() for _ in range(2)]
        async with team.open_client() as orc:
            handles = [await orc.submit("pause", {"seconds": 0.1}) for _ in range(TASKS)]
            destroyed = 0
            for _ in range(5):
                await anyio.sleep(0.1)
                destroyed += team.direct.xgroup_destroy(team.keys.inbox("scribe"), "workers")
            assert destroyed, "there was no group to destroy"
            for handle in handles:
                await handle.result(timeout=15)
        for worker in workers:
            await worker.drain()
        assert "inbox_missing" in caplog.text, "nobody missed the group"
        assert counters(team.direct, team.keys)["succeeded"] == TASKS
        assert find_violations(team.direct, team.keys) == []


async def repair(team: Team) -> None:
    """Walk through the pool once, as the leading supervisor does every ten minutes."""
    settings = team.settings(team.client)
    async with open_services(settings, name="repair") as services:
        async for _ in PoolScan(services.store, KeyLifetimes.of(settings), repair=True).steps():
            pass


async def _result(handle: TaskHandle[Any]) -> Any:
    return await handle.result(timeout=10)
