"""A master that is demoted without a cut of its connections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest
import redis

from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer
from tests.helpers.end_state import find_violations
from tests.helpers.team import Team

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestrator.embedded.server_binary import ServerBinary
    from tests.helpers.attempt_log import AttemptLog

WITHIN_S = 1.0
"""Time within which the first task must end at the new master."""
_OPTIONS = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


@pytest.fixture
def first(binary: ServerBinary) -> Iterator[RedisServer]:
    """The master at first."""
    with RedisServer(binary, port=0, options=_OPTIONS) as server:
        yield server


@pytest.fixture
def second(binary: ServerBinary) -> Iterator[RedisServer]:
    """Its replica, which becomes the master."""
    with RedisServer(binary, port=0, options=_OPTIONS) as server:
        yield server


def replicate(client: redis.Redis, master: RedisServer) -> None:
    """Make a server the replica of another."""
    assert master.port is not None
    client.replicaof("127.0.0.1", str(master.port))


async def wait_for_sync(client: redis.Redis) -> None:
    """Wait until a replica has the data of its master."""
    await wait_for(lambda: client.info("replication").get("master_link_status") == "up", "the replica to be in step")


@pytest.mark.parametrize("linked", [True, False], ids=["replica-follows", "replica-is-cut-off"])
async def test_a_demoted_master_is_left(
    first: RedisServer, second: RedisServer, prefix: str, attempt_log: AttemptLog, gate: Path, *, linked: bool
) -> None:
    """Every process connects again, to the new master; running and waiting tasks end, and new ones run."""
    async with Team(first, prefix, attempt_log, leader_lease_s=1.0) as team:
        with second.client() as successor:
            replicate(successor, first)
            await team.start_supervisor()
            await team.start_worker()
            async with team.open_client() as orc:
                held = await orc.submit("hold", {"gate": str(gate)})
                await wait_for(lambda: attempt_log.notes("begun", task=held.id), "the handler to run")
                await wait_for_sync(successor)
                assert await anyio.to_thread.run_sync(team.direct.wait, 1, 5000) == 1
                successor.replicaof("NO", "ONE")
                for proxy in team.proxies:
                    proxy.redirect(second.url)
                if linked:
                    replicate(team.direct, second)
                else:
                    team.direct.replicaof("127.0.0.1", "1")
                with pytest.raises(redis.ReadOnlyError):
                    team.direct.set("felt", 1)
                demoted_s = time.monotonic()
                assert await (await orc.submit("echo", {"n": 2})).result(timeout=5) == 2
                assert time.monotonic() - demoted_s < WITHIN_S
                await anyio.Path(gate).touch()
                assert await held.result(timeout=5) == "held"
                await wait_for(lambda: not clients_of(team.direct), "every connection to leave the old master")
            assert sum(proxy.applied["cut"] for proxy in team.proxies) == 0
            assert find_violations(successor, team.keys) == []


def clients_of(client: redis.Redis) -> list[str]:
    """Names of the project's connections to a server."""
    return [one["name"] for one in client.client_list() if one["name"]]
