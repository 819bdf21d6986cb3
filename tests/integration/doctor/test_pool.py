"""What `orc doctor` says of pools in trouble: nobody leads, nobody works, tasks are left behind, keys have leaked."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent, Cause, TaskContext
from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.doctor import stored_tasks
from orchestrator.doctor.context import CheckContext
from orchestrator.doctor.findings import Severity
from orchestrator.services import open_services
from orchestrator.store.store import Store
from orchestrator.tasks.inbox import GROUP
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.pool_scans import scan_pool
from tests.integration.doctor.doctor_runs import find_problems, run_doctor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.store.server_info import ServerInfo
    from tests.helpers.local_team import LocalTeam


@pytest.fixture
async def leaderless(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A client, and nobody who assigns."""
    async with run_local_team(settings, supervised=False) as team:
        yield team


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    """A way to plant things into the pool."""
    async with open_services(settings, name="test") as services:
        yield services.store


def greeter() -> Agent:
    """An agent with one skill."""
    agent = Agent("greeter")

    @agent.skill
    async def greet() -> str:
        return "hello"

    return agent


async def register_ghost(store: Store, *, lease_ms: int = 60_000) -> None:
    """Let a worker of agent `scribe` be known that takes tasks and never runs them."""
    spec = AgentSpec("scribe", frozenset({"write"}), lease_ms=lease_ms)
    about: dict[str, str | int] = {"host": "far", "pid": 7, "version": "0"}
    await store.call(
        registry.register(store.keys, worker="ghost", spec=spec, slots=2, backlog=1, about=about, alive_s=60)
    )


async def hand_over(team: LocalTeam, store: Store) -> None:
    """Submit a task for the ghost, and wait until it lies in its inbox."""
    await team.orc.submit("write")

    async def arrived() -> bool:
        return bool(await store.execute("XLEN", store.keys.inbox("scribe")))

    await wait_for(arrived, "the task in the inbox")


async def take_up(store: Store) -> None:
    """Let the ghost read what lies there."""
    inbox = store.keys.inbox("scribe")
    assert await store.execute("XREADGROUP", "GROUP", GROUP, "ghost", "COUNT", 1, "STREAMS", inbox, ">")


async def test_a_pool_at_work_is_well(team: LocalTeam, settings: Settings) -> None:
    """While tasks come and go, nothing is taken for lost, leaked or overdue."""
    agent = Agent("busy", concurrency=8)

    @agent.skill
    async def work() -> None:
        await anyio.sleep(0.002)

    await team.work(agent)
    async with anyio.create_task_group() as group:
        group.start_soon(_submit_on, team)
        for ended in (1, 50, 100):
            await wait_for(partial(_have_ended, team, ended), f"the end of {ended} tasks", 10)
            assert await find_problems(settings) == {}
        group.cancel_scope.cancel()


async def _submit_on(team: LocalTeam) -> None:
    while True:
        handles = [await team.orc.submit("work", delay=0.005 * number) for number in range(20)]
        for handle in handles:
            await handle.result(10)


async def _have_ended(team: LocalTeam, count: int) -> bool:
    ended = await team.services.store.execute("HGET", team.services.keys.stats("TOTAL"), "succeeded")
    return int(ended or 0) >= count


# ---------------------------------------------------------------------------------------------------------------- team


async def test_nobody_leads(leaderless: LocalTeam, settings: Settings) -> None:
    """Without a supervisor there is a warning, and a problem as soon as somebody needs one; it says what to type."""
    assert await find_problems(settings) == {"supervisor": "warning"}
    await leaderless.work(greeter())
    assert await find_problems(settings) == {"supervisor": "problem"}
    found = (await run_doctor(settings))["supervisor"]
    assert "`orc supervisor run`" in found.fix
    await leaderless.start_supervisor()

    async def supervised() -> bool:
        return await find_problems(settings) == {}

    await wait_for(supervised, "a leader")


async def test_nobody_works(team: LocalTeam, settings: Settings) -> None:
    """Tasks that wait while no worker lives are a problem; which skill they wait for is said."""
    await team.orc.submit("greet")
    assert await find_problems(settings) == {"workers": "problem", "skills": "warning"}
    found = await run_doctor(settings)
    assert "`orc worker run MODULE:AGENT`" in found["workers"].fix
    assert "1 task waiting in queue skill:greet" in found["skills"].found
    assert "no live agent has the skill 'greet'" in found["skills"].found
    await team.work(greeter())

    async def well() -> bool:
        return await find_problems(settings) == {}

    await wait_for(well, "the task to be taken")


async def test_a_silent_worker(leaderless: LocalTeam, store: Store, settings: Settings) -> None:
    """A worker that has missed four heartbeats is named, with its process."""
    await register_ghost(store)
    await anyio.sleep(settings.worker.heartbeat_s * 5)
    found = (await run_doctor(settings))["workers"]
    assert found.severity is Severity.WARNING
    assert found.found.startswith("no heartbeat from ghost")
    assert "process 7 on far" in found.fix
    await store.call(registry.heartbeat(store.keys, worker="ghost", backlogs=[("scribe", 1)], alive_s=60))
    assert (await run_doctor(settings))["workers"].severity is Severity.OK
    await leaderless.start_supervisor()


# --------------------------------------------------------------------------------------------------------------- queues


async def test_a_task_for_an_agent_without_the_skill(team: LocalTeam, settings: Settings) -> None:
    """It is parked, and the agent is named; a version that has the skill ends it."""
    await team.work(greeter())
    await team.orc.submit("paint", agent="greeter")

    async def parked() -> bool:
        return (await find_problems(settings)).get("parked") == "warning"

    await wait_for(parked, "the task to be parked")
    assert "'greeter'" in (await run_doctor(settings))["parked"].fix


@pytest.mark.parametrize(("tasks", "severity"), [(4, None), (5, "warning"), (6, "problem")])
async def test_a_queue_near_its_cap(team: LocalTeam, settings: Settings, tasks: int, severity: str | None) -> None:
    """More than four fifths of the cap are a warning, all of it a problem; the setting is named."""
    for _ in range(tasks):
        await team.orc.submit("nobody")
    small = settings.model_copy(update={"queue": settings.queue.model_copy(update={"max_tasks": 6})})
    assert (await find_problems(small)).get("queues") == severity
    if severity:
        assert "queue.max_tasks" in (await run_doctor(small))["queues"].fix


# -------------------------------------------------------------------------------------------------------------- inboxes


async def test_an_inbox_without_its_group(team: LocalTeam, store: Store, settings: Settings) -> None:
    """Nobody can read it: a problem; the worker that registers next makes the group again, as the fix says."""
    await register_ghost(store)
    await store.execute("XGROUP", "DESTROY", store.keys.inbox("scribe"), GROUP)
    found = (await run_doctor(settings))["inboxes"]
    assert found.severity is Severity.PROBLEM
    assert "restart a worker of 'scribe'" in found.fix
    await register_ghost(store)
    assert (await run_doctor(settings))["inboxes"].severity is Severity.OK
    await store.execute("DEL", store.keys.inbox("scribe"))
    assert (await find_problems(settings))["inboxes"] == "problem"
    await store.call(registry.deregister(store.keys, worker="ghost"))
    assert team.services.keys == store.keys


async def test_tasks_in_an_inbox_that_nobody_serves(team: LocalTeam, store: Store, settings: Settings) -> None:
    """What was handed out to an agent whose workers all went away is seen."""
    await register_ghost(store)
    await hand_over(team, store)
    await store.call(registry.deregister(store.keys, worker="ghost"))
    assert await find_problems(settings) == {"inboxes": "warning"}
    assert "`orc worker run MODULE:AGENT`" in (await run_doctor(settings))["inboxes"].fix


async def test_a_worker_that_is_gone_holds_a_task(team: LocalTeam, store: Store, settings: Settings) -> None:
    """With no other worker it is a problem, with one that will take it over a warning."""
    await register_ghost(store)
    await hand_over(team, store)
    await take_up(store)
    assert "lost-workers" not in await find_problems(settings)
    await store.call(registry.deregister(store.keys, worker="ghost"))
    found = (await run_doctor(settings))["lost-workers"]
    assert found.severity is Severity.PROBLEM
    assert found.found.startswith("ghost is dead and still holds 1 task")
    agent = Agent("scribe", lease=60)

    @agent.skill
    async def write() -> None:
        return

    await team.work(agent)
    assert (await run_doctor(settings))["lost-workers"].severity is Severity.WARNING


async def test_a_lease_that_ran_out_long_ago(team: LocalTeam, store: Store, settings: Settings) -> None:
    """A worker that is known and renews nothing is named."""
    await register_ghost(store, lease_ms=50)
    await hand_over(team, store)
    await take_up(store)

    async def overdue() -> bool:
        return (await find_problems(settings)).get("leases") == "problem"

    await wait_for(overdue, "two leases to pass")
    found = (await run_doctor(settings))["leases"]
    assert "1 task" in found.found
    assert "end ghost if it is stuck" in found.fix


# --------------------------------------------------------------------------------------------------------- stored tasks


async def repair(team: LocalTeam) -> None:
    """Do what the fix says."""
    await scan_pool(team.services.store, team.settings)


@pytest.mark.parametrize("where", ["queue", "scheduled"])
async def test_ids_of_tasks_that_are_gone(
    team: LocalTeam, redis_client: redis.Redis, settings: Settings, where: str
) -> None:
    """An index that lists a task without record is found; what the fix says takes it out."""
    handles = [await team.orc.submit("nobody", delay=60 if where == "scheduled" else None) for _ in range(3)]
    assert "lost-tasks" not in await find_problems(settings)
    redis_client.delete(team.services.keys.task(handles[1].id))
    found = (await run_doctor(settings))["lost-tasks"]
    assert found.severity is Severity.WARNING
    assert found.found.startswith(f"1 gone ({handles[1].id} ")
    assert "`orc keys check --repair`" in found.fix
    await repair(team)
    assert "lost-tasks" not in await find_problems(settings)


async def test_tasks_without_a_place(team: LocalTeam, redis_client: redis.Redis, settings: Settings) -> None:
    """A task that no index lists is a problem, and what cannot be repaired is told apart."""
    handle = await team.orc.submit("nobody")
    redis_client.delete(team.services.keys.queue("skill:nobody"))
    found = (await run_doctor(settings))["lost-tasks"]
    assert found.severity is Severity.PROBLEM
    assert found.found.startswith(f"2 lost-ready, listed-empty ({handle.id}, ") or "1 lost-ready" in found.found
    await repair(team)
    assert "lost-tasks" not in await find_problems(settings)
    redis_client.set(f"{team.services.keys.root}:nonsense", 1)
    found = (await run_doctor(settings))["lost-tasks"]
    assert found.severity is Severity.WARNING
    assert found.found.startswith("1 foreign (")
    redis_client.delete(f"{team.services.keys.root}:nonsense")


async def test_a_key_that_would_stay_for_ever(team: LocalTeam, redis_client: redis.Redis, settings: Settings) -> None:
    """A key of ours without a time to live is found; what the fix says gives it one."""
    handle = await team.orc.submit("nobody")
    leaked = team.services.keys.task(handle.id)
    redis_client.persist(leaked)
    found = (await run_doctor(settings))["lifetimes"]
    assert found.severity is Severity.PROBLEM
    assert handle.id in found.found
    await repair(team)
    assert "lifetimes" not in await find_problems(settings)
    assert redis_client.ttl(leaked) > 0


async def test_the_check_of_stored_tasks_ends_with_its_budget(
    team: LocalTeam, redis_client: redis.Redis, settings: Settings
) -> None:
    """Without time left it stops after the first step, says so, and claims nothing of what it did not see."""
    with redis_client.pipeline() as many:
        for number in range(1200):
            many.set(f"{team.services.keys.root}:replies:{number}", "x", ex=60)
        many.execute()
    store = team.services.store
    context = CheckContext(settings, store, await store.server_info(), {})
    *_, short = await stored_tasks.check_stored_tasks(context, budget_s=0)
    *_, whole = await stored_tasks.check_stored_tasks(context)
    assert "keys that 0 s allowed" in short.found
    assert "looked at all 12" in whole.found


async def test_pools_are_looked_at_apart(team: LocalTeam, redis_client: redis.Redis, settings: Settings) -> None:
    """Trouble of another pool on the same server is not ours."""
    assert settings.redis.url is not None
    other = local_settings(settings.redis.url.get_secret_value(), settings.prefix, pool="other")
    leaked = replace(team.services.keys, pool="other").task("leaked")
    redis_client.hset(leaked, "state", "ready")
    assert "lifetimes" not in await find_problems(settings)
    assert (await find_problems(other))["lifetimes"] == "problem"
    redis_client.delete(leaked)


async def test_standing_orders(team: LocalTeam, settings: Settings) -> None:
    """What is stopped, paused or drained is a warning that says by whom and why, until it ends."""
    assert "active-commands" not in await find_problems(settings)
    await team.orc.admin.stop(agent="busy", reason="too slow", actor="ada@desk")
    await team.orc.admin.drain_queue("skill:sum", actor="bob@desk")
    found = (await run_doctor(settings))["active-commands"]
    assert found.severity is Severity.WARNING
    assert "drain:queue:skill:sum by bob@desk since " in found.found
    assert "stop:agent:busy by ada@desk: too slow since " in found.found
    await team.orc.admin.start(agent="busy")
    await team.orc.admin.resume_queue("skill:sum")
    await team.orc.admin.set_log_level("info")
    assert "active-commands" not in await find_problems(settings)


async def test_orders_that_cannot_be_read(settings: Settings, store: Store) -> None:
    """Where the orders should be is something else: nothing is handed out, and the doctor says so as a problem."""
    await store.execute("SET", store.keys.desired, "x", "EX", 60)
    found = (await run_doctor(settings))["active-commands"]
    assert (found.severity, "is a string, not a hash" in found.found) == (Severity.PROBLEM, True)


async def test_orders_and_secrets(settings: Settings) -> None:
    """Orders signed with the previous secret are a warning while it is still accepted, and a worse one afterwards."""
    old, new = {"control__secret": "the-secret-of-the-past"}, {"control__secret": "the-secret-of-today"}
    url = settings.redis.url
    assert url is not None

    def with_secrets(**secrets: str) -> Settings:
        return local_settings(url.get_secret_value(), settings.prefix, **secrets)

    async with run_local_team(with_secrets(**old), supervised=False) as team:
        await team.orc.admin.stop()
    during = (await run_doctor(with_secrets(**new, control__previous_secret="the-secret-of-the-past")))[
        "active-commands"
    ]
    assert "signed with the previous secret" in during.found
    after = (await run_doctor(with_secrets(**new)))["active-commands"]
    assert after.found.startswith("1 without a valid signature (stop:all)")
    assert "secret-of" not in during.found + during.fix + after.found + after.fix


async def test_a_parent_that_waits_in_vain(settings: Settings) -> None:
    """A parent awaits a child of a skill that no worker has; a parent whose child can run is no finding."""
    agent = Agent("family", concurrency=1)

    @agent.skill
    async def parent(ctx: TaskContext) -> None:
        await (await ctx.submit("unknown")).result()

    async with run_local_team(settings) as team:
        await team.work(agent)
        handle = await team.orc.submit(parent)

        async def waits() -> bool:
            return (await handle.status()).detail.cause is Cause.CHILDREN

        await wait_for(waits, "the parent to wait")
        found = (await run_doctor(settings))["parents"]
        assert f"task {handle.id} of agent 'family' waits for its child" in found.found
        assert "unknown" in found.found
        await handle.cancel()


@pytest.mark.every_server
async def test_memory_at_the_present_rate(
    team: LocalTeam, redis_client: redis.Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters and records of the last minutes tell how much memory ended tasks will take of the limit."""
    assert (await run_doctor(settings))["memory-at-rate"].found == "no task succeeded in the last 10 minutes"
    await team.work(greeter())
    handle = await team.orc.submit("greet")
    await handle.result(4)
    keys, minute = team.services.keys, int(redis_client.time()[0]) // 60
    # A thousand a second for five minutes; the minute that has not ended does not count.
    for number in range(5):
        redis_client.hset(keys.stats(str(minute - 1 - number)), "succeeded", 60_000)
        redis_client.expire(keys.stats(str(minute - 1 - number)), 600)
    size = redis_client.memory_usage(keys.task(handle.id)) or 0
    later = 500 * 3600 * size
    finding = (await run_doctor(settings))["memory-at-rate"]
    assert finding.severity is Severity.OK
    assert re.match(rf"(500|400|4\d\d) successes a second with {size} bytes each, kept for 3600 s: ", finding.found)
    limited = partial(_with_limit, monkeypatch)
    limited(round(2.5 * later))
    assert "of maxmemory" in (found := (await run_doctor(settings))["memory-at-rate"]).found
    assert found.severity is Severity.OK
    limited(round(later / 2))
    found = (await run_doctor(settings))["memory-at-rate"]
    assert found.severity is Severity.WARNING
    assert "results.ttl_s" in found.fix


def _with_limit(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Let the server say that it has this limit; the one of all tests must not get it."""
    asked = Store.server_info

    async def server_info(store: Store, **_: object) -> ServerInfo:
        return replace(await asked(store), memory_limit_bytes=limit)

    monkeypatch.setattr(Store, "server_info", server_info)
