"""Providers that pools share: one window, one number of calls at once, and what one pool is told holds back all."""

from __future__ import annotations

import json
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Cause, ProviderFailed, QuotaExhausted, TaskContext, TaskFailed, Throttled
from orchestrator.limits import scripts
from orchestrator.limits.providers import ProviderLimit
from orchestrator.limits.shared import copy_states, scope_of
from orchestrator.services import open_services
from orchestrator.store.keys import PoolKeys
from orchestrator.supervisor import provider_keeper
from orchestrator.views.limit_detail import read_limit_page
from orchestrator.views.limit_pages import page_limits
from orchestrator.views.limits import list_limits
from tests.faultkit.clusters import run_cluster
from tests.helpers.http_provider import HttpProvider
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.terminal import Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from orchestrator import TaskHandle
    from orchestrator.views.providers import ProviderView
    from tests.faultkit.clusters import Cluster
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

GPT = "model:gpt"


@dataclass
class Service:
    """A provider that answers what a test plans, and notes which pool made each request, and when."""

    answers: deque[Exception | None] = field(default_factory=deque)
    requests: list[tuple[str, float]] = field(default_factory=list)
    running: int = 0
    most: int = 0

    async def request(self, pool: str) -> str:
        """Answer."""
        self.requests.append((pool, anyio.current_time()))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await anyio.sleep(0.005)
            if self.answers and (answer := self.answers.popleft()):
                raise answer
        finally:
            self.running -= 1
        return pool


def writer(service: Service, pool: str, *, limits: tuple[str, ...] = (GPT,)) -> Agent:
    """An agent that calls the provider once."""
    agent = Agent("writer", limits=limits, concurrency=4)

    @agent.skill(max_attempts=1)
    async def write(ctx: TaskContext) -> str:
        async with ctx.provider(GPT, tokens=10):
            answer = await service.request(pool)
        assert ctx.attempt == 1
        return answer

    return agent


@asynccontextmanager
async def two_pools(server: RedisServer, prefix: str, **limit: Any) -> AsyncIterator[dict[str, LocalTeam]]:
    """Teams of two pools whose settings share the provider."""
    shared = {GPT: {"shared": True, **(limit or {"at_once": 50})}}
    settings = {pool: local_settings(server.url, prefix, pool=pool, limits=shared) for pool in ("east", "west")}
    async with run_local_team(settings["east"]) as east, run_local_team(settings["west"]) as west:
        yield {"east": east, "west": west}


async def provider_of(team: LocalTeam) -> ProviderView:
    """The provider as `orc limits list` shows it."""
    (limit,) = [one for one in (await list_limits(team.services)).limits if one.limit == GPT]
    assert limit.provider is not None
    return limit.provider


async def state_becomes(team: LocalTeam, cause: Cause, handle: TaskHandle[Any]) -> None:
    """Wait until a task waits for this cause."""

    async def waits() -> bool:
        return (await handle.status()).detail.cause is cause

    await wait_for(waits, f"cause {cause} in {team.settings.pool}", TIMEOUT_S)


async def submit(team: LocalTeam, number: int) -> list[TaskHandle[Any]]:
    """Submit tasks."""
    return [await team.orc.submit("write") for _ in range(number)]


@pytest.mark.every_server
async def test_a_pause_told_in_one_pool_holds_both_back(redis_server: RedisServer, prefix: str) -> None:
    """No call of the other pool begins inside it, its tasks wait in the queue, and `why` names who was told."""
    service = Service(deque([Throttled(1.5, "429")]))
    async with two_pools(redis_server, prefix) as pools:
        for name, team in pools.items():
            await team.work(writer(service, name))
        (first,) = await submit(pools["east"], 1)
        await state_becomes(pools["east"], Cause.SNOOZED, first)
        others = await submit(pools["west"], 6)
        await state_becomes(pools["west"], Cause.PROVIDER, others[-1])
        why = (await others[-1].status()).detail
        assert why.actor is not None
        assert why.actor.startswith("pool east, agent writer, task ")
        assert {await handle.result(TIMEOUT_S) for handle in others} == {"west"}
        assert await first.result(TIMEOUT_S) == "east"
        (told, *after) = [at for _, at in service.requests]
        assert len(after) == 7
        assert min(after) >= told + 1.5


@pytest.mark.parametrize("tasks", [20, pytest.param(120, marks=pytest.mark.slow)])
async def test_two_pools_and_a_server(redis_server: RedisServer, prefix: str, tasks: int) -> None:
    """A server that answers 429 to one pool gets no request of any before its time, then nearly all that it allows."""
    async with HttpProvider() as server, two_pools(redis_server, prefix, requests="20/s", at_once=20) as pools:
        for _ in range(2):
            for team in pools.values():
                agent = Agent("writer", limits=[GPT], concurrency=5)

                @agent.skill(max_attempts=1)
                async def write(ctx: TaskContext) -> int:
                    async with ctx.provider(GPT, tokens=10):
                        await server.request()
                    return ctx.attempt

                await team.work(agent)
        server.throttle(1)
        handles = [handle for team in pools.values() for handle in await submit(team, tasks)]
        assert {await handle.result(60) for handle in handles} == {1}
        assert server.early == 0
        begun = server.accepted
        assert len(begun) == 2 * tasks
        if tasks > 100:
            # The window in which the last one lies has passed for all but it.
            assert 2 * tasks / (begun[-1] - begun[0] + 1) >= 0.9 * 20


async def test_workers_copy_what_their_calls_meet(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of the other pool wait in the queue before its supervisor looks again."""
    monkeypatch.setattr(provider_keeper, "LOOK_S", 60.0)
    service = Service(deque([None, QuotaExhausted()]))
    async with two_pools(redis_server, prefix) as pools:
        for name, team in pools.items():
            await team.work(writer(service, name))
        # A worker also copies when it lists the provider, with its first call.
        assert await (await submit(pools["west"], 1))[0].result(TIMEOUT_S) == "west"
        handles = await submit(pools["east"], 1)
        await state_becomes(pools["east"], Cause.SNOOZED, handles[0])
        handles += await submit(pools["west"], 1)
        for handle, team in zip(handles, pools.values(), strict=True):
            await state_becomes(team, Cause.PROVIDER, handle)


@pytest.mark.every_server
async def test_clear_reaches_both_pools(redis_server: RedisServer, prefix: str) -> None:
    """`orc limits clear` in one pool ends the state in the scope, and tasks of the other pool start again."""
    service = Service(deque([QuotaExhausted()]))
    async with two_pools(redis_server, prefix) as pools:
        for name, team in pools.items():
            await team.work(writer(service, name))
        handles = await submit(pools["east"], 1)
        await state_becomes(pools["east"], Cause.SNOOZED, handles[0])
        handles += await submit(pools["west"], 1)
        await state_becomes(pools["west"], Cause.PROVIDER, handles[1])
        assert [(await provider_of(team)).state for team in pools.values()] == ["quota", "quota"]
        await pools["west"].orc.admin.clear_limit(GPT, reason="paid")
        assert [await handle.result(TIMEOUT_S) for handle in handles] == ["east", "west"]
        assert [(await provider_of(team)).state for team in pools.values()] == ["open", "open"]


async def test_calls_at_once_of_both_pools(redis_server: RedisServer, prefix: str) -> None:
    """No more calls run at a time in both pools together; the list shows those of both."""
    service = Service()
    async with two_pools(redis_server, prefix, at_once=3, requests="1k/s") as pools:
        for name, team in pools.items():
            await team.work(writer(service, name))
        handles = [handle for team in pools.values() for handle in await submit(team, 12)]
        assert [await handle.result(TIMEOUT_S) for handle in handles] == ["east"] * 12 + ["west"] * 12
        assert service.most == 3
        found = await provider_of(pools["east"])
        assert found.shared
        assert {usage.unit: usage.used for usage in found.usage}["at_once"] == 0
        keys = pools["east"].services.keys
        store = pools["east"].services.store
        assert await store.execute("EXISTS", keys.provider_usage(GPT), keys.provider_leases(GPT)) == 0
        assert await store.execute("EXISTS", scope_of(keys, GPT).provider_usage(GPT)) == 1


async def test_the_page_of_a_shared_provider(redis_server: RedisServer, prefix: str) -> None:
    """It has the calls of all pools that run; a task of another pool is none of this one's."""
    gate, begun = anyio.Event(), 0

    def holder() -> Agent:
        agent = Agent("writer")

        @agent.skill
        async def write(ctx: TaskContext) -> None:
            nonlocal begun
            async with ctx.provider(GPT, tokens=7):
                begun += 1
                await gate.wait()

        return agent

    async with two_pools(redis_server, prefix) as pools:
        handles = {}
        for name, team in pools.items():
            await team.work(holder())
            (handles[name],) = await submit(team, 1)
        await wait_for(lambda: begun == 2, "both calls", TIMEOUT_S)
        for name, team in pools.items():
            found = await read_limit_page(team.services, GPT)
            assert (found.running, found.limit.provider and found.limit.provider.shared) == (2, True)
            assert sorted(call.by.partition(", task ")[0] for call in found.calls) == [
                "pool east, agent writer",
                "pool west, agent writer",
            ]
            assert [call.task for call in found.calls if call.task] == [handles[name].id]
        gate.set()
        for handle in handles.values():
            await handle.result(TIMEOUT_S)


async def test_the_list_says_whose_calls_it_counts(redis_server: RedisServer, prefix: str, tmp_path: Path) -> None:
    """Of a provider that pools share, those of all pools; a name that no program stores is left out."""
    service = Service()
    async with two_pools(redis_server, prefix, requests="100/h") as pools:
        for name, team in pools.items():
            await team.work(writer(service, name))
            for handle in await submit(team, 2):
                await handle.result(TIMEOUT_S)
        keys, store = pools["east"].services.keys, pools["east"].services.store
        await store.execute("HSET", keys.providers, "a b", ProviderLimit(at_once=1, shared=True).text)
        terminal = Terminal(tmp_path, ORC_REDIS__URL=redis_server.url, ORC_PREFIX=prefix, ORC_POOL="east")
        listed = await anyio.to_thread.run_sync(terminal.orc, "limits", "list", "-o", "json")
        (found,) = json.loads(listed.out)["items"]
        assert (found["limit"], found["counts"], found["used"], found["left"]) == (
            GPT,
            "all pools",
            {"requests": 4},
            {"requests": 96},
        )
        table = await anyio.to_thread.run_sync(terminal.orc, "limits", "list")
        assert "all pools" in table.out


async def test_a_provider_that_fails_in_both_pools(redis_server: RedisServer, prefix: str) -> None:
    """Failures of both pools in a row break it for both, and the copy of each pool says so."""
    service = Service(deque([ProviderFailed("503")] * 5))
    async with two_pools(redis_server, prefix) as pools:
        for name, team in pools.items():
            await team.work(writer(service, name))
        for name in ("east", "west", "east", "west", "east"):
            (handle,) = await submit(pools[name], 1)
            with pytest.raises(TaskFailed):
                await handle.result(TIMEOUT_S)
        (waiting,) = await submit(pools["west"], 1)
        await state_becomes(pools["west"], Cause.PROVIDER, waiting)
        assert [(await provider_of(team)).state for team in pools.values()] == ["broken", "broken"]
        await waiting.cancel()


async def test_a_damaged_copy_does_not_hold_up_others(
    redis_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The supervisor logs a key of another type, and still copies the states of other providers."""
    both = {name: {"shared": True, "at_once": 5} for name in ("a", "b")}
    async with run_local_team(local_settings(redis_server.url, prefix, limits=both)) as team:
        services, keys = team.services, team.services.keys
        for name in both:
            await copy_states(services.store, keys, name, shown=ProviderLimit(at_once=5, shared=True).text)
        await services.store.execute("SET", keys.blocked("a"), "x", "EX", 100)
        for state in ("quota", "throttled"):
            block = scripts.block(scope_of(keys, "b"), name="b", state=state, told=b"east\n429", for_ms=60_000)
            await services.store.call(block)

            async def copied(state: str = state) -> bool:
                return bool(await services.store.execute("HEXISTS", keys.blocked("b"), state))

            await wait_for(copied, f"the copy of {state}", TIMEOUT_S)
        refused = [record for record in caplog.records if "provider_sweep_refused" in record.getMessage()]
        assert len(refused) == 1


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three masters, of which each answers for its slots also if another one is away."""
    with run_cluster(options={"cluster-require-full-coverage": "no"}) as running:
        yield running


async def test_a_scope_whose_server_is_down(cluster: Cluster, prefix: str) -> None:
    """The lists and the page show the other limits, and of this provider that its state is unknown."""
    keys, names = PoolKeys(prefix, "default"), [f"model:{number}" for number in range(30)]
    pool = cluster.owner(keys.format)
    owners = {name: cluster.owner(scope_of(keys, name).blocked(name)) for name in names}
    near, far = (next(name for name in names if (owners[name] is pool) is beside) for beside in (True, False))
    async with open_services(local_settings(cluster.url, prefix, redis__command_timeout_s=1), name="views") as services:
        listed = ProviderLimit(at_once=1, shared=True).text
        await services.store.execute("HSET", keys.providers, near, listed, far, listed)
        owners[far].process.freeze()
        states = {one.limit: one.provider for one in (await list_limits(services)).limits}
        page, found = await page_limits(services), await read_limit_page(services, far)
        owners[far].process.thaw()
    assert {row.limit: row.provider and row.provider.state for row in page.limits} == {near: "open", far: "unknown"}
    assert {name: one.state for name, one in states.items() if one} == {near: "open", far: "unknown"}
    assert found.limit.provider is not None
    assert (found.limit.provider.state, found.calls) == ("unknown", ())
    assert str(owners[far].port) in found.limit.provider.reason
