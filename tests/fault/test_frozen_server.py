"""A server that answers nobody for longer than a lease, or takes no more connections: no storm, and then it goes on."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import ServerUnavailable
from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer
from tests.helpers.connections import connection_names
from tests.helpers.end_state import counters, find_violations
from tests.helpers.team import Team

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.embedded.server_binary import ServerBinary
    from tests.helpers.attempt_log import AttemptLog

LEASE_S = 1.0
FROZEN_S = 2.0
LINKS = {
    "client:replies",
    "heartbeat:listener",
    "supervisor:control",
    "supervisor:doorbell",
    "worker:inboxes",
}
"""What is opened last; the rest is there by then."""


def freeze(server: RedisServer) -> None:
    """The whole process stands still."""
    server.process.freeze()
    anyio.run(anyio.sleep, FROZEN_S)
    server.process.thaw()


def pause(server: RedisServer) -> None:
    """The server holds back all its clients."""
    with server.client() as client:
        client.client_pause(int(FROZEN_S * 1000))
        client.ping()


@pytest.mark.slow
@pytest.mark.parametrize("stand_still", [freeze, pause])
async def test_a_server_that_stands_still_longer_than_a_lease(
    stand_still: Any, prefix: str, attempt_log: AttemptLog, gate: Path
) -> None:
    """All leases are old when it wakes; holders get one lease to renew, nobody takes anything, nothing is lost."""
    with RedisServer() as server:
        async with Team(
            server, prefix, attempt_log, lease_s=LEASE_S, slots=10, sweep_s=0.3, leader_lease_s=1.0
        ) as team:
            await team.start_supervisor()
            workers = [await team.start_worker() for _ in range(2)]
            async with team.open_client() as orc:
                held = [await orc.submit("hold", {"gate": str(gate)}) for _ in range(10)]
                await wait_for(lambda: len(attempt_log.notes("begun")) == 10, "all to run")
                before = _grace_ms(team)
                await anyio.to_thread.run_sync(stand_still, server)
                # The twin of the test: the gap was felt as one, else nothing would have been at stake.
                await wait_for(lambda: _grace_ms(team) > before, "the grace after the gap")
                assert await (await orc.submit("echo", {"n": 1})).result(timeout=4) == 1, "a wake-up was lost"
                grace = _grace_ms(team)
                await wait_for(lambda: _looked_ms(team) > grace + 1000 * LEASE_S / 2, "looks after the grace")
                await anyio.Path(gate).touch()
                assert {await handle.result(timeout=10) for handle in held} == {"held"}
            assert attempt_log.runs().total() == 11, "a task was taken from a worker that lived"
            assert not counters(team.direct, team.keys).keys() & {"adopted", "recovered"}
            for worker in workers:
                await worker.drain()
            assert find_violations(team.direct, team.keys) == []


async def test_no_more_connections(binary: ServerBinary, prefix: str, attempt_log: AttemptLog) -> None:
    """At maxclients a newcomer is told so; who is cut off comes back when there is room, and all work is done."""
    with RedisServer(binary) as server:
        async with Team(server, prefix, attempt_log) as team:
            await team.start_supervisor()
            member = await team.start_worker()
            async with team.open_client() as orc:
                assert await (await orc.submit("echo", {"n": 0})).result(timeout=4) == 0
                await wait_for(lambda: set(connection_names(team.direct)) >= LINKS, "the last connection to be opened")
                count = _connected(team)
                team.direct.config_set("maxclients", str(count + 3))
                with ExitStack() as strangers:
                    for _ in range(3):
                        strangers.enter_context(server.client()).ping()
                    with pytest.raises(ServerUnavailable, match=r"max number of clients|reset by peer|closed"):
                        async with Orchestrator(settings=team.settings(team.client)):
                            pass
                    handles = [await orc.submit("echo", {"n": n}) for n in range(10)]
                    assert [await handle.result(timeout=4) for handle in handles] == list(range(10))
                    # Its places are taken by strangers before it is back.
                    places = member.proxy.open_connections
                    member.proxy.close_port()
                    member.proxy.cut()
                    await wait_for(lambda: _connected(team) <= count + 3 - places, "the server to miss the worker")
                    for _ in range(places):
                        strangers.enter_context(server.client()).ping()
                    member.proxy.heal()
                    late = [await orc.submit("echo", {"n": n}) for n in range(10)]
                    await anyio.sleep(0.5)  # the fault itself: for so long it is kept out
                    assert attempt_log.runs().total() == 11
                assert [await handle.result(timeout=10) for handle in late] == list(range(10))
            await member.drain()
            assert attempt_log.attempts_run_twice() == []
            assert find_violations(team.direct, team.keys) == []


def _connected(team: Team) -> int:
    return int(team.direct.info("clients")["connected_clients"])


def _grace_ms(team: Team) -> int:
    found: Any = team.direct.hget(team.keys.agent("scribe"), "grace")
    return int(found or 0)


def _looked_ms(team: Team) -> int:
    found: Any = team.direct.hget(team.keys.agent("scribe"), "looked")
    return int(found or 0)
