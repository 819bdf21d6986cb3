"""A cluster of several masters under load: slots move, masters are killed, frozen, or hand over to their replicas."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.core.errors import OrchestratorError, ServerUnavailable
from orchestrator.store.keys import PoolKeys, ScopeKeys
from orchestrator.store.locator import SLOTS, slot_of
from orchestrator.store.store import Endpoint, Store, SyncStore
from orchestrator.testing.waiting import wait_for
from tests.faultkit.clusters import run_cluster
from tests.faultkit.servers import free_port
from tests.helpers.end_state import counters, find_violations, records
from tests.helpers.local_team import local_settings, run_local_team

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from orchestrator.client.handle import TaskHandle
    from tests.faultkit.clusters import Cluster
    from tests.helpers.local_team import LocalTeam

SUBMITTERS = 5
NODE_TIMEOUT_S = 1.0
"""Time after which the nodes take one that does not answer for failed; a replica needs about a second more."""
WITHIN_S = 12.0
"""Time within which a task that is submitted after a failure must end: detection, election and back-off."""


@pytest.fixture(scope="module")
def three_masters() -> Iterator[Cluster]:
    """Three masters."""
    with run_cluster() as running:
        yield running


@pytest.fixture
def cluster(three_masters: Cluster) -> Iterator[Cluster]:
    """Three masters, empty afterwards."""
    yield three_masters
    three_masters.clear()


@pytest.fixture
def with_replicas() -> Iterator[Cluster]:
    """Three masters with a replica each, of their own."""
    with run_cluster(replicas=True, timeout_ms=round(NODE_TIMEOUT_S * 1000)) as running:
        yield running


class Load:
    """Submits tasks without end and waits for each; every task uses a session in a slot of its own.

    Attributes:
        may_lose: a master is killed, whose replica may lack the last writes.
    """

    def __init__(self, team: LocalTeam) -> None:
        self._team, self._stopped = team, False
        self.may_lose = False
        self.submitted: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.runs = Counter[tuple[str, int]]()

    def agent(self) -> Agent:
        """The agent that does the work."""
        agent = Agent("ada", concurrency=10, lease=15.0)

        @agent.skill(lock="session")
        async def echo(ctx: TaskContext, n: int) -> int:
            self.runs[ctx.task_id, ctx.attempt] += 1
            await ctx.scratch.set("n", n)
            await ctx.emit(n)
            return n

        return agent

    async def run(self) -> None:
        """Submit until `stop`."""
        async with anyio.create_task_group() as group:
            for number in range(SUBMITTERS):
                group.start_soon(self._submit, f"s {number}")

    async def _submit(self, session: str) -> None:
        n = 0
        while not self._stopped:
            n, began_s = n + 1, time.monotonic()
            handle: TaskHandle[Any] = await self._team.orc.submit("echo", {"n": n}, session=session)
            self.submitted[handle.id] = began_s
            try:
                assert await handle.result(timeout=20) == n
            except (OrchestratorError, TimeoutError):
                if not self.may_lose:
                    raise
            self.ended[handle.id] = time.monotonic()

    def stop(self) -> None:
        """Let the tasks under way be the last ones."""
        self._stopped = True

    async def ends(self, count: int) -> None:
        """Wait until this many more tasks have ended."""
        wanted = len(self.ended) + count
        await wait_for(lambda: len(self.ended) >= wanted, f"{count} more tasks", 30)

    async def first_end_after(self, began_s: float) -> float:
        """Return how long after `began_s` the first task ended that was submitted later."""
        later = await wait_for(
            lambda: [end_s for id_, end_s in self.ended.items() if self.submitted[id_] > began_s], "a later task", 60
        )
        return min(later) - began_s


@asynccontextmanager
async def under_load(cluster: Cluster, prefix: str) -> AsyncIterator[tuple[LocalTeam, Load]]:
    """Run a supervisor, a worker and a client that submits without end."""
    settings = local_settings(cluster.url, prefix, redis__command_timeout_s=30.0)
    async with run_local_team(settings) as team, anyio.create_task_group() as group:
        load = Load(team)
        await team.work(load.agent())
        group.start_soon(load.run)
        await load.ends(20)
        yield team, load
        load.stop()


def check(cluster: Cluster, team: LocalTeam, load: Load, *, lost: int = 0) -> None:
    """Each task exists once, ended once, and ran once; `lost` writes of a master that was killed may be missing."""
    keys = team.services.keys
    with cluster.client(keys.root) as direct:
        assert len(set(load.submitted) ^ set(records(direct, keys))) <= lost
        assert set(load.submitted) == set(load.ended)
        if not lost:
            assert find_violations(direct, keys) == []
            assert counters(direct, keys)["succeeded"] == len(load.ended)
    if not lost:
        assert [run for run, count in load.runs.items() if count > 1] == []


def pool_root(prefix: str) -> str:
    """The key that scripts of the default pool declare."""
    return PoolKeys(prefix, "default").root


async def move(cluster: Cluster, key: str) -> None:
    """Move the slot of a key to the next master."""
    await anyio.to_thread.run_sync(cluster.move_slot, key)


# ------------------------------------------------------------------------------------------------------ slots that move


async def test_the_slots_of_a_pool_and_of_sessions_move(cluster: Cluster, prefix: str) -> None:
    """Each time the first task ends soon after, and nothing is lost or doubled."""
    async with under_load(cluster, prefix) as (team, load):
        for turn in range(6):
            key = pool_root(prefix) if turn % 2 else ScopeKeys(prefix, "session", f"s {turn // 2}").root
            await move(cluster, key)
            assert await load.first_end_after(time.monotonic()) < 1.0
    await anyio.to_thread.run_sync(partial(check, cluster, team, load))


@pytest.mark.slow
async def test_the_slot_of_a_pool_moves_20_times_in_a_minute(cluster: Cluster, prefix: str) -> None:
    """Nothing is lost, doubled or stuck."""
    took_s = []
    async with under_load(cluster, prefix) as (team, load):
        for _ in range(20):
            began_s = time.monotonic()
            await move(cluster, pool_root(prefix))
            took_s.append(await load.first_end_after(time.monotonic()))
            await anyio.sleep(max(0.0, began_s + 3 - time.monotonic()))
    assert max(took_s) < 1.0
    await anyio.to_thread.run_sync(partial(check, cluster, team, load))


async def test_a_slot_is_left_half_moved(cluster: Cluster, prefix: str) -> None:
    """The pool stands still until the move is finished, as by `redis-cli --cluster fix`; then everything goes on."""
    root = pool_root(prefix)
    async with under_load(cluster, prefix) as (team, load):
        target = await anyio.to_thread.run_sync(lambda: cluster.move_slot(root, keys=20))
        await anyio.sleep(1.5)
        ended = len(load.ended)
        await anyio.sleep(0.5)
        assert len(load.ended) == ended, "tasks went on, so the slot was not felt to be half moved"
        await anyio.to_thread.run_sync(cluster.finish_move, root, target)
        assert await load.first_end_after(time.monotonic()) < 2.0
    await anyio.to_thread.run_sync(partial(check, cluster, team, load))


async def test_output_is_followed(cluster: Cluster, prefix: str) -> None:
    """Hints are subscribed where their channel is, and again when it moves; no entry is missing or doubled."""
    agent, gate = Agent("ada"), [anyio.Event() for _ in range(6)]

    @agent.skill
    async def talk(ctx: TaskContext) -> None:
        for n, event in enumerate(gate):
            await event.wait()
            await ctx.emit(n)

    async with run_local_team(local_settings(cluster.url, prefix)) as team:
        await team.work(agent)
        handle, heard = await team.orc.submit("talk"), list[object]()

        async def follow() -> None:
            async for entry in handle.output():
                heard.append(entry.data)

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            for n, event in enumerate(gate):
                if n in {2, 4}:
                    await move(cluster, team.services.keys.root)
                emitted_s = time.monotonic()
                event.set()
                await wait_for(lambda n=n: len(heard) > n, f"entry {n}")  # type: ignore[misc]
                assert time.monotonic() - emitted_s < 2.0
        assert heard == list(range(6))


# ---------------------------------------------------------------------------------------------------- masters that fail


@pytest.mark.parametrize("event", ["kill", "freeze", "failover"])
async def test_the_master_of_the_pool(with_replicas: Cluster, prefix: str, event: str) -> None:
    """Its replica takes over: programs find it and go on; none is started again."""
    cluster = with_replicas
    async with under_load(cluster, prefix) as (team, load):
        master = cluster.owner(pool_root(prefix))
        replica, load.may_lose = cluster.replica_of(master), event != "failover"
        if event == "failover":
            await anyio.to_thread.run_sync(cluster.fail_over, master)
        elif event == "kill":
            master.kill()
        else:
            master.process.freeze()
        assert await load.first_end_after(time.monotonic()) < (2.0 if event == "failover" else WITHIN_S)
        assert cluster.owner(pool_root(prefix)) is replica
        assert str(team.services.store.place) == f"127.0.0.1:{replica.port}"
        if event == "freeze":
            master.process.thaw()
            await load.ends(50)
        load.stop()
    await anyio.to_thread.run_sync(partial(check, cluster, team, load, lost=0 if event == "failover" else SUBMITTERS))


@pytest.mark.parametrize("kind", ["asyncio", "thread"])
async def test_a_frozen_master_is_left(with_replicas: Cluster, prefix: str, kind: str) -> None:
    """A command waits for a silent server only until its replica has the slot, not for the whole time-out."""
    keys, master = PoolKeys(prefix, "default"), with_replicas.owner(pool_root(prefix))
    endpoint = Endpoint.at(with_replicas.url, command_timeout_s=60)
    store_of_thread = SyncStore(endpoint, keys, name="test")

    async with Store(endpoint, keys) as store:

        async def ask() -> Any:
            if kind == "asyncio":
                return await store.execute("GET", keys.format)
            return await anyio.to_thread.run_sync(store_of_thread.execute, "GET", keys.format)

        await ask()
        master.process.freeze()
        with anyio.fail_after(WITHIN_S), pytest.raises(ServerUnavailable, match=r"no answer from Redis at .* to GET"):
            await ask()
        assert await ask() is None
    master.process.thaw()
    store_of_thread.close()


@pytest.fixture
def two_clusters() -> Iterator[tuple[Cluster, Cluster]]:
    """Two clusters of one master each, by port. They do not know each other, as the sides of a cut network."""
    with run_cluster(masters=1) as one, run_cluster(masters=1) as two:
        first, second = sorted((one, two), key=lambda cluster: str(cluster.port))
        yield first, second


@pytest.mark.parametrize("kind", ["asyncio", "thread", "long-read"])
async def test_a_master_that_is_cut_off_is_left(
    two_clusters: tuple[Cluster, Cluster], prefix: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It refuses everything while the others have replaced it; programs that reach both sides ask the others."""
    monkeypatch.setattr(random, "shuffle", lambda nodes: nodes.sort(key=str))
    monkeypatch.setattr(random, "sample", lambda nodes, _: list(nodes))
    keys, (cut_off, whole) = PoolKeys(prefix, "default"), two_clusters
    endpoint = Endpoint.at(f"redis+cluster://127.0.0.1:{cut_off.port},127.0.0.1:{whole.port}")
    store_of_thread = SyncStore(endpoint, keys, name="test")
    long_read = store_of_thread.long_read(name="long", connect_timeout_s=5, max_bytes=1000)

    def read() -> Any:
        long_read.begin("GET", keys.format)
        while (reply := long_read.take()) is None:
            time.sleep(0.01)
        return reply[0]

    async with Store(endpoint, keys) as store:

        async def ask() -> Any:
            if kind == "asyncio":
                return await store.execute("GET", keys.format)
            if kind == "thread":
                return await anyio.to_thread.run_sync(store_of_thread.execute, "GET", keys.format)
            return await anyio.to_thread.run_sync(read)

        async def answers() -> bool:
            try:
                return await ask() is None
            except ServerUnavailable:
                return False

        await ask()
        assert str(store.place) == f"127.0.0.1:{cut_off.port}"
        # Its map names it for all other slots, as that of a master without a majority does.
        cut_off.ask(cut_off.nodes[0], "CLUSTER", "DELSLOTS", (slot_of(keys.root) + 1) % SLOTS)
        with pytest.raises(ServerUnavailable, match="has no complete cluster"):
            await ask()
        await wait_for(answers, "an answer of the others", WITHIN_S)
        assert str(store.place) == f"127.0.0.1:{whole.port}"
    long_read.close()
    store_of_thread.close()


async def test_a_blocked_read_leaves_a_frozen_master(with_replicas: Cluster, prefix: str) -> None:
    """It waits for news without an end; another command of the process finds out that the master was replaced."""
    keys, master = PoolKeys(prefix, "default"), with_replicas.owner(pool_root(prefix))
    endpoint = Endpoint.at(with_replicas.url, command_timeout_s=60)
    async with Store(endpoint, keys) as store:
        link = store.blocking_link(60)
        read = await link.begin("XREAD", "BLOCK", 0, "STREAMS", keys.doorbell, "0")
        master.process.freeze()
        with anyio.fail_after(WITHIN_S):
            with pytest.raises(ServerUnavailable):
                await store.execute("GET", keys.format)
            with pytest.raises(ConnectionError):
                await read
        await link.close()
    master.process.thaw()


async def test_the_start_skips_seeds(cluster: Cluster, prefix: str) -> None:
    """A process starts as long as one of the configured nodes answers; with none the message names all."""
    dead = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    living = cluster.url.partition("://")[2].split(",")[1]
    settings = local_settings(f"redis+cluster://{','.join([*dead, living])}", prefix)
    async with run_local_team(settings, supervised=False) as team:
        assert len(team.services.endpoint.locator.servers) == 3
        await team.orc.submit("x")
    with pytest.raises(ServerUnavailable, match="no node of the cluster answers") as failure:
        async with run_local_team(local_settings(f"redis+cluster://{','.join(dead)}", prefix)):
            pass
    assert all(place in str(failure.value) for place in dead)
