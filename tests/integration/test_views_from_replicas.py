"""Views that are read from a replica: what they hold, how old they may be, and what happens without a replica."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from orchestrator import Agent
from orchestrator.core.errors import ServerRefused
from orchestrator.store.locator import Address
from orchestrator.store.replicas import Lag, measure_lag, read_replication
from orchestrator.store.store import Endpoint, Store
from orchestrator.tasks import scripts as task_scripts
from orchestrator.testing.waiting import wait_until
from orchestrator.views.agents import list_agents
from orchestrator.views.backlog import read_backlog
from orchestrator.views.families import list_sessions
from orchestrator.views.keys import count_keys
from orchestrator.views.limits import list_limits
from orchestrator.views.queues import list_queues
from orchestrator.views.sessions import read_session
from orchestrator.views.skills import list_skills
from orchestrator.views.source import _Choice, open_views
from orchestrator.views.stats import list_stats
from orchestrator.views.status import read_status
from orchestrator.views.tasks import list_tasks
from orchestrator.views.workers import list_workers
from tests.faultkit.servers import RedisServer, free_port
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.server_matrix import ALL_SERVERS_RARELY, binary_of
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from orchestrator.services import Services
    from tests.helpers.local_team import LocalTeam

PREFIX = "views:test:t"


@pytest.fixture(scope="module", params=ALL_SERVERS_RARELY)
def primary(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server that sends its data to replicas at once."""
    with RedisServer(binary_of(request.param), port=0, options={"repl-diskless-sync-delay": "0"}) as server:
        yield server


@pytest.fixture(scope="module")
def replica(primary: RedisServer) -> Iterator[RedisServer]:
    """A replica of it."""
    with RedisServer(primary.binary, port=0, options={"replicaof": f"127.0.0.1 {primary.port}"}) as server:
        with server.client() as client, primary.client() as other:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "a replica in step", 10)
            wait_until(lambda: other.info("replication").get("slave0", {}).get("state") == "online", "a replica", 10)
        yield server


@pytest.fixture(scope="module")
def cluster_of_two(primary: RedisServer) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary with all slots of a cluster, and its replica."""
    options = {"cluster-enabled": "yes", "repl-diskless-sync-delay": "0", "cluster-node-timeout": "5000"}
    with ExitStack() as stack:
        nodes, clients = [], []
        for _ in range(2):
            ports = {"cluster-port": str(free_port())}
            nodes.append(stack.enter_context(RedisServer(primary.binary, port=0, options=options | ports)))
            clients.append(stack.enter_context(nodes[-1].client()))
        first, second = clients
        first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        bus = first.config_get("cluster-port")["cluster-port"]
        second.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, bus)
        name = first.execute_command("CLUSTER", "MYID", NEVER_DECODE=True).decode()

        def knows_primary() -> bool:
            return name in second.execute_command("CLUSTER", "NODES", NEVER_DECODE=True).decode()

        def has_replica() -> bool:
            found = [each.execute_command("CLUSTER", "SLOTS", NEVER_DECODE=True) for each in clients]
            return all(len(ranges) == 1 and len(ranges[0]) == 4 for ranges in found)

        def is_whole() -> bool:
            found = [each.execute_command("CLUSTER", "INFO", NEVER_DECODE=True) for each in clients]
            return all(b"cluster_state:ok" in info for info in found)

        wait_until(knows_primary, "the nodes to meet", 10)
        second.execute_command("CLUSTER", "REPLICATE", name)
        wait_until(has_replica, "both nodes to know the replica", 20)
        wait_until(is_whole, "a whole cluster", 20)
        wait_until(lambda: second.info("replication")["master_link_status"] == "up", "a replica in step", 10)
        yield nodes[0], nodes[1]


@pytest.fixture
async def team(primary: RedisServer) -> AsyncIterator[LocalTeam]:
    """A pool with some of everything, whose programs have stopped or are idle."""
    with primary.client() as client:
        client.flushall()
    settings = local_settings(primary.url, PREFIX, redis__views="replica")
    async with run_local_team(settings, supervised=False) as running:
        agent = Agent("ada")

        @agent.skill
        async def work() -> int:
            return 1

        stop = await running.start_supervisor()
        worker = await running.work(agent)
        await (await running.orc.submit("work", session="s")).result(timeout=4)
        await running.orc.submit("nobody", tags=["t"])
        await running.stop(worker)
        stop.cancel()
        yield running


async def read_all(views: Services) -> list[object]:
    """Read every list, the status and the report of the keys, without what differs by server."""
    status = await read_status(views)
    report = await count_keys(views)
    return [
        await list_agents(views),
        await list_limits(views),
        await list_queues(views),
        await list_sessions(views),
        await list_skills(views),
        [(each.agent, each.skill, each.timings) for each in (await list_stats(views)).stats],
        await list_tasks(views),
        await list_workers(views),
        (status.supervisor, status.agents, status.workers, status.tasks, status.totals),
        (await read_backlog(views)).pool,
        {kind.kind: kind.keys for kind in report.kinds},
    ]


async def test_all_views_are_read_from_a_replica(team: LocalTeam, primary: RedisServer, replica: RedisServer) -> None:
    """Each view has what the primary has, scripts go as EVALSHA_RO, and the primary answers INFO only."""
    with replica.client() as direct, primary.client() as watched:
        async with open_views(team.settings, name="test") as views:
            at_replica, at_primary = CommandCounter(direct), CommandCounter(watched)
            found = await read_all(views.services)
            source = views.source()
            assert set(at_primary.calls()) <= {"info", "ping", "replconf"}
            calls = at_replica.calls()
            assert calls["evalsha_ro"] > 0
            assert "evalsha" not in calls
        assert found == await read_all(team.services)
    assert (source.replicas, source.primaries) == ((f"127.0.0.1:{replica.port}",), ())
    assert source.age_s is not None
    assert 0 < source.age_s < 30


async def test_a_view_has_what_was_done_before(team: LocalTeam, replica: RedisServer) -> None:
    """A view that is opened after a submit has the task, because it waits until the replica has caught up."""
    for _ in range(20):
        handle = await team.orc.submit("nobody", session="own")
        async with open_views(team.settings, name="test") as views:
            assert handle.id in {row.id for row in await list_tasks(views.services)}
            assert views.source().replicas == (f"127.0.0.1:{replica.port}",)


async def test_views_change_nothing(team: LocalTeam, replica: RedisServer) -> None:
    """A script that writes is refused before it is sent."""
    async with open_views(team.settings, name="test") as views:
        assert views.source().replicas == (f"127.0.0.1:{replica.port}",)
        call = task_scripts.wake(views.services.keys, "id")
        with pytest.raises(ServerRefused, match="tasks/wake changes data, and this connection reads from a replica"):
            await views.services.store.call(call)


async def test_a_frozen_replica_is_left_out(team: LocalTeam, replica: RedisServer) -> None:
    """The primary is read when no replica answers, and the view says so."""
    replica.process.freeze()
    try:
        async with open_views(team.settings, name="test") as views:
            assert (await list_tasks(views.services))[0].skill == "nobody"
            source = views.source()
    finally:
        replica.process.thaw()
    assert (source.replicas, len(source.primaries), source.age_s) == ((), 1, 0.0)
    assert source.problem == f"replica 127.0.0.1:{replica.port} does not answer"


async def test_a_user_who_may_not_load_scripts(team: LocalTeam, primary: RedisServer, replica: RedisServer) -> None:
    """A replica that lacks scripts is left out for a user who may not load them, and read when it has them."""
    rules = ("reset", "on", ">pw", "~*", "&*", "+@all", "-script|load")
    with primary.client() as one, replica.client() as other:
        for client in (one, other):
            client.execute_command("ACL", "SETUSER", "reader", *rules)
        url = f"redis://reader:pw@127.0.0.1:{primary.port}/0"
        settings = local_settings(url, PREFIX, redis__views="replica")
        other.script_flush()
        async with open_views(settings, name="test") as views:
            source = views.source()
            assert len(await list_tasks(views.services)) == 2
        assert source.replicas == ()
        assert "this user may load none; type `orc upgrade load`" in source.problem
        async with open_views(team.settings, name="test"):
            pass
        async with open_views(settings, name="test") as views:
            assert views.source().replicas == (f"127.0.0.1:{replica.port}",)


@pytest.mark.slow
async def test_a_replica_of_a_cluster(cluster_of_two: tuple[RedisServer, RedisServer]) -> None:
    """Keys of all slots are read at the replica, which a connection must ask for; walks over all keys, too."""
    first, second = cluster_of_two
    settings = local_settings(first.url, PREFIX, redis__views="replica")
    async with run_local_team(settings, supervised=False) as running:
        for session in ("a", "b", "c"):
            await running.orc.submit("nobody", session=session)
            async with running.orc.workspace(session).edit() as ws:
                await ws.set("k", 1)
        with first.client() as watched, second.client() as direct:
            async with open_views(settings, name="test") as views:
                at_replica, at_primary = CommandCounter(direct), CommandCounter(watched)
                found = await read_all(views.services)
                sessions = [(await read_session(views.services, name)).workspace for name in ("a", "b", "c")]
                assert views.source().replicas == (f"127.0.0.1:{second.port}",)
                assert set(at_primary.calls()) <= {"info", "ping", "replconf"}
                assert {"evalsha_ro", "scan", "readonly"} <= set(at_replica.calls())
        assert found == await read_all(running.services)
        assert all(size is not None and size.items == 1 for size in sessions)


async def test_the_lag_is_measured(team: LocalTeam, primary: RedisServer, replica: RedisServer) -> None:
    """A replica that lacks bytes says how many, and one without its primary for how long."""
    at_primary, at_replica = Endpoint.at(primary.url), Endpoint.at(replica.url)
    keys = team.services.keys
    async with Store(at_primary, keys) as one, Store(at_replica, keys, reads_replica=True) as other:
        now = await read_replication(one)
        assert await measure_lag(other, now) == Lag(caught_up=True)
        lag = await measure_lag(other, replace(now, offset=now.offset + 10**6))
        assert not lag.caught_up
        assert lag.bytes > 10**5
        # Of another history the offsets say nothing.
        assert await measure_lag(other, replace(now, history="other")) == Lag(caught_up=False)
        with replica.client() as direct:
            direct.replicaof("127.0.0.1", "1")
            try:
                lag = await measure_lag(other, replace(now, offset=now.offset + 10**6))
                assert lag.link_down_s is not None
                assert (await measure_lag(other, None)).link_down_s is not None
            finally:
                direct.replicaof("127.0.0.1", str(primary.port))
                wait_until(lambda: direct.info("replication")["master_link_status"] == "up", "a replica in step", 10)


def test_the_better_replica_is_read() -> None:
    """One that lacks some bytes is better than one without a link, whose offset may count another history."""
    unlinked, late = Lag(caught_up=False, link_down_s=3600), Lag(caught_up=False, bytes=500)
    lags = [Lag(caught_up=True), Lag(caught_up=False, bytes=7), late, unlinked]
    ranks = [_Choice(Address("redis://r:1"), lag).rank for lag in lags] + [_Choice(None).rank]
    assert ranks == sorted(set(ranks), reverse=True)


async def test_the_command_line_says_where_it_read(team: LocalTeam, replica: RedisServer, tmp_path: Path) -> None:
    """`orc` names the replica and the age on standard error; the list on standard output is as before."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=PREFIX, ORC_REDIS__VIEWS="replica")
    done = await anyio.to_thread.run_sync(partial(terminal.orc, "tasks", "list", "-o", "id"))
    assert done.code == 0
    assert len(done.out.split()) == 2
    assert done.err.startswith(f"read from the replica 127.0.0.1:{replica.port}, at most ")
    assert done.err.endswith(" s old\n")
    with_report = await anyio.to_thread.run_sync(partial(terminal.orc, "keys", "report", "-o", "json"))
    assert "read from the replica" in with_report.err
