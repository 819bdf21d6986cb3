"""The disk under the append-only file is full: what was confirmed is kept, the rest is refused, and it heals."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
import redis

from orchestrator.core.errors import ServerFull
from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer
from tests.helpers.end_state import counters, find_violations
from tests.helpers.team import Team

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.client.handle import TaskHandle
    from orchestrator.embedded.server_binary import ServerBinary
    from tests.helpers.attempt_log import AttemptLog

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit, to fill the disk of a running server")


@pytest.mark.slow
async def test_a_full_disk_heals(binary: ServerBinary, prefix: str, attempt_log: AttemptLog, gate: Path) -> None:
    """A running task outlives two leases without a disk, nobody takes it, and no confirmed task is lost by a kill."""
    options = {"appendonly": "yes", "appendfsync": "everysec"}
    timings: dict[str, Any] = {"heartbeat_s": 0.2, "sweep_s": 0.3, "leader_lease_s": 0.6}
    with RedisServer(binary, options=options) as server:
        async with Team(server, prefix, attempt_log, lease_s=1.0, slots=2, **timings) as team:
            await team.start_supervisor()
            await team.start_worker()
            await team.start_worker()
            async with team.open_client() as orc:
                held = await orc.submit("hold", {"gate": str(gate)})
                await wait_for(lambda: attempt_log.notes("begun"), "the task to run")
                server.fill_disk()
                confirmed: list[TaskHandle[Any]] = []

                async def submit_until_refused() -> None:
                    while True:
                        confirmed.append(await orc.submit("hold", {"gate": str(gate)}, delay=60))

                with anyio.fail_after(10), pytest.raises(ServerFull, match="cannot write to its disk; free some space"):
                    await submit_until_refused()
                with pytest.raises(redis.ResponseError, match="MISCONF"):
                    team.direct.incr(f"{prefix}:probe")
                await anyio.sleep(2.2)  # the fault itself: two leases
                server.fill_disk(full=False)
                await wait_for(lambda: _writes(team, prefix), "the server to write again")
                assert await (await orc.submit("echo", {"n": 5})).result(timeout=5) == 5
                # Another lease: whoever would take the task for lost has looked.
                before = _looked_ms(team)
                await wait_for(lambda: _looked_ms(team) > before + 1200, "looks at the inbox")
                assert len(attempt_log.notes("begun", task=held.id)) == 1, "a running task was taken for lost"
                await anyio.to_thread.run_sync(server.restart)
                assert {team.state(handle.id) for handle in confirmed} <= {"scheduled"}, "a confirmed task was lost"
                await anyio.Path(gate).touch()
                assert await held.result(timeout=10) == "held"
                for handle in confirmed:
                    await handle.cancel()
            assert counters(team.direct, team.keys)["succeeded"] == 2
            assert find_violations(team.direct, team.keys) == []


def _writes(team: Team, prefix: str) -> bool:
    with suppress(redis.ResponseError):
        return bool(team.direct.set(f"{prefix}:probe", 1, px=1000))
    return False


def _looked_ms(team: Team) -> int:
    found: Any = team.direct.hget(team.keys.agent("scribe"), "looked")
    return int(found or 0)
