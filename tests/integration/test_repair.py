"""The walk over a live pool: what is sound stays as it is, whatever is lost comes back, garbage stops nobody."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Retry, Snooze, TaskContext
from orchestrator.store.key_kinds import kind_of
from orchestrator.store.keys import PoolKeys
from orchestrator.supervisor import reconciler
from orchestrator.tasks.queries import counters
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer
from tests.helpers.guards import keys_of
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.pool_scans import scan_pool

if TYPE_CHECKING:
    import redis

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from orchestrator.repair.findings import RepairFinding
    from tests.helpers.local_team import LocalTeam

every_server = pytest.mark.every_server

LOST = [
    *["queue:skill:work", "queue:agent:busy", "queues", "scheduled", "expiring", "inbox:busy", "doorbell", "events"],
    *["limits", "limit:@busy", "agents", "agent:busy", "agent:busy:workers", "workers", "worker:", "skills:work"],
    *["dead", "stats:TOTAL", "leader", "replies:", "idem:", "out:"],
]


async def scan(team: LocalTeam, *, repair: bool = True) -> list[RepairFinding]:
    """One whole walk without rests."""
    return await scan_pool(team.services.store, team.settings, repair=repair)


def codes(found: list[RepairFinding]) -> Counter[str]:
    """How often each code was found."""
    return Counter(finding.code for finding in found)


def busy_agent(held: anyio.Event) -> Agent:
    """Does everything that a task can do: ends, fails, snoozes, emits, waits for a gate."""
    agent = Agent("busy", rate="100000/s", concurrency=4)

    @agent.skill(backoff=0.02, max_attempts=5)
    async def work(ctx: TaskContext, how: str = "") -> str:
        await ctx.progress(1, 2)
        if how == "retry" and ctx.attempt < 3:
            raise Retry(delay=0.05)
        if how == "snooze" and ctx.attempt < 2 and not held.is_set():
            raise Snooze(delay=0.05)
        if how == "hold":
            await held.wait()
        return how

    return agent


async def submit_all(team: LocalTeam, count: int) -> list[TaskHandle[object]]:
    """Tasks for every place: queues of skills and agents, with keys, deadlines, delays, retries."""
    soon = datetime.now(UTC) + timedelta(seconds=60)
    tasks = [
        *[Submission("work", {"how": how}) for how in ("", "retry", "hold")],
        Submission("work", agent="busy", key="k"),
        Submission("work", delay=0.3, start_by=soon),
        Submission("work", start_by=soon),
    ]
    handles: list[TaskHandle[object]] = []
    for _ in range(count):
        handles += await team.orc.submit_many([task for task in tasks if "key" not in task.options or not handles])
    return handles


@every_server
async def test_a_healthy_busy_team_is_never_repaired(team: LocalTeam) -> None:
    """While tasks run, retry, wait and end, and workers come and go, walk after walk finds nothing."""
    held = anyio.Event()
    held.set()
    agent = busy_agent(held)
    await team.work(agent)
    walks = 0
    found: list[RepairFinding] = []

    async def keep_scanning() -> None:
        nonlocal walks
        while True:
            found.extend(await scan(team))
            walks += 1

    async with anyio.create_task_group() as group:
        group.start_soon(keep_scanning)
        for _ in range(3):
            handles = await submit_all(team, 40)
            worker = await team.work(agent)
            async with anyio.create_task_group() as waiting:
                for handle in handles:
                    waiting.start_soon(handle.result, 20)
            await team.stop(worker)
        group.cancel_scope.cancel()
    assert found == []
    assert walks > 10
    counts = await counters(team.services.store)
    assert "repaired" not in counts
    assert "cleaned" not in counts


@every_server
async def test_what_is_lost_stays_lost_without_the_walk(team: LocalTeam, redis_client: redis.Redis) -> None:
    """The twin of the following: a queue that Redis lost is found by nobody else, sweeps or not."""
    handle = await team.orc.submit("work")
    redis_client.delete(team.services.keys.queue("skill:work"), team.services.keys.queues)
    held = anyio.Event()
    await team.work(busy_agent(held))
    with pytest.raises(TimeoutError):
        await handle.result(timeout=1.5)
    assert codes(await scan(team, repair=False)) == {"lost-ready": 1}
    assert codes(await scan(team)) == {"lost-ready": 1}
    assert await handle.result(TIMEOUT_S) == ""


@pytest.mark.parametrize("settings", [{"supervisor__sweep_s": 0.5}], indirect=True)
@pytest.mark.parametrize("lost", LOST)
async def test_any_key_may_be_lost_under_load(
    team: LocalTeam, redis_client: redis.Redis, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key of each kind but records is deleted while the team works: every task ends, and nothing is amiss then."""
    monkeypatch.setattr(reconciler, "SCAN_EVERY_S", 0.2)
    monkeypatch.setattr(reconciler, "QUIET_REST_S", 0.0)
    monkeypatch.setattr(reconciler, "SHARE", 0.5)
    held = anyio.Event()
    await team.work(busy_agent(held))
    handles = await submit_all(team, 12)
    await wait_for(lambda: redis_client.xlen(team.services.keys.inbox("busy")) > 0, "work in hand")
    root = f"{team.services.keys.root}:"
    gone = [key for key in keys_of(redis_client, root) if key.removeprefix(root).startswith(lost)]
    if gone:
        redis_client.delete(*gone)
    held.set()
    with anyio.fail_after(20):
        for handle in handles:
            assert await handle.result() in {"", "retry", "hold"}
    await wait_for(lambda: redis_client.exists(f"{root}agent:busy") == 1, "the agent to be known again")
    await scan(team)
    assert codes(await scan(team)) == {}


@every_server
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_everything_but_records_and_workers_may_be_lost_at_once(
    team: LocalTeam, redis_client: redis.Redis, seed: int
) -> None:
    """Of a pool at rest random keys are deleted, whole indexes among them; after one walk each task ends."""
    dice = random.Random(seed)
    held = anyio.Event()
    handles = await submit_all(team, 5)
    keys = [key for key in keys_of(redis_client, team.services.keys.root) if ":task:" not in key]
    for key in dice.sample(keys, len(keys) * 2 // 3):
        redis_client.delete(key)
    await scan(team)
    held.set()
    await team.work(busy_agent(held))
    with anyio.fail_after(20):
        for handle in handles:
            await handle.result()
    assert codes(await scan(team)) == {}


def write_garbage(direct: redis.Redis, keys: PoolKeys) -> int:
    """A key of another type, and one of noise, in place of each kind that nothing lives in; how many."""
    planted = 0
    for suffix in ("queue:skill:\xff", "parked:x", "out:x", "idem:x", "limit:x", "skills:x", "inbox:x", "nonsense:{x}"):
        key = f"{keys.root}:{suffix}"
        direct.rpush(key, b"\xff\x00")
        direct.expire(key, 600)
        planted += 1
    direct.hset(keys.task("\xfe"), b"\xff", b"\x00")
    direct.hset(keys.task("half"), mapping={"state": "ready", "gen": "x", "env": b"\x93"})
    direct.set(keys.task("text"), b"\xff", ex=600)
    direct.zadd(keys.queue("skill:work"), {b"\xff\xfe": 0, b"half": 0, b"text": 0})
    direct.zadd(keys.scheduled, {b"\xff": 0, b"half": 0})
    direct.sadd(keys.queues, b"\xff")
    return planted


@every_server
@pytest.mark.parametrize("settings", [{"supervisor__sweep_s": 0.3}], indirect=True)
async def test_garbage_stops_nobody(
    team: LocalTeam, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise at the head of a queue stops its agent; the supervisor has the pool walked through, and tasks run again."""
    monkeypatch.setattr(reconciler, "QUIET_REST_S", 0.0)
    planted = write_garbage(redis_client, team.services.keys)
    before = await scan(team, repair=False)
    assert sum(codes(before)[code] for code in ("wrong-type", "guarded-type", "foreign")) == planted
    held = anyio.Event()
    held.set()
    handle = await team.orc.submit("work")
    await team.work(busy_agent(held))
    assert await handle.result(20) == ""
    await scan(team)
    left = codes(await scan(team))
    assert set(left) == {"guarded-type", "foreign", "unreadable"}
    for key in keys_of(redis_client, team.services.keys.root):
        if redis_client.type(key) == b"list" or key.endswith(":text"):
            redis_client.delete(key)
    assert codes(await scan(team)) == {}


async def test_garbage_without_the_walk(team: LocalTeam, redis_client: redis.Redis) -> None:
    """The twin: such a record at the head of a queue does stop its agent, and other agents are not held up."""
    keys = team.services.keys
    redis_client.hset(keys.task("half"), mapping={"state": "ready", "gen": "1"})
    redis_client.expire(keys.task("half"), 60)
    redis_client.zadd(keys.queue("skill:work"), {"half": 0})
    redis_client.sadd(keys.queues, "skill:work")
    held = anyio.Event()
    held.set()
    await team.work(busy_agent(held))
    other = Agent("zoe")

    @other.skill
    async def rest() -> str:
        return "rested"

    await team.work(other)
    blocked = await team.orc.submit("work")
    assert await (await team.orc.submit("rest")).result(TIMEOUT_S) == "rested"
    with pytest.raises(TimeoutError):
        await blocked.result(timeout=0.5)
    await scan(team)
    assert await blocked.result(TIMEOUT_S) == ""


async def test_other_pools_are_left_alone(team: LocalTeam, redis_client: redis.Redis, settings: Settings) -> None:
    """Pools whose names begin alike, and other prefixes: nothing of theirs is touched, damaged or not."""
    for keys in (PoolKeys(settings.prefix, "default2"), PoolKeys(f"{settings.prefix}x", "default")):
        redis_client.zadd(keys.scheduled, {"gone": 1})
        redis_client.hset(keys.task("lost"), mapping={"state": "ready", "gen": "1", "env": b"\x92\xa1a\xa0"})
    await team.orc.submit("work")
    assert await scan(team) == []
    for keys in (PoolKeys(settings.prefix, "default2"), PoolKeys(f"{settings.prefix}x", "default")):
        assert redis_client.zscore(keys.scheduled, "gone") == 1
        assert redis_client.ttl(keys.task("lost")) == -1
        redis_client.delete(keys.scheduled, keys.task("lost"))


async def test_every_kind_of_key_is_known(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Each key that a working pool writes has its kind, by which the walk knows what to do with it."""
    held = anyio.Event()
    held.set()
    await team.work(busy_agent(held))
    for handle in await submit_all(team, 2):
        await handle.result(TIMEOUT_S)
    root = f"{team.services.keys.root}:"
    names = [key.removeprefix(root) for key in keys_of(redis_client, root)]
    assert [name for name in names if kind_of(name) is None] == []
    assert kind_of("nonsense:x") is None


async def test_a_restarted_server_is_looked_through_at_once(
    prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reconciler walks as soon as the server was started anew, and finds what it lost; twin: not before."""
    monkeypatch.setattr(reconciler, "POLL_EVERY_S", 0.05)
    monkeypatch.setattr(reconciler, "QUIET_REST_S", 0.0)
    caplog.set_level("DEBUG", logger="orchestrator")
    with RedisServer(options={"appendonly": "yes", "appendfsync": "always"}) as server:
        settings = local_settings(server.url, prefix, supervisor__sweep_s=0.2)
        async with run_local_team(settings) as team:
            await team.orc.submit("nobody")
            queue = team.services.keys.queue("skill:nobody")
            await wait_for(lambda: "reconcile_finished" in caplog.text, "the first walk", timeout_s=15)
            with server.client() as direct:
                direct.delete(queue)
                await anyio.sleep(0.5)
                assert not direct.exists(queue), "walked without a reason"
            await anyio.to_thread.run_sync(server.restart)
            with server.client() as direct:
                await wait_for(lambda: direct.exists(queue) == 1, "the walk after the restart", timeout_s=15)


async def test_evicted_keys_start_a_walk(
    prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When Redis evicts keys, the supervisor says so, and walks at once."""
    monkeypatch.setattr(reconciler, "POLL_EVERY_S", 0.05)
    monkeypatch.setattr(reconciler, "QUIET_REST_S", 0.0)
    caplog.set_level("DEBUG", logger="orchestrator")
    with RedisServer() as server, server.client() as direct:
        async with run_local_team(local_settings(server.url, prefix, supervisor__sweep_s=0.2)) as team:
            await team.orc.submit("nobody")
            queue = team.services.keys.queue("skill:nobody")
            await wait_for(lambda: "reconcile_finished" in caplog.text, "the first walk", timeout_s=15)
            direct.set("filler", b"x" * 1_000_000, px=60_000)
            direct.delete(queue)
            direct.config_set("maxmemory-policy", "volatile-ttl")
            direct.config_set("maxmemory", direct.info("memory")["used_memory"] - 500_000)
            await wait_for(lambda: "keys_evicted" in caplog.text, "the evicted keys in the log", timeout_s=15)
            direct.config_set("maxmemory", 0)
            await wait_for(lambda: direct.exists(queue) == 1, "the walk after the eviction", timeout_s=15)


async def test_a_lost_lane_is_made_again(team: LocalTeam) -> None:
    """Who runs keeps the turn, those that wait get their places back, and each runs in its order."""
    agent, order, gate = Agent("clerk"), list[int](), anyio.Event()

    @agent.skill
    async def file(number: int) -> None:
        order.append(number)
        await gate.wait()

    await team.work(agent)
    handles = [await team.orc.submit("file", {"number": number}, lane="x") for number in range(5)]
    await wait_for(lambda: order == [0], "the first to run", TIMEOUT_S)
    await team.services.store.execute("DEL", team.services.keys.lane("x"))
    assert codes(await scan(team)) == {"lost-lane": 5}
    assert await scan(team) == []
    gate.set()
    for handle in handles:
        await handle.result(TIMEOUT_S)
    assert order == list(range(5))


async def test_a_lane_without_an_owner_goes_on(team: LocalTeam) -> None:
    """The record of the owner is lost, or its end gave nothing on: the next one gets the turn."""
    agent = Agent("clerk")

    @agent.skill
    async def file() -> None: ...

    handles = [await team.orc.submit("file", lane="x") for _ in range(3)]
    await team.services.store.execute("DEL", team.services.keys.task(handles[0].id))
    await team.work(agent)
    assert codes(await scan(team))["lost-turn"] == 1
    for handle in handles[1:]:
        await handle.result(TIMEOUT_S)
