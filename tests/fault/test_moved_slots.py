"""A slot of a cluster moves to another server, under load, by hand; every process follows it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
import redis

from orchestrator import Agent, TaskContext
from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import ServerRefused, ServerUnavailable, TaskCancelled
from orchestrator.services import pool_keys
from orchestrator.store import router
from orchestrator.store.keys import PoolKeys, ScopeKeys
from orchestrator.store.locator import Address, slot_of
from orchestrator.store.store import Endpoint, Store, SyncStore
from orchestrator.tasks import scripts
from orchestrator.testing.waiting import wait_for
from tests.faultkit.proxy import ThreadedProxy
from tests.faultkit.slot_moves import slot_moves
from tests.helpers import subprocesses
from tests.helpers.end_state import counters, find_violations, records
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.server_matrix import NEWEST, REDIS_7, binary_of
from tests.helpers.team import Team, make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from orchestrator.client.handle import TaskHandle
    from orchestrator.store.long_read import LongRead
    from tests.faultkit.servers import RedisServer
    from tests.faultkit.slot_moves import SlotMoves
    from tests.helpers.attempt_log import AttemptLog

WITHIN_S = 1.0
"""Time within which the first task must end after an event."""
REDIS_TELLS_S = 1.0
"""Time within which Redis tells a blocked reader that the slot has moved."""
SUBMITTERS = 5
HALF_MOVED_S = 1.5


@pytest.fixture(scope="module", params=[NEWEST, pytest.param(REDIS_7, marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest) -> Iterator[SlotMoves]:
    """Two nodes, the newest server and an old one in turn."""
    with slot_moves(binary_of(request.param)) as running:
        yield running


@pytest.fixture
def moves(cluster: SlotMoves) -> Iterator[SlotMoves]:
    """The nodes; afterwards they are empty, and no slot moves."""
    yield cluster
    cluster.clear()


class Load:
    """Submits tasks without end and waits for each; keeps the time at which each ended."""

    def __init__(self, orc: Orchestrator) -> None:
        self._orc = orc
        self.ended: dict[str, float] = {}
        self.submitted: dict[str, float] = {}
        self._stopped = False

    async def run(self) -> None:
        """Submit until `stop`."""
        async with anyio.create_task_group() as group:
            for _ in range(SUBMITTERS):
                group.start_soon(self._submit)

    async def _submit(self) -> None:
        n = 0
        while not self._stopped:
            n, began_s = n + 1, time.monotonic()
            handle: TaskHandle[Any] = await self._orc.submit("echo", {"n": n})
            self.submitted[handle.id] = began_s
            assert await handle.result(timeout=10) == n
            self.ended[handle.id] = time.monotonic()

    def stop(self) -> None:
        """Let the tasks under way be the last ones."""
        self._stopped = True

    async def ends(self, count: int) -> None:
        """Wait until this many more tasks have ended."""
        wanted = len(self.ended) + count
        await wait_for(lambda: len(self.ended) >= wanted, f"{count} more tasks")

    async def first_end_after(self, began_s: float) -> float:
        """Return how long after `began_s` the first task ended that was submitted later."""
        later = await wait_for(
            lambda: [end_s for id_, end_s in self.ended.items() if self.submitted[id_] > began_s], "a later task"
        )
        return min(later) - began_s


@asynccontextmanager
async def under_load(team: Team) -> AsyncIterator[Load]:
    """Run a supervisor, a worker and a client that submits without end."""
    await team.start_supervisor()
    await team.start_worker()
    async with team.open_client() as orc, anyio.create_task_group() as group:
        load = Load(orc)
        group.start_soon(load.run)
        await load.ends(20)
        yield load
        load.stop()


def check(team: Team, load: Load, node: RedisServer) -> None:
    """Each task exists once, ended once, and ran once."""
    with node.client() as direct:
        assert set(records(direct, team.keys)) == set(load.submitted) == set(load.ended)
        assert find_violations(direct, team.keys) == []
        assert counters(direct, team.keys)["succeeded"] == len(load.ended)
    assert team.attempt_log.attempts_run_twice() == []


async def test_the_slot_of_a_pool_moves(moves: SlotMoves, prefix: str, attempt_log: AttemptLog) -> None:
    """To the second node and back; the first task ends soon after each move, and nothing is lost or doubled."""
    async with Team(owner_of(moves, pool_root(prefix)), prefix, attempt_log, lease_s=15.0) as team:
        async with under_load(team) as load:
            for _ in range(2):
                await anyio.to_thread.run_sync(moves.move_slot, team.keys.root)
                took_s = await load.first_end_after(time.monotonic())
                assert took_s < WITHIN_S
                old = other_of(moves, team.keys.root)
                with old.client() as direct, pytest.raises(redis.exceptions.MovedError):
                    direct.get(team.keys.format)
        await anyio.to_thread.run_sync(check, team, load, owner_of(moves, team.keys.root))


async def test_the_slot_of_a_pool_is_half_moved(moves: SlotMoves, prefix: str, attempt_log: AttemptLog) -> None:
    """While each node has a part of the keys no script runs; then everything goes on."""
    async with Team(owner_of(moves, pool_root(prefix)), prefix, attempt_log, lease_s=15.0) as team:
        async with under_load(team) as load:
            # With them a script that followed ASK would run at the target, on the keys that have arrived.
            await anyio.to_thread.run_sync(other_of(moves, team.keys.root).load_scripts)
            await anyio.to_thread.run_sync(moves.begin, team.keys.root)
            await anyio.to_thread.run_sync(move_some, moves, team.keys.root, 20)
            await anyio.sleep(HALF_MOVED_S)
            ended = len(load.ended)
            await anyio.sleep(0.2)
            assert len(load.ended) == ended, "tasks went on, so the slot was not felt to be half moved"
            await anyio.to_thread.run_sync(moves.hand_over, team.keys.root)
            took_s = await load.first_end_after(time.monotonic())
            assert took_s < WITHIN_S
        await anyio.to_thread.run_sync(check, team, load, owner_of(moves, team.keys.root))


@pytest.mark.parametrize("event", ["cut", "flush"])
async def test_an_event_on_one_server(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, event: str
) -> None:
    """All connections are cut, or all scripts forgotten: the first task ends soon after."""
    async with Team(redis_server, prefix, attempt_log, lease_s=15.0) as team, under_load(team) as load:
        for _ in range(3):
            if event == "cut":
                assert sum(proxy.cut(reset=True) for proxy in team.proxies) > 5
            else:
                team.direct.script_flush()
            assert await load.first_end_after(time.monotonic()) < WITHIN_S


@pytest.mark.slow
async def test_processes(moves: SlotMoves, prefix: str, attempt_log: AttemptLog, gate: Path) -> None:
    """Real processes: a worker that is killed after the move loses nothing, because its host's child follows too."""
    root = pool_root(prefix)
    settings = make_settings(owner_of(moves, root).url, prefix, leader_lease_s=1.0)
    keys = pool_keys(settings)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=2, lease_s=30.0, slots=8))
        first, second = (stack.enter_context(node.client()) for node in (owner_of(moves, root), other_of(moves, root)))
        async with Orchestrator(settings=settings) as orc:
            await wait_for(lambda: len(subprocesses.workers_of(first, keys)) == 2, lambda: host.describe("workers"), 15)
            handles = [await orc.submit("hold", {"gate": str(gate)}) for _ in range(12)]
            await wait_for(lambda: len(attempt_log.notes("begun")) == 12, "all to run", 10)
            await anyio.to_thread.run_sync(moves.move_slot, root)
            moved_s = time.monotonic()
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=5) == 1
            assert time.monotonic() - moved_s < REDIS_TELLS_S + WITHIN_S
            victim = attempt_log.notes("begun")[0].pid
            hit = {note.task for note in attempt_log.notes("begun") if note.pid == victim} & {one.id for one in handles}
            os.kill(victim, signal.SIGKILL)
            await wait_for(lambda: all(attempt_log.runs()[task] > 1 for task in hit), "its tasks to run again", 5)
            await anyio.Path(gate).touch()
            assert [await handle.result(timeout=20) for handle in handles] == ["held"] * 12
            await wait_for(lambda: len(subprocesses.workers_of(second, keys)) == 2, "a replacement", 10)
            assert find_violations(second, keys) == []
            assert attempt_log.attempts_run_twice() == []


async def test_readers_at_rest(moves: SlotMoves, prefix: str, attempt_log: AttemptLog) -> None:
    """Nothing is sent when the slot moves, so Redis tells the blocked readers, up to a second later."""
    async with Team(owner_of(moves, pool_root(prefix)), prefix, attempt_log, lease_s=15.0) as team:
        await team.start_supervisor()
        await team.start_worker()
        async with team.open_client() as orc:
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=5) == 1
            await anyio.to_thread.run_sync(moves.move_slot, team.keys.root)
            moved_s = time.monotonic()
            assert await (await orc.submit("echo", {"n": 2})).result(timeout=5) == 2
            assert time.monotonic() - moved_s < REDIS_TELLS_S + WITHIN_S


async def test_a_cancel_reaches_the_thread(moves: SlotMoves, prefix: str) -> None:
    """The heartbeat thread listens at the new server; it hears of a cancel before the next heartbeat."""
    agent, began = Agent("ada", lease=60.0), anyio.Event()

    @agent.skill
    async def sleep() -> None:
        began.set()
        await anyio.sleep_forever()

    async with run_local_team(local_settings(moves.nodes[0].url, prefix, worker__heartbeat_s=60.0)) as team:
        await team.work(agent)
        handle = await team.orc.submit("sleep")
        await began.wait()
        await anyio.to_thread.run_sync(moves.move_slot, team.services.keys.root)
        await anyio.sleep(REDIS_TELLS_S)
        cancelled_s = time.monotonic()
        await handle.cancel("enough")
        with pytest.raises(TaskCancelled):
            await handle.result(timeout=5)
        assert time.monotonic() - cancelled_s < WITHIN_S


async def test_output_is_followed(moves: SlotMoves, prefix: str) -> None:
    """A reader of output gets every entry once and in order, with the subscription at the new server."""
    agent, step = Agent("ada"), asyncio.Queue[int]()

    @agent.skill
    async def talk(ctx: TaskContext) -> None:
        while (n := await step.get()) >= 0:
            await ctx.emit(n)

    async with run_local_team(local_settings(moves.nodes[0].url, prefix)) as team:
        await team.work(agent)
        handle, heard = await team.orc.submit("talk"), list[object]()

        async def follow() -> None:
            async for entry in handle.output():
                heard.append(entry.data)

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            for n in range(6):
                if n in {2, 4}:
                    await anyio.to_thread.run_sync(moves.move_slot, team.services.keys.root)
                emitted_s = time.monotonic()
                step.put_nowait(n)
                await wait_for(lambda n=n: len(heard) > n, f"entry {n}")  # type: ignore[misc]
                assert time.monotonic() - emitted_s < REDIS_TELLS_S + WITHIN_S
            step.put_nowait(-1)
        assert heard == list(range(6))


async def test_a_waiter_of_a_lock(moves: SlotMoves, prefix: str) -> None:
    """A lock that is released at the new server goes to the waiter that listened at the old one."""
    async with run_local_team(local_settings(moves.nodes[0].url, prefix), supervised=False) as team:
        other, key = await team.client(), ScopeKeys(prefix, "session", "s 1").root
        entered = anyio.Event()

        async def wait() -> None:
            async with other.locks("session:s 1").hold("n", wait=30):
                entered.set()

        async with anyio.create_task_group() as group:
            async with team.orc.locks("session:s 1").hold("n", wait=0):
                group.start_soon(wait)
                with moves.nodes[0].client() as direct:
                    await wait_for(lambda: direct.pubsub_shardchannels(f"{key}:*"), "the waiter to listen")
                await anyio.to_thread.run_sync(moves.move_slot, key)
            with anyio.fail_after(REDIS_TELLS_S + WITHIN_S):
                await entered.wait()


async def test_shared_state_in_two_places(moves: SlotMoves, prefix: str) -> None:
    """The pool at one server, a session and an agent at the other; every part of a handler works."""
    agent = Agent("ada")

    @agent.skill(lock="session")
    async def work(ctx: TaskContext) -> int:
        await ctx.scratch.set("draft", 1)
        await ctx.workspace.publish("draft")
        async with ctx.locks.hold("report"):
            return await ctx.agent_state.bump("done")

    async with run_local_team(local_settings(moves.nodes[0].url, prefix)) as team:
        for kind, name in (("session", "s 1"), ("agent", "ada")):
            await anyio.to_thread.run_sync(moves.move_slot, ScopeKeys(prefix, kind, name).root)
        await team.work(agent)
        handles = [await team.orc.submit("work", session=session) for session in ("s 1", "s 2", "s 1")]
        assert sorted([await handle.result(5) for handle in handles]) == [1, 2, 3]
        workspace = team.orc.workspace("s 1")
        assert (await workspace.snapshot()).paths["draft"].value == 1
        await anyio.to_thread.run_sync(moves.move_slot, ScopeKeys(prefix, "session", "s 1").root)
        # One transaction over the parts of the workspace.
        assert (await workspace.snapshot()).paths["draft"].value == 1


async def test_pipelines_are_split(moves: SlotMoves, prefix: str) -> None:
    """Replies come in the order of the commands, a transaction runs as a whole, and an error stays in its place."""
    near, far = f"{prefix}:{{pool:a}}:x", f"{prefix}:{{pool:b}}:x"
    commands = [
        ("RPUSH", near, "1"), ("RPUSH", far, "1"), ("MULTI",), ("RPUSH", far, "2"), ("LLEN", far), ("EXEC",),
        ("RPUSH", near, "2"), ("GET", far), ("LRANGE", far, 0, -1), ("LRANGE", near, 0, -1),
    ]  # fmt: skip
    await anyio.to_thread.run_sync(moves.move_slot, far)
    endpoint, keys = Endpoint.at(moves.nodes[0].url), PoolKeys(prefix, "a")

    def checked(replies: list[Any], pushed: int) -> None:
        assert [replies[0], replies[1], replies[5], replies[6]] == [
            pushed + 1, pushed + 1, [pushed + 2, pushed + 2], pushed + 2,
        ]  # fmt: skip
        assert isinstance(replies[7], ServerRefused)
        assert replies[8] == replies[9] == [b"1", b"2"] * (pushed // 2 + 1)

    async with Store(endpoint, keys) as store:
        checked(await store.pipeline(commands), 0)
        assert not has_one_address(endpoint)
        checked(await store.pipeline(commands), 2)
        # Back at the first server, everything has one address again.
        await anyio.to_thread.run_sync(moves.move_slot, far)
        checked(await store.pipeline(commands), 4)
        assert has_one_address(endpoint)
    await anyio.to_thread.run_sync(moves.move_slot, far)
    store_of_thread = SyncStore(endpoint, keys, name="test")
    checked(store_of_thread._router.pipeline(commands), 6)
    checked(store_of_thread._router.pipeline(commands), 8)
    store_of_thread.close()


async def test_plain_commands_follow_a_key(moves: SlotMoves, prefix: str) -> None:
    """While the slot moves, a plain command finds its key at either server, and a script waits."""
    keys = PoolKeys(prefix, "p")
    store_of_thread = SyncStore(Endpoint.at(moves.nodes[0].url), keys, name="test")
    async with Store(Endpoint.at(moves.nodes[0].url), keys) as store:
        await store.execute("MSET", keys.format, "2", keys.queues, "q")
        await anyio.to_thread.run_sync(moves.begin, keys.root)
        await anyio.to_thread.run_sync(move_some, moves, keys.root, 1)
        for key, value in ((keys.format, b"2"), (keys.queues, b"q")):
            assert await store.execute("GET", key) == value
            assert (await store.pipeline([("GET", key), ("GET", key)])) == [value, value]
            assert store_of_thread.execute("GET", key) == value
        for failed in await store.pipeline(
            [("MGET", keys.format, keys.queues), ("EVAL", "return 1", 1, keys.root)]
        ) + store_of_thread._router.pipeline([("MGET", keys.format, keys.queues), ("EVAL", "return 1", 1, keys.root)]):
            assert isinstance(failed, ServerUnavailable)
            assert "slot" in str(failed)
            assert not failed.outcome_unknown
        await anyio.to_thread.run_sync(moves.hand_over, keys.root)
        assert await store.execute("EVAL", "return 1", 1, keys.root) == 1
        assert store_of_thread.execute("EVAL", "return 1", 1, keys.root) == 1
    store_of_thread.close()


async def test_the_target_of_a_move_refuses(moves: SlotMoves, prefix: str) -> None:
    """A command that cannot follow its key has the failure as its reply; the commands beside it have run."""
    keys, first = PoolKeys(prefix, "p"), f"{prefix}:{{first}}"
    source, target = moves.nodes[0], moves.clients[1]
    if moves.owner(keys.root) != 0:
        await anyio.to_thread.run_sync(moves.move_slot, keys.root)
    with source.client() as direct:
        direct.set(keys.format, "2")
    await anyio.to_thread.run_sync(moves.begin, keys.root)
    await anyio.to_thread.run_sync(move_some, moves, keys.root, 1)
    store_of_thread = SyncStore(Endpoint.at(source.url), keys, name="test")
    target.config_set("requirepass", "x")
    try:
        async with Store(Endpoint.at(source.url), keys) as store:
            commands = [("RPUSH", first, "1"), ("GET", keys.format)]
            for pushed, replies in (
                (1, await store.pipeline(commands)),
                (2, await anyio.to_thread.run_sync(store_of_thread._router.pipeline, commands)),
            ):
                assert replies[0] == pushed
                assert isinstance(replies[1], ServerRefused)
    finally:
        target.config_set("requirepass", "")
        store_of_thread.close()


async def test_a_blocked_reader_is_called_off(moves: SlotMoves, prefix: str) -> None:
    """The first redirect of a store ends its blocking reads of that slot at once; Redis would take up to a second."""
    keys = PoolKeys(prefix, "p")
    async with Store(Endpoint.at(owner_of(moves, keys.root).url), keys) as store:
        link = store.blocking_link(30)
        read = await link.begin("XREAD", "BLOCK", 0, "STREAMS", keys.doorbell, "0")
        with owner_of(moves, keys.root).client() as direct, slow_timers(direct):
            await wait_for(lambda: direct.info("clients")["blocked_clients"] == 1, "the read to block")
            await anyio.to_thread.run_sync(moves.move_slot, keys.root)
            await store.execute("GET", keys.format)
            assert read.done()
        read.cancel()
        with owner_of(moves, keys.root).client() as direct:
            direct.xadd(keys.doorbell, {"a": "b"})
        assert len(await link.execute("XREAD", "BLOCK", 1000, "STREAMS", keys.doorbell, "0")) == 1
        await link.close()


async def test_a_subscription_ends_with_its_slot(moves: SlotMoves, prefix: str) -> None:
    """Redis ends it without being asked; the connection ends too, so that its user subscribes again."""
    keys, ends, heard = PoolKeys(prefix, "p"), list[str](), list[str]()
    async with Store(Endpoint.at(owner_of(moves, keys.root).url), keys) as store:
        hints = store.open_hints(
            name="hints", received=lambda _, message: heard.append(message), ended=lambda: ends.append("ended")
        )
        await hints.subscribe([keys.out("1")])
        (link,) = hints._router._links.values()
        assert link._wire is not None
        wire = link._wire
        await anyio.to_thread.run_sync(moves.move_slot, keys.root)
        await wait_for(lambda: ends, "the end of the subscription")
        assert str(wire.lost) == "the slot of a subscription has moved"
        await hints.subscribe([keys.out("1")])
        with owner_of(moves, keys.root).client() as direct:
            direct.execute_command("SPUBLISH", keys.out("1"), "news")
        await wait_for(lambda: heard == ["news"], "a hint from the new server")
        await hints.close()


def test_a_long_read_follows(moves: SlotMoves, prefix: str) -> None:
    """By itself: no other connection of its process tells it where the slot is."""
    keys = PoolKeys(prefix, "p")
    store = SyncStore(Endpoint.at(owner_of(moves, keys.root).url), keys, name="test")
    long_read = store.long_read(name="long", connect_timeout_s=5, max_bytes=1000)
    command = ("XREAD", "BLOCK", 10_000, "STREAMS", keys.control, "0")
    long_read.begin(*command)
    moves.move_slot(keys.root)
    with pytest.raises(ServerUnavailable, match="slot"):
        take(long_read)
    with owner_of(moves, keys.root).client() as direct:
        direct.xadd(keys.control, {"a": "b"})
    long_read.begin(*command)
    assert len(take(long_read)) == 1
    long_read.close()
    store.close()


@pytest.mark.parametrize("kind", ["asyncio", "thread"])
async def test_a_script_that_is_lost_again(redis_server: RedisServer, prefix: str, kind: str) -> None:
    """The slot moves between loading and calling, or an operator flushes the scripts: it is loaded once more."""
    keys, call = PoolKeys(prefix, "p"), scripts.promote(PoolKeys(prefix, "p"), limit=1)
    with ThreadedProxy(redis_server.url) as proxy, redis_server.client() as direct:
        endpoint = Endpoint.at(proxy.url)
        direct.script_flush()
        flush = proxy.watch("EVALSHA", lambda _: direct.script_flush() and None, nth=2)
        if kind == "asyncio":
            async with Store(endpoint, keys) as store:
                await store.call(call)
        else:
            store_of_thread = SyncStore(endpoint, keys, name="test")
            await anyio.to_thread.run_sync(store_of_thread.call, call)
            store_of_thread.close()
        assert flush.fired == 1
        assert len(proxy.commands("EVALSHA")) == 3


@contextmanager
def slow_timers(direct: redis.Redis) -> Iterator[None]:
    """Let the server look after its clients once a second, as it does when there are many."""
    direct.config_set("hz", 1)
    yield
    direct.config_set("hz", 10)


def take(long_read: LongRead) -> Any:
    """Wait for the reply of a long read."""
    while True:
        select.select([long_read.fileno()], [], [], 5.0)
        if (taken := long_read.take()) is not None:
            return taken[0]


async def test_idle_links_are_closed(moves: SlotMoves, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link to the old server goes once everything is at the new one."""
    monkeypatch.setattr(router, "IDLE_S", 0.05)
    keys = PoolKeys(prefix, "p")
    old, new = owner_of(moves, keys.root), other_of(moves, keys.root)
    store_of_thread = SyncStore(Endpoint.at(old.url), keys, name="idle-thread")
    async with Store(Endpoint.at(old.url), keys, name="idle") as store:
        await store.execute("GET", keys.format)
        store_of_thread.execute("GET", keys.format)
        await anyio.to_thread.run_sync(moves.move_slot, keys.root)
        await store.execute("GET", keys.format)
        store_of_thread.execute("GET", keys.format)
        with old.client() as first, new.client() as second:
            await wait_for(lambda: not names_of(first, "idle"), "the end of the first link")
            await anyio.sleep(0.05)
            store_of_thread.execute("GET", keys.format)
            await wait_for(lambda: not names_of(first, "idle-thread"), "the end of the thread's first link")
            assert names_of(second, "idle") == names_of(second, "idle-thread") == 1
    store_of_thread.close()


async def test_a_server_that_is_gone_is_doubted(moves: SlotMoves, prefix: str) -> None:
    """A learned address that nothing answers at is forgotten: the configured server is asked again."""
    endpoint, keys = Endpoint.at(moves.nodes[0].url), PoolKeys(prefix, "p")
    nowhere = Address(moves.nodes[0].url).at("127.0.0.1", 1)
    async with Store(endpoint, keys) as store:
        endpoint.locator.moved(slot_of(keys.root), nowhere)
        with pytest.raises(ServerUnavailable, match="GET"):
            await store.execute("GET", keys.format)
        assert await store.execute("GET", keys.format) is None
    endpoint.locator.moved(slot_of(keys.root), nowhere)
    store_of_thread = SyncStore(endpoint, keys, name="test")
    with pytest.raises(ServerUnavailable, match="GET"):
        store_of_thread.execute("GET", keys.format)
    assert store_of_thread.execute("GET", keys.format) is None
    store_of_thread.close()


def owner_of(moves: SlotMoves, key: str) -> RedisServer:
    """The node that has the slot of a key."""
    return moves.nodes[moves.owner(key)]


def other_of(moves: SlotMoves, key: str) -> RedisServer:
    """The node that does not have the slot of a key."""
    return moves.nodes[1 - moves.owner(key)]


def pool_root(prefix: str) -> str:
    """The key that scripts of the default pool declare."""
    return PoolKeys(prefix, "default").root


def move_some(moves: SlotMoves, key: str, count: int) -> None:
    """Move this many keys of the slot that moves."""
    moves.move(key, moves.keys(key, moves.owner(key))[:count])


def test_slots(moves: SlotMoves) -> None:
    """The slot of a key is the one that servers compute."""
    for key in ("a", "{a}b", "x{a}y", "{}a", "{a", "a}", "{{a}}", "o:t:d:{pool:default}:queues", "é{ü}"):
        assert slot_of(key) == slot_of(key.encode()) == moves.slot(key), key


def has_one_address(endpoint: Endpoint) -> bool:
    """Whether all slots have one address."""
    return endpoint.locator.single is not None


def names_of(direct: redis.Redis, name: str) -> int:
    """How many connections have this name."""
    return sum(one["name"] == name for one in direct.client_list())
