"""`ctx.provider` with real workers: a pause that one call is told holds all back, and costs no attempt."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import (
    Agent,
    Cause,
    InvalidInput,
    ProviderFailed,
    ProviderUnavailable,
    QuotaExhausted,
    TaskContext,
    TaskFailed,
    Throttled,
    UpgradeUnfinished,
)
from orchestrator.core.formats import Feature, Floor
from orchestrator.limits import scripts
from orchestrator.limits.providers import pack_told
from orchestrator.views.limits import list_limits
from orchestrator.views.providers import read_providers
from orchestrator.workers.runtime.provider_calls import AttemptProviders
from tests.helpers.http_provider import HttpFailure, HttpProvider
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.terminal import Done, Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from orchestrator import TaskHandle
    from orchestrator.core.settings import Settings
    from orchestrator.views.providers import ProviderView
    from tests.helpers.local_team import LocalTeam

GPT, OTHER = "model:gpt", "search"


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A team whose settings have a provider."""
    async with run_local_team(settings) as running:
        yield running


USUAL = {"limits": {GPT: {"requests": "500/s", "tokens": "100k/s", "at_once": 50}}}
pytestmark = pytest.mark.parametrize("settings", [USUAL], ids=[""], indirect=True)


@dataclass
class Service:
    """A provider that answers what a test plans, and notes the ms by the server of each request."""

    team: LocalTeam
    answers: list[Exception] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)

    async def now_ms(self) -> int:
        """The time of Redis."""
        seconds, us = await self.team.services.store.execute("TIME")
        return int(seconds) * 1000 + int(us) // 1000

    async def request(self, ctx: TaskContext) -> str:
        """Answer."""
        self.requests.append(await self.now_ms())
        self.attempts.append(ctx.attempt)
        if self.answers:
            raise self.answers.pop(0)
        return "answer"


def writer(service: Service, *, name: str = "writer", limits: tuple[str, ...] = (GPT,), **options: Any) -> Agent:
    """An agent that calls the provider once."""
    agent = Agent(name, limits=limits, concurrency=4)

    @agent.skill(max_attempts=1, **options)
    async def write(ctx: TaskContext) -> str:
        async with ctx.provider(GPT, tokens=100) as call:
            answer = await service.request(ctx)
            call.settle(tokens=40)
        return answer

    return agent


async def provider_of(team: LocalTeam) -> ProviderView:
    """The provider as `orc limits list` shows it."""
    (limit,) = [one for one in (await list_limits(team.services)).limits if one.limit == GPT]
    assert limit.provider is not None
    return limit.provider


async def running_calls(team: LocalTeam) -> int:
    """Leases of running calls."""
    return int(await team.services.store.execute("ZCARD", team.services.keys.provider_leases(GPT)))


async def waits_for(handle: TaskHandle[Any], cause: Cause) -> None:
    """Wait until a task waits for this cause."""

    async def waits() -> bool:
        return (await handle.status()).detail.cause is cause

    await wait_for(waits, f"cause {cause}", TIMEOUT_S)


async def results(handles: list[TaskHandle[Any]]) -> set[Any]:
    """The distinct results of tasks."""
    return {await handle.result(TIMEOUT_S) for handle in handles}


@pytest.mark.parametrize("limits", [(GPT,), ()], ids=["declared", "undeclared"])
async def test_a_told_pause_holds_all_back(team: LocalTeam, limits: tuple[str, ...]) -> None:
    """After an answer with Retry-After no request begins before its end, on any worker, and no attempt is counted."""
    service = Service(team, [Throttled(0.7, "429")])
    for _ in range(3):
        await team.work(writer(service, limits=limits))
    first = await team.orc.submit("write")
    await wait_for(lambda: service.requests, "the first request", TIMEOUT_S)
    others = [await team.orc.submit("write") for _ in range(12)]
    assert await results([first, *others]) == {"answer"}
    assert len(service.requests) == 14
    assert min(service.requests[1:]) >= service.requests[0] + 700
    assert set(service.attempts) == {1}


async def test_why_names_the_provider(team: LocalTeam) -> None:
    """A task that waits tells which provider, until when, told by whom; so does the list of limits, until it ends."""
    service = Service(team, [Throttled(1.5, "429 Too Many Requests")])
    await team.work(writer(service))
    first = await team.orc.submit("write")
    await waits_for(first, Cause.SNOOZED)
    second = await team.orc.submit("write")
    await waits_for(second, Cause.PROVIDER)
    why = (await second.status()).detail
    assert (why.limit, why.reason) == (GPT, "Throttled: 429 Too Many Requests")
    assert why.actor is not None
    assert why.actor.startswith(f"agent writer, task {first.id}, worker ")
    assert why.until is not None
    assert f"provider '{GPT}' is throttled until " in why.text
    found = await provider_of(team)
    assert (found.state, found.until, found.told_by) == ("throttled", why.until, why.actor)
    assert await results([first, second]) == {"answer"}
    found = await provider_of(team)
    assert (found.state, found.until, found.told_by) == ("open", None, "")
    assert {usage.unit: (usage.used, usage.left) for usage in found.usage if usage.unit == "at_once"} == {
        "at_once": (0, 50)
    }


async def test_the_list_of_limits(team: LocalTeam, tmp_path: Path) -> None:
    """`orc limits list` shows state, end, who told it, what is used and left; also of a provider that no agent has."""
    await team.work(writer(Service(team), limits=()))
    await (await team.orc.submit("write")).result(TIMEOUT_S)
    told = pack_told("agent writer, task t", "429")
    call = scripts.block(team.services.keys, name=GPT, state="throttled", told=told, for_ms=60_000)
    until_ms = (await team.services.store.call(call)).until_ms
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def orc(*words: str) -> Done:
        return await anyio.to_thread.run_sync(terminal.orc, *words)

    (found,) = json.loads((await orc("limits", "list", "-o", "json")).out)["items"]
    assert (found["limit"], found["rate"], found["state"], found["told_by"]) == (
        GPT,
        "any",
        "throttled",
        "agent writer, task t",
    )
    assert datetime.fromisoformat(found["until"]).timestamp() * 1000 == pytest.approx(until_ms)
    assert (found["used"]["at_once"], found["left"]["at_once"]) == (0, 50)
    assert found["used"]["tokens"] + found["left"]["tokens"] == 100_000
    table = (await orc("limits", "list")).out
    assert "throttled" in table
    assert "agent writer, task t" in table
    cleared = await orc("limits", "clear", GPT, "--reason", "it works again")
    assert cleared.code == 0
    assert "open" in (await orc("limits", "list")).out
    assert "clear-limit" in (await orc("control", "list")).out


@pytest.mark.parametrize("tasks", [40, pytest.param(240, marks=pytest.mark.slow)])
async def test_twenty_slots_and_a_server(team: LocalTeam, tasks: int) -> None:
    """A server that answers 429 to 20 slots gets no request before its time, and then nearly all that it allows."""
    async with HttpProvider() as server:
        numbers = count()

        def make() -> Agent:
            agent = Agent("writer", limits=[GPT], concurrency=4)

            @agent.skill(max_attempts=1)
            async def write(ctx: TaskContext) -> int:
                async with ctx.provider(GPT, tokens=10):
                    await server.request()
                assert ctx.attempt == 1
                return next(numbers)

            return agent

        for _ in range(5):
            await team.work(make(), limits={GPT: {"requests": "20/s", "at_once": 20}})
        server.throttle(1)
        handles = [await team.orc.submit("write") for _ in range(tasks)]
        for handle in handles:
            await handle.result(60)
        # Requests that were under way when the first 429 arrived are refused, too; none begins afterwards.
        assert server.early == 0
        begun = server.accepted
        assert len(begun) == tasks
        if tasks > 100:
            # The window in which the last one lies has passed for all but it.
            assert tasks / (begun[-1] - begun[0] + 1) >= 0.9 * 20


@pytest.mark.parametrize("skew_s", [-3600, 0, 3600])
async def test_a_date_by_another_clock(team: LocalTeam, skew_s: int) -> None:
    """Retry-After may be a date: the difference to the header Date counts, so that no clock but that of Redis does."""
    sent = datetime.now(UTC) + timedelta(seconds=skew_s)
    after = sent + timedelta(seconds=1)
    headers = {"Retry-After": format_datetime(after, usegmt=True), "Date": format_datetime(sent, usegmt=True)}
    service = Service(team, [HttpFailure(429, headers)])
    await team.work(writer(service))
    handle = await team.orc.submit("write")
    await waits_for(handle, Cause.SNOOZED)
    until = (await provider_of(team)).until
    assert until is not None
    assert abs(until.timestamp() * 1000 - service.requests[0] - 1000) < 500
    assert await handle.result(TIMEOUT_S) == "answer"


async def test_at_once(settings: Settings, team: LocalTeam) -> None:
    """No more calls run at a time on all workers together, and all run."""
    running, most = 0, 0
    agents = []
    for number in range(4):
        agent = Agent(f"a{number}", limits=[], concurrency=5)

        @agent.skill(name="write")
        async def write(ctx: TaskContext) -> None:
            nonlocal running, most
            async with ctx.provider(GPT):
                running += 1
                most = max(most, running)
                await anyio.sleep(0.02)
                running -= 1

        agents.append(agent)
    for agent in agents:
        await team.work(agent, limits={GPT: {"at_once": 3}})
    handles = [await team.orc.submit("write") for _ in range(30)]
    await results(handles)
    assert most == 3
    assert await running_calls(team) == 0


async def test_a_cancelled_task_frees_its_place(team: LocalTeam) -> None:
    """A cancellation inside the block ends the call."""
    agent, begun = Agent("writer"), anyio.Event()

    @agent.skill
    async def write(ctx: TaskContext) -> None:
        async with ctx.provider(GPT, tokens=10):
            begun.set()
            await anyio.sleep_forever()

    await team.work(agent)
    handle = await team.orc.submit("write")
    await begun.wait()
    assert await running_calls(team) == 1
    await handle.cancel()

    async def free() -> bool:
        return await running_calls(team) == 0

    await wait_for(free, "a free place", TIMEOUT_S)


class TestQuota:
    """A quota that is used up."""

    async def test_until_an_operator_clears_it(self, team: LocalTeam) -> None:
        """Tasks wait until `orc limits clear`, which is in the audit; then they go on at once."""
        service = Service(team, [QuotaExhausted(reason="no credit")])
        await team.work(writer(service))
        first = await team.orc.submit("write")
        await waits_for(first, Cause.PROVIDER)
        second = await team.orc.submit("write")
        await waits_for(second, Cause.PROVIDER)
        why = (await first.status()).detail
        assert why.until is None
        assert f"provider '{GPT}' has no quota, told by agent writer" in why.text
        assert f"`orc limits clear {GPT}` ends that" in why.text
        await team.orc.admin.clear_limit(limit=GPT, reason="paid")
        assert await results([first, second]) == {"answer"}
        assert (await provider_of(team)).state == "open"
        assert set(service.attempts) == {1}

    async def test_reset(self, team: LocalTeam) -> None:
        """With a reset they go on by themselves."""
        service = Service(team, [QuotaExhausted(timedelta(seconds=0.6))])
        await team.work(writer(service))
        assert await (await team.orc.submit("write")).result(TIMEOUT_S) == "answer"
        assert service.requests[1] >= service.requests[0] + 600


async def test_breaker(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five failures in a row break it; a task waits and is told why; one call tries, and then all may call."""
    service = Service(team, [ProviderFailed("503")] * 5)
    await team.work(writer(service))
    failed = [await team.orc.submit("write") for _ in range(5)]
    for handle in failed:
        with pytest.raises(TaskFailed, match="503"):
            await handle.result(TIMEOUT_S)
    waiting = [await team.orc.submit("write") for _ in range(3)]
    await waits_for(waiting[0], Cause.PROVIDER)
    assert "failed several times in a row, and gets no call until" in (await waiting[0].status()).detail.text
    assert (await provider_of(team)).state == "broken"
    store, keys = team.services.store, team.services.keys
    until_ms, since_ms, told = (await store.execute("HGET", keys.blocked(GPT), "broken")).split(b" ", 2)
    assert int(until_ms) - int(since_ms) == 15_000
    # As if the time had passed.
    await store.execute("HSET", keys.blocked(GPT), "broken", b"1 " + since_ms + b" " + told)
    await store.execute("XADD", keys.doorbell, "*", "w", "agents")
    assert await results(waiting) == {"answer"}
    assert (await provider_of(team)).state == "open"


class TestTheHandlersException:
    """Whatever goes wrong on our side, the handler gets what its block raised, and the call ends."""

    async def run(self, team: LocalTeam, failure: Exception) -> tuple[list[BaseException], int]:
        """Run a task whose block raises; return what the handler got, and the running calls afterwards."""
        agent, got = Agent("writer"), list[BaseException]()

        @agent.skill
        async def write(ctx: TaskContext) -> str:
            try:
                async with ctx.provider(GPT, tokens=10):
                    raise failure
            except Exception as raised:  # noqa: BLE001 - the test looks at it
                got.append(raised)
            return "done"

        await team.work(agent)
        assert await (await team.orc.submit("write")).result(TIMEOUT_S) == "done"
        return got, await running_calls(team)

    async def test_block_fails(
        self, team: LocalTeam, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A pause that cannot be stored is logged."""

        async def block(*_: object) -> int:
            raise ValueError("ours")

        monkeypatch.setattr(AttemptProviders, "block", block)
        failure = Throttled(0.1)
        assert await self.run(team, failure) == ([failure], 0)
        assert "provider_not_blocked" in caplog.text

    async def test_settle_fails(
        self, team: LocalTeam, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An end that cannot be stored is logged; the lease ends by itself."""

        async def settle(*_: object) -> None:
            raise ValueError("ours")

        monkeypatch.setattr(AttemptProviders, "settle", settle)
        failure = KeyError("its own")
        assert await self.run(team, failure) == ([failure], 1)
        assert "provider_call_not_settled" in caplog.text

    async def test_a_strange_exception(self, team: LocalTeam) -> None:
        """Attributes that raise, or are no times, tell nothing."""

        class StrangeError(Exception):
            retry_after: Any = object()

            @property
            def code(self) -> Any:
                return []

            @property
            def response(self) -> Any:
                raise RuntimeError

        failure = StrangeError()
        assert await self.run(team, failure) == ([failure], 0)


async def test_a_settled_result_is_not_lost(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose end cannot be stored has happened, and its result is that of the task."""

    async def settle(*_: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(AttemptProviders, "settle", settle)
    await team.work(writer(Service(team)))
    assert await (await team.orc.submit("write")).result(TIMEOUT_S) == "answer"


async def test_a_handler_may_use_another_provider(team: LocalTeam) -> None:
    """`ProviderUnavailable` can be caught; it says what keeps the call back."""
    agent = Agent("writer")

    @agent.skill
    async def write(ctx: TaskContext) -> list[Any]:
        with suppress(Throttled):
            async with ctx.provider(GPT):
                raise Throttled(60)
        try:
            async with ctx.provider(GPT):
                return []
        except ProviderUnavailable as unavailable:
            return [unavailable.provider, unavailable.state, unavailable.until is not None]

    await team.work(agent)
    assert await (await team.orc.submit("write")).result(TIMEOUT_S) == [GPT, "throttled", True]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ctx: ctx.provider("none"), "is not defined; add it to the settings"),
        (lambda ctx: ctx.provider(GPT, tokens=100_001), "has 100000 tokens in a window, and the call reserves 100001"),
        (lambda ctx: ctx.provider(GPT, tokens=-1), "whole number"),
        (lambda ctx: ctx.provider(GPT, tokens=1.5), "whole number"),
        (lambda ctx: ctx.provider("a b"), "not a valid name"),
        (lambda ctx: ctx.provider(GPT, wait=-1), "wait"),
    ],
)
async def test_refused(team: LocalTeam, call: Callable[[TaskContext], Any], text: str) -> None:
    """Bad input is refused before anything is sent."""
    agent = Agent("writer")

    @agent.skill
    async def write(ctx: TaskContext) -> str:
        with pytest.raises(InvalidInput) as refused:
            call(ctx)
        return str(refused.value)

    await team.work(agent)
    assert text in await (await team.orc.submit("write")).result(TIMEOUT_S)


async def test_refused_beside_older_programs(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older supervisors would start tasks inside a pause."""
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.PROVIDER_LIMITS)
    agent = Agent("writer")

    @agent.skill
    async def write(ctx: TaskContext) -> str:
        with pytest.raises(UpgradeUnfinished) as refused:
            async with ctx.provider(GPT):
                pass
        return str(refused.value)

    await team.work(agent)
    assert "a call of a provider" in await (await team.orc.submit("write")).result(TIMEOUT_S)


async def test_a_key_of_another_type(team: LocalTeam) -> None:
    """It stops no task: the supervisor renames it after a refused assignment."""
    service = Service(team)
    await team.services.store.execute("SET", team.services.keys.blocked(GPT), "x", "EX", 1000)
    await team.work(writer(service))
    assert await (await team.orc.submit("write")).result(TIMEOUT_S) == "answer"


class TestNested:
    """A block inside a block of another provider."""

    @pytest.mark.parametrize(
        "failure",
        [Throttled(60), QuotaExhausted(), ProviderFailed("503"), ExceptionGroup("g", [Throttled(60)])],
        ids=repr,
    )
    async def test_the_outer_provider_is_open(self, team: LocalTeam, failure: Exception) -> None:
        """The inner block judges the exception; the outer provider is not blocked, and keeps its reservation."""
        agent, keys, store = Agent("writer"), team.services.keys, team.services.store

        @agent.skill
        async def write(ctx: TaskContext) -> None:
            with suppress(Exception):
                async with ctx.provider(GPT, tokens=100), ctx.provider(OTHER):
                    raise failure

        await store.execute("HSET", keys.provider_usage(GPT), "fails", 2)
        await team.work(agent, limits={**USUAL["limits"], OTHER: {"at_once": 9}})
        await (await team.orc.submit("write")).result(TIMEOUT_S)
        assert await store.execute("EXISTS", keys.blocked(GPT)) == 0
        assert await store.execute("HGET", keys.provider_usage(GPT), "fails") == b"2"
        used = {usage.unit: usage.used for usage in (await read_providers(team.services))[GPT].usage}
        assert used["tokens"] in {0, 100}  # a second later the window is empty

    async def test_the_same_exception_again(self, team: LocalTeam) -> None:
        """A block that begins later judges it anew."""
        agent, failure = Agent("writer"), ProviderFailed("503")

        @agent.skill
        async def write(ctx: TaskContext) -> None:
            for _ in range(2):
                with suppress(ProviderFailed):
                    async with ctx.provider(GPT):
                        raise failure

        await team.work(agent)
        await (await team.orc.submit("write")).result(TIMEOUT_S)
        usage = team.services.keys.provider_usage(GPT)
        assert await team.services.store.execute("HGET", usage, "fails") == b"2"


async def test_a_redacted_skill(team: LocalTeam, caplog: pytest.LogCaptureFixture) -> None:
    """No text of its exceptions is stored, shown, or logged."""
    service = Service(team, [Throttled(60, "iban 12345678")])
    await team.work(writer(service, redact=True))
    first = await team.orc.submit("write")
    await waits_for(first, Cause.PROVIDER)
    assert (await first.status()).detail.reason == "Throttled: (redacted)"
    stored = await team.services.store.execute("HGET", team.services.keys.blocked(GPT), "throttled")
    assert b"12345678" not in stored
    assert "12345678" not in caplog.text


async def test_clear_brings_the_tasks_back(team: LocalTeam) -> None:
    """A task of an agent with the limit waits in the queue for a long pause, and starts once it is cleared."""
    service = Service(team, [Throttled(600)])
    await team.work(writer(service))
    handle = await team.orc.submit("write")
    await waits_for(handle, Cause.PROVIDER)
    await team.orc.admin.clear_limit(limit=GPT, reason="it works again")
    assert await handle.result(TIMEOUT_S) == "answer"
    assert service.attempts == [1, 1]


async def test_why_of_a_task_without_the_limit(team: LocalTeam) -> None:
    """It says which provider it met, until when and who told it, and looks again within about a minute."""
    service = Service(team, [Throttled(600, "429")])
    await team.work(writer(service, limits=()))
    handle = await team.orc.submit("write")
    await waits_for(handle, Cause.SNOOZED)
    why = (await handle.status()).detail
    until = (await provider_of(team)).until
    assert until is not None
    assert (
        f"provider '{GPT}' is throttled until {until.isoformat(timespec='seconds')}, told by agent writer" in why.text
    )
    assert why.until is not None
    assert why.until.timestamp() * 1000 <= service.requests[0] + 80_000


async def test_a_task_that_is_told_to_wait_each_time(team: LocalTeam) -> None:
    """It ends as `max_snoozes` says, so that it does not hold the pool back for ever."""
    service = Service(team, [Throttled(0.02, "too large") for _ in range(9)])
    await team.work(writer(service, max_snoozes=2))
    handle = await team.orc.submit("write")
    with pytest.raises(TaskFailed, match="max_snoozes"):
        await handle.result(TIMEOUT_S)
    assert len(service.requests) == 3


async def test_a_time_that_has_passed(team: LocalTeam, caplog: pytest.LogCaptureFixture) -> None:
    """The task runs again in about a second, and no pause is logged."""
    service = Service(team, [Throttled(datetime.now(UTC) - timedelta(seconds=1))])
    await team.work(writer(service, limits=()))
    assert await (await team.orc.submit("write")).result(TIMEOUT_S) == "answer"
    assert service.requests[1] < service.requests[0] + 10_000
    assert "provider_blocked" not in caplog.text


async def test_settled_after_the_block(team: LocalTeam) -> None:
    """It is refused, because it would change nothing."""
    agent = Agent("writer")

    @agent.skill
    async def write(ctx: TaskContext) -> None:
        async with ctx.provider(GPT, tokens=10) as call:
            pass
        with pytest.raises(InvalidInput, match="has ended"):
            call.settle(tokens=1)

    await team.work(agent)
    await (await team.orc.submit("write")).result(TIMEOUT_S)


async def test_a_grant_that_came_late(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stood still for most of a lease begins no call with the place that it got before."""
    take, taken = AttemptProviders.take, list[str]()

    async def slow(gate: AttemptProviders, name: str, call: str, tokens: int) -> scripts.CallReply:
        reply = await take(gate, name, call, tokens)
        taken.append(call)
        if len(taken) == 1:
            await anyio.sleep(0.3)
        return reply

    monkeypatch.setattr(AttemptProviders, "take", slow)
    monkeypatch.setattr(AttemptProviders, "lease_s", 0.5)
    await team.work(writer(Service(team)))
    assert await (await team.orc.submit("write")).result(TIMEOUT_S) == "answer"
    assert len(set(taken)) == 2
    assert await running_calls(team) == 0


async def test_refused_calls_leave_nothing_behind(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that asks a blocked provider again and again keeps nothing of the calls that were refused."""
    take, gates = AttemptProviders.take, list[AttemptProviders]()

    async def noted(gate: AttemptProviders, name: str, call: str, tokens: int) -> scripts.CallReply:
        gates.append(gate)
        return await take(gate, name, call, tokens)

    monkeypatch.setattr(AttemptProviders, "take", noted)
    agent = Agent("writer")

    @agent.skill
    async def write(ctx: TaskContext) -> int:
        with suppress(Throttled):
            async with ctx.provider(GPT):
                raise Throttled(60)
        for _ in range(3):
            with suppress(ProviderUnavailable):
                async with ctx.provider(GPT):
                    pass
        return len(gates[-1]._begun)

    await team.work(agent)
    assert await (await team.orc.submit("write")).result(TIMEOUT_S) == 0
    assert len(gates) == 4
