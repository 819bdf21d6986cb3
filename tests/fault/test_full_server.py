"""A server whose memory is full, for longer than any lease: who lives stays alive, and room comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
import redis

from orchestrator import Agent, TaskContext
from orchestrator.core.errors import ServerFull
from orchestrator.services import open_services
from orchestrator.tasks import scripts
from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer
from tests.helpers.end_state import counters, find_violations
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.team import Team

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.client.handle import TaskHandle
    from orchestrator.embedded.server_binary import ServerBinary
    from tests.helpers.attempt_log import AttemptLog


async def test_nobody_is_declared_dead(binary: ServerBinary, prefix: str, attempt_log: AttemptLog, gate: Path) -> None:
    """Heartbeats, renewals and the leader go on for two leases; what a plain client would store is refused."""
    timings: dict[str, Any] = {"heartbeat_s": 0.2, "sweep_s": 0.3, "leader_lease_s": 0.6}
    with RedisServer(binary) as server:
        async with Team(server, prefix, attempt_log, lease_s=1.0, slots=2, **timings) as team:
            await team.start_supervisor()
            member, peer = await team.start_worker(), await team.start_worker()
            async with team.open_client() as orc:
                held = [await orc.submit("hold", {"gate": str(gate)}) for _ in range(2)]
                await wait_for(lambda: len(attempt_log.notes("begun")) == 2, "both to run")
                leader = team.direct.get(team.keys.leader)
                team.direct.config_set("maxmemory", "1")
                with pytest.raises(redis.exceptions.OutOfMemoryError):
                    team.direct.set(f"{prefix}:heartbeat", "alive", px=60_000)
                began = _last_beat_ms(team, member.worker.id)
                # Longer than a worker counts as alive without a heartbeat (1 s here), and two leases.
                await wait_for(
                    lambda: min(_last_beat_ms(team, each.worker.id) for each in (member, peer)) > began + 2000,
                    "heartbeats of two seconds",
                )
                assert team.direct.get(team.keys.leader) == leader
                with pytest.raises(ServerFull):
                    await orc.submit("echo", {"n": 1})
                await anyio.Path(gate).touch()
                assert [await handle.result(timeout=10) for handle in held] == ["held", "held"]
                assert len(attempt_log.notes("begun")) == 2, "somebody took a running task for lost"
                team.direct.config_set("maxmemory", "0")
                assert await (await orc.submit("echo", {"n": 5})).result(timeout=4) == 5
            assert not counters(team.direct, team.keys).keys() & {"adopted", "recovered", "abandoned"}
            assert find_violations(team.direct, team.keys) == []


async def test_working_and_deleting_make_room(binary: ServerBinary, prefix: str, attempt_log: AttemptLog) -> None:
    """Tasks fill the server until it refuses more; all are done; when they are deleted, new ones are accepted."""
    with RedisServer(binary) as server:
        async with Team(server, prefix, attempt_log) as team:
            await team.start_supervisor()
            async with team.open_client() as orc:
                # Far more than the 0.7 MB of scripts that the worker and the deletion load into the full server.
                room = int(team.direct.info("memory")["used_memory"]) + 4_000_000
                team.direct.config_set("maxmemory", str(room))
                handles: list[TaskHandle[Any]] = []

                async def submit_until_refused() -> None:
                    while True:
                        handles.append(await orc.submit("echo", {"n": len(handles)}, tags=["x" * 60] * 20))

                with pytest.raises(ServerFull):
                    await submit_until_refused()
                assert len(handles) > 100
                await team.start_worker()
                for n, handle in enumerate(handles):
                    assert await handle.result(timeout=20) == n
                full = int(team.direct.info("memory")["used_memory"])
                async with open_services(team.settings(team.client), name="bulk") as services:
                    await services.store.call(scripts.delete(team.keys, ids=[handle.id for handle in handles]))
                assert int(team.direct.info("memory")["used_memory"]) < full
                # Redis frees what was deleted in a thread of its own.
                await wait_for(lambda: int(team.direct.info("memory")["used_memory"]) < room, "room in the server")
                assert await (await orc.submit("echo", {"n": 1})).result(timeout=4) == 1
            assert counters(team.direct, team.keys)["succeeded"] == len(handles) + 1


async def test_output_that_a_full_server_refuses_costs_no_attempt(binary: ServerBinary, prefix: str) -> None:
    """`emit` raises ServerFull, the attempt is put off until there is room, and its output is there once."""
    agent, refused = Agent("teller"), []

    @agent.skill(max_attempts=1)
    async def tell(ctx: TaskContext) -> str:
        try:
            await ctx.emit({"said": "it"})
        except ServerFull:
            refused.append(ctx.attempt)
            raise
        return "told"

    with RedisServer(binary) as server:
        async with run_local_team(local_settings(server.url, prefix)) as team:
            handle = await team.orc.submit("tell")
            with server.client() as direct:
                direct.config_set("maxmemory", "1")
                await team.work(agent)
                await wait_for(lambda: len(refused) >= 2, "emit to be refused twice")
                direct.config_set("maxmemory", "0")
            assert await handle.result(10) == "told"
            assert set(refused) == {1}, "an attempt was counted"
            assert [chunk.data async for chunk in handle.output()] == [{"said": "it"}]


async def test_a_full_server_takes_large_results_and_no_large_arguments(binary: ServerBinary, prefix: str) -> None:
    """It refuses a result of 100 kB in front of the verdict, which then carries it; a submit is refused whole."""
    agent, running, full = Agent("large"), anyio.Event(), anyio.Event()

    @agent.skill
    async def echo(text: str) -> str:
        running.set()
        await full.wait()
        return text

    text = "x" * 100_000
    with RedisServer(binary) as server, server.client() as direct:
        async with run_local_team(local_settings(server.url, prefix)) as team:
            await team.work(agent)
            handle = await team.orc.submit("echo", {"text": text})
            await running.wait()
            direct.config_set("maxmemory", "1")
            with pytest.raises(ServerFull):
                await team.orc.submit("echo", {"text": text})
            full.set()
            assert await handle.result(10) == text
            assert len(direct.hget(team.services.keys.task(handle.id), "result")) == len(text) + 2
            direct.config_set("maxmemory", "0")
            assert await (await team.orc.submit("echo", {"text": text})).result(10) == text
            assert len(direct.keys(team.services.keys.task("*"))) == 2


def _last_beat_ms(team: Team, worker: str) -> float:
    score: Any = team.direct.zscore(team.keys.workers, worker)
    return float(score or 0)
