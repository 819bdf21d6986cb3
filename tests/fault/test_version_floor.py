"""Programs that the pool does not admit any more: they finish their work, say what to do, and end for good."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from orchestrator import FormatMismatch, Orchestrator
from orchestrator.client import floor_watch
from orchestrator.core.formats import FORMAT
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.faultkit.processes import ActorProcess
from tests.helpers import subprocesses
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from orchestrator.core.settings import Settings
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

SENTENCE = f"admits only programs of format {FORMAT + 1} or newer"
WAIT_S = 15
CONFIGURATION = 78


def supervisor(settings: Settings) -> ActorProcess:
    """A supervisor as an operator starts it."""
    return ActorProcess.python(
        "-m", "orchestrator", "supervisor", "run", name="supervisor", env=subprocesses.environment(settings)
    )


async def exit_code(program: ActorProcess) -> int | None:
    """Wait for the end of a program."""
    await wait_for(lambda: program.returncode is not None, lambda: program.describe("its end"), WAIT_S)
    return program.returncode


async def test_programs_below_the_floor_finish_their_work_and_end(
    redis_server: RedisServer, redis_client: redis.Redis, prefix: str, attempt_log: AttemptLog
) -> None:
    """A newer program raises the floor: workers drain, supervisors stop, all exit with 78; no process comes back."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, heartbeat_s=0.1)
    keys = pool_keys(settings)
    with ExitStack() as stack:
        supervisors = [stack.enter_context(supervisor(settings)) for _ in range(2)]
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=2))
        async with Orchestrator(settings=settings) as orc:
            running = [await orc.submit("pause", {"seconds": 1.0}) for _ in range(4)]
            await wait_for(lambda: len(attempt_log.notes("begun")) == 4, "the tasks to begin", WAIT_S)
            redis_client.set(keys.format, FORMAT + 1)
            for program in (host, *supervisors):
                assert await exit_code(program) == CONFIGURATION
                assert SENTENCE in program.output
                assert "pip install -U redis-orchestrator" in program.output
            for handle in running:
                assert await handle.result(timeout=WAIT_S)
        assert host.output.count("program_shut_out") == 2
        assert "worker_died" not in host.output
        assert len(attempt_log.notes("done")) == 4
        assert set(attempt_log.runs().values()) == {1}
        # A program that starts now gets the same sentence.
        with subprocesses.host(settings, attempt_log, processes=1) as late:
            assert (await exit_code(late), SENTENCE in late.output) == (CONFIGURATION, True)


async def test_a_client_below_the_floor_submits_no_more(
    redis_server: RedisServer, redis_client: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was open before learns it while it submits; reading goes on."""
    monkeypatch.setattr(floor_watch, "READ_EVERY_S", 0.05)
    settings = make_settings(redis_server.url, prefix)
    async with Orchestrator(settings=settings) as orc:
        handle = await orc.submit("nobody")
        redis_client.set(pool_keys(settings).format, FORMAT + 1)

        async def refused() -> bool:
            try:
                await orc.submit("nobody")
            except FormatMismatch as refusal:
                return SENTENCE in str(refusal)
            return False

        await wait_for(refused, "a refusal")
        with pytest.raises(FormatMismatch):
            await orc.submit_many([])
        assert (await handle.status()).state == "ready"


async def test_running_handlers_finish_below_the_floor(
    redis_server: RedisServer, redis_client: redis.Redis, prefix: str, attempt_log: AttemptLog, tmp_path: Path
) -> None:
    """A handler submits children after its worker was shut out; one with a client of its own counts no failure."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, heartbeat_s=0.1)
    keys, gate = pool_keys(settings), tmp_path / "gate"
    agents = "tests.helpers.late_submitters:agents"
    with supervisor(settings), subprocesses.host(settings, attempt_log, processes=1, agents=agents) as host:
        async with Orchestrator(settings=settings) as orc:
            parent, other = [await orc.submit(skill, {"gate": str(gate)}) for skill in ("submit_child", "open_client")]
            await wait_for(lambda: len(attempt_log.notes("begun")) == 2, "the tasks to begin", WAIT_S)
            redis_client.set(keys.format, FORMAT + 1)
            await wait_for(lambda: "program_shut_out" in host.output, lambda: host.describe("to be shut out"), WAIT_S)
            gate.touch()
            child = await parent.result(timeout=WAIT_S)
            assert (await orc.task(child).info()).parent == parent.id
            assert await exit_code(host) == CONFIGURATION
            assert (await other.info()).state == "scheduled"
            assert redis_client.hget(keys.task(other.id), "fails") in {None, b"0"}
