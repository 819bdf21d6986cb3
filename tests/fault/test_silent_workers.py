"""Commands for a worker that is cut off for so long that it leaves the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.testing.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.team import Member, Team


def forget_heartbeat(team: Team, member: Member) -> None:
    """Move the last heartbeat of a worker into the past."""
    assert team.direct.zadd(team.keys.workers, {member.worker.id: 1}, xx=True, ch=True) == 1


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_drain_outlives_the_silence_of_its_worker(make_team: Callable[..., Team], when: str) -> None:
    """A drained worker that returns takes no task; the task goes to another worker."""
    async with make_team(sweep_s=0.1, heartbeat_s=0.1) as team:
        await team.start_supervisor()
        silent = await team.start_worker()
        async with team.open_client() as orc:
            if when == "before":
                await orc.admin.drain_worker(silent.worker.id)
                await wait_for(lambda: silent.worker._commands.draining, "the worker to drain")
            silent.proxy.blackhole()
            if when == "during":
                await orc.admin.drain_worker(silent.worker.id)
            forget_heartbeat(team, silent)
            await wait_for(lambda: team.slots_of(silent) == 0, "the worker to leave the registry")
            silent.proxy.heal()
            silent.proxy.cut()
            await wait_for(lambda: team.slots_of(silent) == 2, "the worker to register again")
            await wait_for(lambda: silent.worker._commands.draining, "the worker to drain")
            waiting = await orc.submit("echo", {"n": 1})
            assert team.direct.hget(team.keys.agent("scribe"), "slots") == b"0"
            await team.start_worker()
            assert await waiting.result(timeout=5) == 1
            assert team.direct.hexists(team.keys.desired, f"drain:worker:{silent.worker.id}")


@pytest.mark.roles(worker="pauser")  # another worker leaves the command to the supervisor
async def test_a_stop_reaches_a_worker_that_returns(make_team: Callable[..., Team]) -> None:
    """The worker exits and takes the command for it along."""
    async with make_team(sweep_s=0.1, heartbeat_s=0.1) as team:
        await team.start_supervisor()
        silent = await team.start_worker()
        async with team.open_client() as orc:
            silent.proxy.blackhole()
            stop = await orc.admin.stop_worker(silent.worker.id)
            forget_heartbeat(team, silent)
            await wait_for(lambda: team.slots_of(silent) == 0, "the worker to leave the registry")
            silent.proxy.heal()
            silent.proxy.cut()
            await wait_for(silent.ended.is_set, "the worker to exit")
            receipt: Any = team.direct.hget(team.keys.receipts(stop.id), silent.worker.id)
            assert receipt.split(b" ")[1] == b"done"
            assert not team.direct.hexists(team.keys.desired, f"drain:worker:{silent.worker.id}")


async def test_a_late_answer_starts_nothing_after_a_stop_that_was_confirmed_without_its_worker(
    make_team: Callable[..., Team],
) -> None:
    """A stop is confirmed while a worker is out of the registry; then it receives a task that it had asked for."""
    async with make_team(sweep_s=0.1, heartbeat_s=0.1, lease_s=30.0) as team:
        await team.start_supervisor()
        silent = await team.start_worker()
        async with team.open_client() as orc:
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=4) == 1
            silent.proxy.blackhole(up=False)
            handle = await orc.submit("echo", {"n": 2})
            await wait_for(
                lambda: team.direct.xpending_range(team.keys.inbox("scribe"), "workers", "-", "+", 10),
                "Redis to deliver the entry",
            )
            silent.proxy.blackhole()
            await wait_for(lambda: team.slots_of(silent) == 0, "the worker to leave the registry")
            stop = await orc.admin.stop()
            assert (await stop.receipts(until_done=True)).done
            silent.proxy.heal()
            await wait_for(lambda: team.slots_of(silent) == 2, "the worker to register again")
            assert team.attempt_log.notes("begun", task=handle.id) == []
            await wait_for(lambda: team.state(handle.id) == "ready", "the worker to return the task")
            await orc.admin.start()
            assert await handle.result(timeout=5) == 2
