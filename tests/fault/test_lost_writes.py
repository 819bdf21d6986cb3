"""Redis loses its last writes: power that fails, or a failover to a replica that lags behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer
from tests.helpers.end_state import counters, find_violations
from tests.helpers.team import Team

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from orchestrator.embedded.server_binary import ServerBinary
    from tests.helpers.attempt_log import AttemptLog


@pytest.fixture
def server(binary: ServerBinary) -> Iterator[RedisServer]:
    """A server that keeps what `save` has written and loses the rest."""
    with RedisServer(binary) as started:
        yield started


def lose_since_save(direct: redis.Redis) -> None:
    """Return to the last `save`, as after a loss of power."""
    direct.execute_command("DEBUG", "RELOAD", "NOSAVE")  # type: ignore[no-untyped-call]


async def test_a_lost_assignment_fences_its_attempt(
    server: RedisServer, prefix: str, attempt_log: AttemptLog, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that is cut off ends its attempt while the second one runs: its verdict is refused."""
    async with Team(server, prefix, attempt_log, sweep_s=0.1) as team:
        async with team.open_client() as orc:
            handle = await orc.submit("pause", {"seconds": 0.5})
            team.direct.save()
            await team.start_supervisor()
            lost = await team.start_worker()
            await wait_for(lambda: len(attempt_log.notes("begun")) == 1, "the first attempt to run")
            lost.proxy.blackhole()
            lose_since_save(team.direct)
            assert team.state(handle.id) == "ready", "the assignment was not lost"
            await wait_for(lambda: len(attempt_log.notes("done")) == 1, "the first attempt to end, unheard")
            peer = await team.start_worker()
            await wait_for(lambda: len(attempt_log.notes("begun")) == 2, "the second attempt to run")
            lost.proxy.heal()
            await wait_for(lambda: "finish_rejected" in caplog.text, "the first verdict to be refused")
            assert team.state(handle.id) == "assigned"
            first, second = attempt_log.notes("begun", task=handle.id)
            assert await handle.result(timeout=5) == second.generation > first.generation
        assert counters(team.direct, team.keys)["succeeded"] == 1
        assert not peer.ended.is_set()
        assert find_violations(team.direct, team.keys) == []
