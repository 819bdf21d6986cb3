"""A server that is full, that has lost an inbox, or that a worker cannot reach for longer than its lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator.core.errors import ServerFull
from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer
from tests.helpers.end_state import counters, find_violations
from tests.helpers.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.attempt_log import AttemptLog


@pytest.mark.every_server(alone=True)
async def test_an_inbox_that_vanished_under_an_idle_worker_is_made_again(make_team: Callable[..., Team]) -> None:
    """The stream and its group are deleted while the worker waits at it; the next task runs."""
    async with make_team() as team:
        await team.start_supervisor()
        await team.start_worker()
        async with team.open_client() as orc:
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=5) == 1
            inbox = team.keys.inbox("scribe")
            assert team.direct.delete(inbox) == 1
            assert await (await orc.submit("echo", {"n": 2})).result(timeout=5) == 2
            assert team.direct.exists(inbox)
        assert find_violations(team.direct, team.keys) == []


async def test_a_full_server_refuses_tasks_and_finishes_those_it_has(
    prefix: str, attempt_log: AttemptLog, gate: Path
) -> None:
    """Submit says ServerFull and stores nothing; what runs, and what waits, still ends."""
    with RedisServer() as server:
        async with Team(server, prefix, attempt_log, slots=2) as team:
            await team.start_supervisor()
            await team.start_worker()
            async with team.open_client() as orc:
                held = [await orc.submit("hold", {"gate": str(gate)}) for _ in range(2)]
                waiting = [await orc.submit("echo", {"n": n}) for n in range(20)]
                await wait_for(lambda: len(attempt_log.notes("begun")) == 2, "both slots to be taken")
                team.direct.config_set("maxmemory", "1")
                with pytest.raises(ServerFull, match="out of memory"):
                    await orc.submit("echo", {"n": 1})
                with pytest.raises(ServerFull):
                    await orc.submit("echo", {"n": 1}, delay=60)
                await anyio.Path(gate).touch()
                assert [await handle.result(timeout=10) for handle in held] == ["held", "held"]
                assert [await handle.result(timeout=10) for handle in waiting] == list(range(20))
                team.direct.config_set("maxmemory", "0")
                assert await (await orc.submit("echo", {"n": 5})).result(timeout=5) == 5
            assert counters(team.direct, team.keys)["submitted"] == 23, "a refused submit left something"
            assert find_violations(team.direct, team.keys) == []


async def test_children_that_a_full_server_refuses_cost_no_attempt(prefix: str, attempt_log: AttemptLog) -> None:
    """A worker starts on a full server; its handler is snoozed until there is room, however few attempts it has."""
    with RedisServer() as server:
        async with Team(server, prefix, attempt_log) as team:
            await team.start_supervisor()
            async with team.open_client() as orc:
                family = await orc.submit("family", {"children": 3}, max_attempts=1)
                team.direct.config_set("maxmemory", "1")
                worker = await team.start_worker()
                await wait_for(lambda: len(attempt_log.notes("outage")) >= 2, "the parent to be refused twice")
                team.direct.config_set("maxmemory", "0")
                assert await family.result(timeout=10) == 3
            await worker.drain()
            assert find_violations(team.direct, team.keys) == []


@pytest.mark.slow
async def test_a_worker_out_of_reach_for_longer_than_its_lease_changes_nothing(
    make_team: Callable[..., Team], attempt_log: AttemptLog
) -> None:
    """Its peer adopts its tasks; the verdicts that it sends when it is back are stale."""
    async with make_team(lease_s=1.0, command_timeout_s=0.5) as team:
        await team.start_supervisor()
        lost = await team.start_worker()
        async with team.open_client() as orc:
            handles = [await orc.submit("pause", {"seconds": 0.4}) for _ in range(3)]
            await wait_for(lambda: len(attempt_log.notes("begun")) == 3, "all to run")
            lost.proxy.blackhole()
            await wait_for(lambda: len(attempt_log.notes("done")) == 3, "all to end, unheard")
            peer = await team.start_worker()
            results = [await handle.result(timeout=10) for handle in handles]
            heard = len(lost.proxy.commands("EVALSHA"))
            lost.proxy.heal()
            await wait_for(
                lambda: any(record.outcome == "replied" for record in lost.proxy.commands("EVALSHA")[heard:]),
                "the lost worker to be heard again",
            )
            await lost.drain()
        for handle, result in zip(handles, results, strict=True):
            first, second = attempt_log.notes("begun", task=handle.id)
            assert int(first.generation) < int(second.generation), "the first run was not fenced"
            assert result == second.generation, "the verdict of the lost worker stood"
            assert team.task(handle.id)["deaths"] == b"1"
        assert counters(team.direct, team.keys)["succeeded"] == 3
        assert all(member.worker is peer.worker or member.ended.is_set() for member in (lost, peer))
        assert find_violations(team.direct, team.keys) == []


async def test_a_verdict_that_is_refused_holds_up_no_other(
    make_team: Callable[..., Team], attempt_log: AttemptLog, gate: Path
) -> None:
    """Another type lies where a task's record was: its verdict is refused again and again, its neighbours' are not."""
    async with make_team(lease_s=3.0) as team:
        await team.start_supervisor()
        await team.start_worker()
        async with team.open_client() as orc:
            handles = [await orc.submit("hold", {"gate": str(gate)}) for _ in range(4)]
            await wait_for(lambda: len(attempt_log.notes("begun")) == 4, "all to run")
            broken = team.keys.task(handles[0].id)
            team.direct.delete(broken)
            team.direct.set(broken, "not ours", ex=60)
            await anyio.Path(gate).touch()
            assert [await handle.result(timeout=10) for handle in handles[1:]] == ["held"] * 3
        team.direct.delete(broken)
        # What the refused calls left half done is cleared away at the worker's next looks.
        await wait_for(lambda: not team.direct.xlen(team.keys.inbox("scribe")), "the inbox to be empty", 10)
