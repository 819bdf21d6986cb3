"""Handlers that misbehave: each ends in the state that agents.md promises, and the worker process goes on."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from anyio import to_thread

from orchestrator import Orchestrator, TaskFailed
from orchestrator.services import pool_keys
from orchestrator.tasks.model import TaskState
from tests.helpers import subprocesses
from tests.helpers.subprocesses import alive
from tests.helpers.team import make_settings
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from orchestrator.core.settings import Settings
    from tests.faultkit.processes import ActorProcess
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

DEAD = {
    "dies": "HandlerProcessDied: the process of the handler died before it returned a result: signal SIGKILL",
    "never_returns": "longer than its timeout of 0.2 s, and its handler did not stop",
    "ignores_cancellation": "longer than its timeout of 0.2 s, and its handler did not stop",
    "large": "result of 'large' would be 2097154 bytes of JSON, more than the 1048576 allowed",
    "unpicklable": "result of 'unpicklable' does not fit its type or JSON",
    "not_json": "result of 'not_json'",
    "wrong_type": "result of 'wrong_type' does not fit its type or JSON",
    "unreadable": "Unreadable: (its str() raised)",
    "leaves": "SystemExit: a handler left",
    "interrupts": "KeyboardInterrupt",
    "cancels_itself": "CancelledError",
}
"""Each becomes a dead letter for this reason."""

ATTEMPTS = {"dies": 2}


@asynccontextmanager
async def misbehaving_team(
    settings: Settings, attempt_log: AttemptLog, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Orchestrator, ActorProcess]]:
    """A supervisor, a host with one worker process, and a client; `env`: more variables of the host."""
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(
            subprocesses.host(
                settings, attempt_log, processes=1, agents="tests.fault.misbehaving_agents:misbehaving", env=env
            )
        )
        async with Orchestrator(settings=settings) as orc:
            await wait_for(
                lambda: orc.services.store.execute("EXISTS", pool_keys(settings).agent("misbehaving")),
                lambda: host.describe("its worker to register"),
                15,
            )
            yield orc, host


@pytest.mark.slow
async def test_nasty_handlers_end_as_promised_and_the_worker_goes_on(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """One worker process takes them all; it is the same process afterwards, with all its slots."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, grace_s=0.3)
    async with misbehaving_team(settings, attempt_log) as (orc, _):
        before = await (await orc.submit("pid")).result(timeout=10)
        # Longer than three leases: the lease is renewed all the same, so nobody runs it a second time.
        assert await (await orc.submit("blocks_the_loop")).result(timeout=40) == 1
        handles = {skill: await orc.submit(skill) for skill in DEAD}
        for skill, told in DEAD.items():
            with pytest.raises(TaskFailed) as failed:
                await handles[skill].result(timeout=20)
            assert told in failed.value.reason, skill
            info = await handles[skill].info()
            assert (info.attempts, info.deaths) == (ATTEMPTS.get(skill, 1), ()), skill
        after = [await orc.submit("pid") for _ in range(8)]
        assert {await handle.result(timeout=10) for handle in after} == {before}


@pytest.mark.parametrize("how", ["loop", "interpreter"])
async def test_a_stuck_worker_is_killed_and_replaced(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, how: str
) -> None:
    """Its host sees that its loop stands still; the task has a death that says so, and other work goes on."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, stuck_after_s=1.0, heartbeat_s=0.2)
    # On a busy machine the host takes longer than the short lease of these agents, whose end would be a death, too.
    async with misbehaving_team(settings, attempt_log, {"NASTY_LEASE_S": "30"}) as (orc, _):
        before = await (await orc.submit("pid")).result(timeout=10)
        handle = await orc.submit("stuck", {"how": how})
        with pytest.raises(TaskFailed, match="deaths"):
            await handle.result(timeout=20)
        (death,) = (await handle.info()).deaths
        assert "stuck: its event loop had not turned for" in death
        assert await (await orc.submit("pid")).result(timeout=10) != before


async def test_a_worker_whose_output_was_closed_goes_on(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """It has no place left to print to: its heartbeats go on, its loop turns, and its end is an orderly one."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, stuck_after_s=1.0, heartbeat_s=0.1)
    async with misbehaving_team(settings, attempt_log) as (orc, host):
        before = await (await orc.submit("pid")).result(timeout=10)
        assert await (await orc.submit("closes_output")).result(timeout=10) == "closed"
        store, workers = orc.services.store, orc.services.keys.workers
        for _ in range(15):  # longer than its watchdog waits for a sign
            last = await store.execute("ZRANGE", workers, 0, -1, "WITHSCORES")

            async def beaten(last: object = last) -> bool:
                return bool(await store.execute("ZRANGE", workers, 0, -1, "WITHSCORES") != last)

            await wait_for(beaten, "a heartbeat", 5)
        with pytest.raises(TaskFailed):  # which is logged
            await (await orc.submit("unreadable")).result(timeout=10)
        assert await (await orc.submit("pid")).result(timeout=10) == before
        host.terminate()
        assert await to_thread.run_sync(host.wait_exit, 20) == 0, host.describe("an orderly end")
        assert "worker_died" not in host.output


@pytest.mark.slow
@pytest.mark.parametrize("how", ["told", "orphaned"])
async def test_a_worker_ends_although_a_handler_does_not(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, tmp_path: Path, how: str
) -> None:
    """Told to stop, or orphaned by the death of its host: what runs goes back unburnt, and the process is gone."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, grace_s=0.2, drain_s=0.2)
    async with misbehaving_team(settings, attempt_log) as (orc, host):
        pid = await (await orc.submit("pid")).result(timeout=10)
        handle = await orc.submit("never_ends", {"marker": str(tmp_path / "begun")})
        await wait_for((tmp_path / "begun").exists, "it to begin")
        if how == "told":
            host.terminate()
        else:
            host.kill()
        await wait_for(lambda: not alive(pid), lambda: host.describe("its worker to end"), 20)
        info = await handle.info()
        assert (info.state, info.attempts, info.deaths) == (TaskState.READY, 0, ())
