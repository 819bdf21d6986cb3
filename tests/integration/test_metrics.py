"""Metrics of a pool: what a live run exports, and what a scrape of a large pool costs."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Orchestrator, TaskContext
from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.agents.timings import MAX_NAMES
from orchestrator.core.ids import new_task_id
from orchestrator.monitoring.catalogue import LABELLED, METRICS, OTHER
from orchestrator.monitoring.pool_reader import PoolReader
from orchestrator.monitoring.scripts import ReadyPlace
from orchestrator.monitoring.supervisor_health import SupervisorHealth
from orchestrator.services import open_services
from orchestrator.tasks.submission import Submission
from orchestrator.views.backlog import read_backlog
from tests.helpers.metrics import Samples, label_values, names, parse, value
from tests.helpers.terminal import Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from tests.helpers.local_team import LocalTeam

MOST_COMMANDS = 11
FROM_SUPERVISORS = {metric.name for metric in METRICS if metric.source != "host"}


async def scrape(services: Services, supervisor: str = "s") -> Samples:
    """What a supervisor that has just started exports."""
    health = SupervisorHealth(services.settings, "unix:/unused")
    health.connected(services, supervisor)
    return parse((await health.metrics()).decode())


def make_agent(name: str = "ed", *, concurrency: int = 2) -> Agent:
    """An agent that succeeds, or fails for good."""
    agent = Agent(name, concurrency=concurrency)

    @agent.skill
    async def sum(ctx: TaskContext, n: int = 0, pause_s: float = 0.0) -> int:  # noqa: A001
        await anyio.sleep(pause_s)
        if n < 0:
            raise ValueError("negative")
        return n

    return agent


@pytest.mark.parametrize("settings", [{"worker__heartbeat_s": 0.1}], indirect=True)
async def test_a_live_run(team: LocalTeam) -> None:
    """The text is valid, all that it has is declared, and it counts what happened."""
    begun_s = time.monotonic()
    await team.work(make_agent())
    await team.orc.submit_many(
        [Submission("sum", {"n": n, "pause_s": 0.02}) for n in range(5)]
        + [Submission("sum", {"n": -1}, max_attempts=1), Submission("sum", delay=100.0)]
    )

    async def counted() -> bool:
        ran = "orc_task_duration_seconds_count", frozenset({("agent", "ed"), ("skill", "sum")})
        return (await scrape(team.services)).get(ran) == 6

    await wait_for(counted, "all attempts to be counted")
    found = await scrape(team.services)
    assert names(found) == FROM_SUPERVISORS
    assert value(found, "orc_tasks_submitted_total") == 7
    assert value(found, "orc_tasks_finished_total", outcome="succeeded") == 5
    assert value(found, "orc_tasks_finished_total", outcome="dead") == 1
    assert value(found, "orc_task_attempts_total", agent="ed", skill="sum", outcome="succeeded") == 5
    assert value(found, "orc_task_attempts_total", agent="ed", skill="sum", outcome="dead") == 1
    assert value(found, "orc_task_duration_seconds_bucket", agent="ed", skill="sum", le="+Inf") == 6
    # The attempts that paused are in no bucket below their pause; the other one may have waited for a processor.
    assert value(found, "orc_task_duration_seconds_bucket", agent="ed", skill="sum", le="0.016") <= 1
    slots = value(found, "orc_slots", agent="ed")
    duration_s = value(found, "orc_task_duration_seconds_sum", agent="ed", skill="sum")
    assert 5 * 0.02 <= duration_s <= slots * (time.monotonic() - begun_s)
    assert value(found, "orc_tasks_scheduled") == 1
    assert value(found, "orc_dead_letters") == 1
    assert slots == 2
    assert value(found, "orc_workers") == 1
    assert value(found, "orc_leader") == 1
    assert value(found, "orc_redis_up") == 1
    # Submits and ends of seven tasks are script calls, which write more than one key each.
    calls = value(found, "orc_redis_commands_total", command="evalsha")
    assert 7 < calls < value(found, "orc_redis_commands_total", command="hset") * 10
    assert 0 < value(found, "orc_redis_command_seconds_total", command="evalsha") < 60
    median_s, p99_s = (
        value(found, "orc_redis_command_quantile_seconds", command="evalsha", quantile=quantile)
        for quantile in ("0.5", "0.99")
    )
    assert 0 < median_s <= p99_s < 10
    assert abs(value(found, "orc_redis_clock_skew_seconds")) < 1


async def test_work_that_waits(team: LocalTeam, tmp_path: Path) -> None:
    """The number for autoscaling grows without a slot, falls with slots, and follows the running times."""
    store, keys = team.services.store, team.services.keys
    await team.orc.submit_many([Submission("sum") for _ in range(12)])
    found = await scrape(team.services)
    # A task that never ran counts as 1 s, and a pool without slots as one with one slot.
    assert value(found, "orc_skill_backlog_seconds", skill="sum") == 12
    assert value(found, "orc_pool_backlog_seconds") == 12
    assert value(found, "orc_skill_waiting", skill="sum") == 12
    assert value(found, "orc_skill_slots", skill="sum") == 0
    assert 0 <= value(found, "orc_queue_oldest_seconds", kind="skill") < 5
    spec = AgentSpec("ed", frozenset({"other"}))
    await store.call(registry.register(keys, worker="w", spec=spec, slots=3, backlog=0, about={}, alive_s=60))
    await store.call(registry.count(keys, worker="w", batch=1, rows=[("ed", "other", [0, 10, 17, 5000, 73, 10])]))
    await store.call(registry.count(keys, worker="w", batch=2, rows=[("bob", "sum", [0, 10, 17, 20_000, 75, 10])]))
    found = await scrape(team.services)
    assert value(found, "orc_skill_backlog_seconds", skill="sum") == 12 * 2.0
    assert value(found, "orc_pool_backlog_seconds") == 12 * 2.0 / 3
    assert value(found, "orc_skill_backlog_seconds", skill="other") == 0
    spec = AgentSpec("bob", frozenset({"sum"}))
    # A draining worker has no slots; the others are those that serve.
    await store.call(registry.register(keys, worker="v", spec=spec, slots=0, backlog=0, about={}, alive_s=60))
    assert value(await scrape(team.services), "orc_skill_slots", skill="sum") == 0
    backlogs = await read_backlog(team.services)
    assert (backlogs.skills["sum"].waiting, backlogs.skills["sum"].seconds) == (12, 24.0)
    assert backlogs.pool.seconds == 8.0
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)
    shown = (await anyio.to_thread.run_sync(terminal.orc, "status", "-o", "json")).json()
    assert (shown["backlog"]["seconds"], shown["backlog"]["skills"]["sum"]["seconds"]) == (8.0, 24.0)


async def add_ready(services: Services, queue: str, *, suspect: bool = False) -> None:
    """Add a task without a record, so that no supervisor assigns it, to a queue or to its suspects."""
    store, keys = services.store, services.keys
    key, listed = (keys.suspects(queue), keys.suspected_queues) if suspect else (keys.queue(queue), keys.queues)
    since_ms = int(time.time() * 1000) - 60_000
    await store.execute("ZADD", key, since_ms, new_task_id())
    await store.execute("SADD", listed, queue)


HOLDS = ["stop", "refuse", "stop agent", "stop skill", "pause agent", "pause queue"]


@pytest.mark.parametrize("hold", HOLDS)
async def test_held_tasks_need_no_slots(settings: Settings, hold: str) -> None:
    """What a stop or a pause holds is neither backlog nor late, because further slots would not start it."""
    async with open_services(settings, name="s") as services, Orchestrator(settings=settings) as orc:
        spec = AgentSpec("ed", frozenset({"sum"}))
        call = registry.register(services.keys, worker="w", spec=spec, slots=2, backlog=0, about={}, alive_s=60)
        await services.store.call(call)
        for _ in range(3):
            await add_ready(services, "skill:sum")
        await add_ready(services, "skill:sum", suspect=True)
        found = await scrape(services)
        assert (value(found, "orc_pool_backlog_seconds"), value(found, "orc_skill_waiting", skill="sum")) == (2, 4)
        assert value(found, "orc_queue_waiting", kind="held") == 0
        assert value(found, "orc_queue_oldest_seconds", kind="skill") >= 60
        admin = orc.admin
        send: dict[str, Callable[[], Awaitable[object]]] = {
            "stop": admin.stop,
            "refuse": partial(admin.stop, refuse=True),
            "stop agent": partial(admin.stop, agent="ed"),
            "stop skill": partial(admin.stop, skill="sum"),
            "pause agent": partial(admin.pause_agent, "ed"),
            "pause queue": partial(admin.pause_queue, "skill:sum"),
        }
        await send[hold]()
        found = await scrape(services)
        assert value(found, "orc_pool_backlog_seconds") == value(found, "orc_skill_backlog_seconds", skill="sum") == 0
        assert value(found, "orc_queue_waiting", kind="held") == 4
        assert value(found, "orc_queue_waiting", kind="skill") == value(found, "orc_skill_waiting", skill="sum") == 0
        for kind in ("skill", "suspect"):
            assert value(found, "orc_queue_oldest_seconds", kind=kind) == 0
        assert value(found, "orc_skill_oldest_seconds", skill="sum") == 0
        scope = hold.partition(" ")[2] or "pool"
        assert value(found, "orc_active_stops", scope=scope) == 1
        # Another agent has the skill: only a stop of the pool, of the skill or of its queue holds the tasks.
        spec = AgentSpec("bob", frozenset({"sum"}))
        call = registry.register(services.keys, worker="v", spec=spec, slots=4, backlog=0, about={}, alive_s=60)
        await services.store.call(call)
        expected = 1 if "agent" in hold else 0
        assert value(await scrape(services), "orc_pool_backlog_seconds") == expected


async def test_suspects_need_slots(settings: Settings) -> None:
    """A pool that was scaled to zero starts a worker for a suspect."""
    async with open_services(settings, name="s") as services:
        await add_ready(services, "skill:sum", suspect=True)
        await add_ready(services, "agent:ed", suspect=True)
        found = await scrape(services)
        assert value(found, "orc_pool_backlog_seconds") == 2
        assert value(found, "orc_skill_backlog_seconds", skill="sum") == 1
        assert value(found, "orc_queue_waiting", kind="suspect") == 2
        assert value(found, "orc_queue_oldest_seconds", kind="suspect") >= 60


async def test_every_queue_is_read_every_time(settings: Settings) -> None:
    """Neither many queues nor many stopped sessions delay the number for autoscaling."""
    async with open_services(settings, name="s") as services:
        store, keys = services.store, services.keys
        scopes = [f"session:{number:05}" for number in range(1000)]
        await store.execute("SADD", keys.suspended_scopes, *scopes)
        await store.pipeline([("ZADD", keys.held(scope), 1, "t") for scope in scopes])
        for number in range(300):
            await add_ready(services, f"skill:s{number:03}")
        reader = PoolReader(store)
        first = await reader.read()
        assert len(first.queues) == 1300
        for queue in ("agent:ed", "skill:s000", "skill:s299", "skill:new"):
            await add_ready(services, queue)
        await store.execute("ZADD", keys.held(scopes[-1]), 1, "u")
        found = (await reader.read()).queues
        assert [found[ReadyPlace.of_queue(f"skill:{name}")].tasks for name in ("s000", "s299", "new")] == [2, 2, 1]
        last = ReadyPlace("held", scopes[-1])
        assert found[last].tasks == 1
        for _ in range(7):
            found = (await reader.read()).queues
        assert found[last].tasks == 2


async def test_names_like_the_one_of_the_rest(settings: Settings) -> None:
    """An agent and a skill that are named `other` are counted with those beyond the bound, in one sample."""
    async with open_services(settings, name="s") as services:
        store, keys = services.store, services.keys
        spec = AgentSpec(OTHER, frozenset({OTHER, *(f"s{number:03}" for number in range(LABELLED + 10))}))
        await store.call(registry.register(keys, worker="w", spec=spec, slots=3, backlog=0, about={}, alive_s=60))
        pairs = [(OTHER, OTHER), *((OTHER, f"s{number:03}") for number in range(LABELLED + 10))]
        rows = [(agent, skill, [0, 2, 17, 8, 66, 2]) for agent, skill in pairs]
        await store.call(registry.count(keys, worker="w", batch=1, rows=rows))
        found = await scrape(services)  # the parser refuses repeated samples
        both = {"agent": OTHER, "skill": OTHER}
        assert value(found, "orc_task_attempts_total", **both, outcome="succeeded") == 2 * (len(pairs) - LABELLED + 1)
        assert value(found, "orc_task_duration_seconds_count", **both) == 2 * (len(pairs) - LABELLED + 1)
        assert value(found, "orc_skill_slots", skill=OTHER) == 3


async def test_ages(team: LocalTeam) -> None:
    """The oldest task of a low priority is seen behind the first one of a high priority."""
    old, new = await team.orc.submit("sum", priority="low"), await team.orc.submit("sum", priority="high")
    queue = team.services.keys.queue("skill:sum")
    await team.services.store.execute("ZINCRBY", queue, -60_000, old.id)
    assert new.id.encode() == (await team.services.store.execute("ZRANGE", queue, 0, 0))[0]
    found = await scrape(team.services)
    assert 60 <= value(found, "orc_skill_oldest_seconds", skill="sum") < 65
    await team.services.store.execute("ZREM", queue, old.id)
    assert value(await scrape(team.services), "orc_skill_oldest_seconds", skill="sum") < 5


async def test_counters_outlive_supervisors(team: LocalTeam) -> None:
    """Every supervisor exports the same counters, so a rate of one of them goes on over a failover."""
    await team.orc.submit_many([Submission("sum") for _ in range(3)])
    one, other = await scrape(team.services, "one"), await scrape(team.services, "other")
    counters = {key: count for key, count in one.items() if key[0].startswith(("orc_task", "orc_control"))}
    assert counters.items() <= other.items()
    assert value(one, "orc_tasks_submitted_total") == 3


async def test_counters_after_a_failover(settings: Settings) -> None:
    """Counters do not step back with writes that Redis has lost, and do in another database."""
    async with open_services(settings, name="s") as services:
        store, keys = services.store, services.keys
        health = SupervisorHealth(settings, "unix:/unused")

        async def counted() -> tuple[float, float, float]:
            health.connected(services, "s")
            found = parse((await health.metrics()).decode())
            pair = {"agent": "ed", "skill": "sum"}
            return (
                value(found, "orc_tasks_submitted_total"),
                value(found, "orc_task_duration_seconds_sum", **pair),
                value(found, "orc_task_attempts_total", **pair, outcome="succeeded"),
            )

        spec = AgentSpec("ed", frozenset({"sum"}))
        await store.call(registry.register(keys, worker="w", spec=spec, slots=3, backlog=0, about={}, alive_s=60))
        totals, field = keys.stats("TOTAL"), "ed sum"
        await store.call(registry.count(keys, worker="w", batch=1, rows=[("ed", "sum", [0, 10, 17, 5000, 73, 10])]))
        earlier = await store.execute("HGET", keys.attempt_totals, field)
        await store.call(registry.count(keys, worker="w", batch=2, rows=[("ed", "sum", [0, 2, 17, 500, 73, 2])]))
        await store.execute("HSET", totals, "submitted", 100)
        assert await counted() == (100, 5.5, 12)
        await store.execute("HSET", totals, "submitted", 95)
        await store.execute("HSET", keys.attempt_totals, field, earlier)
        assert await counted() == (100, 5.5, 12)
        await store.execute("HSET", totals, "submitted", 101)
        assert await counted() == (101, 5.5, 12)
        await store.execute("HSET", totals, "submitted", 3)
        assert await counted() == (3, 5, 10)


@asynccontextmanager
async def large_pool(settings: Settings) -> AsyncIterator[Services]:
    """A pool of 1,000 agents and 1,000 skills, without a supervisor, that has run 10^6 tasks for 1,000 pairs."""
    async with open_services(settings, name="supervisor") as services:
        store, keys = services.store, services.keys
        for first in range(0, 1000, 100):
            async with anyio.create_task_group() as group:
                for number in range(first, first + 100):
                    spec = AgentSpec(f"a{number:03}", frozenset({f"s{number:03}"}))
                    call = registry.register(
                        keys, worker=f"w{number}", spec=spec, slots=2, backlog=0, about={}, alive_s=60
                    )
                    group.start_soon(store.call, call)
        cells = [0, 1000, 17, 5000, 16, 9000, 34, 500, 36, 500, 66, 900, 70, 100]
        for batch in range(2):
            rows = [(f"a{number:03}", f"s{number:03}", cells) for number in range(batch * 500, batch * 500 + 500)]
            await store.call(registry.count(keys, worker="w0", batch=batch, rows=rows))
        yield services


class TestLargePool:
    """Bounds."""

    async def test_label_sets(self, settings: Settings) -> None:
        """1,000 agents and 10^6 tasks have no more label values than the catalogue says; no attempt is left out."""
        async with large_pool(settings) as services:
            found = await scrape(services)
            for label in ("agent", "skill"):
                assert len(label_values(found, label) - {OTHER}) == LABELLED == MAX_NAMES
            attempts = [count for (name, _), count in found.items() if name == "orc_task_attempts_total"]
            assert (len(attempts), sum(attempts)) == ((LABELLED + 1) * 10, 10**6)
            assert sum(count for (name, _), count in found.items() if name == "orc_slots") == 2000
            rest = {"agent": OTHER, "skill": OTHER}
            assert value(found, "orc_task_duration_seconds_count", **rest) == 800 * 1000
            assert value(found, "orc_task_duration_seconds_sum", **rest) == 800 * 5
            assert len(found) < 10_000

    async def test_commands(self, settings: Settings, redis_client: redis.Redis) -> None:
        """A scrape sends at most eleven commands, and the requests of one second share it."""
        async with large_pool(settings) as services:
            health = SupervisorHealth(settings, "unix:/unused")
            health.connected(services, "s")
            await health.metrics()
            health.connected(services, "s")
            with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
                async with anyio.create_task_group() as group:
                    for _ in range(5):
                        group.start_soon(health.metrics)
                await services.store.execute("PING")
                sent = list[str]()
                while (seen := monitor.next_command())["command"] != "PING":
                    if seen["client_type"] != "lua":
                        sent.append(seen["command"].split(" ")[0])
            assert 5 < len(sent) <= MOST_COMMANDS, sent
            assert sent.count("INFO") == 1

    async def test_a_change_of_an_agent(self, settings: Settings) -> None:
        """Of 1,000 agents a scrape reads 125; the next ones read the others."""
        async with large_pool(settings) as services:
            health = SupervisorHealth(settings, "unix:/unused")
            health.connected(services, "s")
            store = services.store
            read = await health._pools[settings.pool]._read()
            assert read is not None
            for name in ("a001", "a999"):
                await store.execute("HSET", services.keys.agent(name), "slots", 7)
            slots = list[tuple[int, int]]()
            for _ in range(8):
                read = await health._pools[settings.pool]._read()
                assert read is not None
                slots.append((read.agents["a001"].slots, read.agents["a999"].slots))
            assert slots == [(7, 2)] * 7 + [(7, 7)]
