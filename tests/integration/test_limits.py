"""Rate limits end to end: no window ever holds more starts than allowed, by the server's clock."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.agents import scripts as registry
from orchestrator.core.errors import ConfigError
from orchestrator.tasks import scripts
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.queries import counters
from orchestrator.tasks.submission import Submission
from orchestrator.why.model import Cause
from orchestrator.workers.runtime.worker import Worker
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


def make_agent(team: LocalTeam, name: str, starts_us: list[int], **options: Any) -> Agent:
    """An agent that notes the server's time at every start."""
    agent = Agent(name, **options)

    @agent.skill(backoff=0, max_attempts=5)
    async def work(ctx: TaskContext, fail: int = 0) -> str:
        seconds, micros = await team.services.store.execute("TIME")
        starts_us.append(int(seconds) * 1_000_000 + int(micros))
        if ctx.attempt <= fail:
            raise ValueError("as asked")
        return ctx.agent

    return agent


def by_grant(found: list[bytes]) -> dict[bytes, int]:
    """Grants with their times; at infinity stands the time of a returned one."""
    return {member: int(float(us)) for member, us in zip(found[::2], found[1::2], strict=True) if us != b"inf"}


async def _grants_us(team: LocalTeam, name: str) -> list[int]:
    """The server's times of the grants that are still in a limit's window."""
    found = await team.services.store.execute("ZRANGE", team.services.keys.limit(name), 0, -1, "WITHSCORES")
    return sorted(by_grant(found).values())


class GrantWatch:
    """Collects the grants of one limit while they pass through its window."""

    def __init__(self, team: LocalTeam, name: str) -> None:
        self._team, self._name = team, name
        self.seen: dict[bytes, int] = {}

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(0.01)

    async def look(self) -> None:
        """Note the grants that are in the window now."""
        key = self._team.services.keys.limit(self._name)
        found = await self._team.services.store.execute("ZRANGE", key, 0, -1, "WITHSCORES")
        self.seen |= by_grant(found)

    def assert_kept(self, count: int, window_us: int) -> None:
        """No window, wherever it begins, holds more than `count` grants."""
        grants = sorted(self.seen.values())
        for first, past in zip(grants, grants[count:], strict=False):
            assert past - first >= window_us, f"{count + 1} starts within {past - first} µs"


async def _results(handles: list[TaskHandle[Any]], timeout_s: float = 10.0) -> list[Any]:
    return [await handle.result(timeout_s) for handle in handles]


async def test_a_rate_is_never_exceeded_and_fully_used(team: LocalTeam) -> None:
    """5/s over three workers with many slots: exact in every window, by grant and nearly so by start."""
    starts_us: list[int] = []
    watch = GrantWatch(team, "@metered")
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        for _ in range(3):
            await team.work(
                make_agent(team, "metered", starts_us, rate=(5, timedelta(milliseconds=300)), concurrency=10)
            )
        handles = await team.orc.submit_many([Submission("work") for _ in range(32)])
        assert await _results(handles) == ["metered"] * 32
        await watch.look()
        group.cancel_scope.cancel()
    assert len(watch.seen) == len(starts_us) == 32
    watch.assert_kept(5, 300_000)
    # Seven windows of five: the last grant comes right after the sixth window, so nothing of the limit was wasted.
    assert max(starts_us) - min(starts_us) < 6 * 300_000 + 700_000


async def test_retries_count_as_starts(team: LocalTeam) -> None:
    """Every attempt is a start: tasks that fail use the limit again."""
    starts_us: list[int] = []
    watch = GrantWatch(team, "@metered")
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        await team.work(make_agent(team, "metered", starts_us, rate=(2, timedelta(milliseconds=150))))
        handles = await team.orc.submit_many([Submission("work", {"fail": 2}) for _ in range(3)])
        await _results(handles)
        await watch.look()
        group.cancel_scope.cancel()
    assert len(watch.seen) == len(starts_us) == 9
    watch.assert_kept(2, 150_000)


@pytest.mark.parametrize("settings", [{"limits": {"model:gpt": "4/s"}}], indirect=True)
async def test_agents_share_a_named_limit(team: LocalTeam) -> None:
    """Two agents under one limit start no more together than it allows; one also has a rate of its own."""
    starts_us: list[int] = []
    shared, own = GrantWatch(team, "model:gpt"), GrantWatch(team, "@one")
    one = make_agent(team, "one", starts_us, limits=["model:gpt"], rate=(2, timedelta(milliseconds=400)))
    other = make_agent(team, "other", starts_us, limits=["model:gpt"])
    async with anyio.create_task_group() as group:
        group.start_soon(shared.run)
        group.start_soon(own.run)
        await team.work(one)
        await team.work(other)
        handles = await team.orc.submit_many(
            [Submission("work", agent=name) for _ in range(5) for name in ("one", "other")]
        )
        assert sorted(await _results(handles)) == ["one"] * 5 + ["other"] * 5
        await shared.look()
        await own.look()
        group.cancel_scope.cancel()
    assert len(shared.seen) == 10
    assert len(own.seen) == 5
    shared.assert_kept(4, 1_000_000)
    own.assert_kept(2, 400_000)


async def test_an_undefined_limit_stops_the_worker_at_its_start(team: LocalTeam) -> None:
    """The error names agent and limit and shows what to write; nobody is registered."""
    agent = make_agent(team, "metered", [], limits=["nowhere"])
    with pytest.raises(ConfigError, match=r"(?s)agent 'metered' asks for limit 'nowhere'.*\[limits\] \"nowhere\" = "):
        await Worker(team.services, [agent], worker="w").run()
    assert await team.services.store.execute("ZCARD", team.services.keys.workers) == 0


async def test_an_undefined_limit_of_a_second_agent_leaves_nothing_behind(team: LocalTeam) -> None:
    """A worker that cannot host all its agents hosts none: the first one is not left in the registry."""
    good, bad = make_agent(team, "good", []), make_agent(team, "bad", [], limits=["nowhere"])
    with pytest.raises(ConfigError, match="nowhere"):
        await Worker(team.services, [good, bad], worker="w").run()
    assert await team.services.store.execute("ZCARD", team.services.keys.workers) == 0
    handle = await team.orc.submit("work")
    assert (await handle.status()).detail.cause is Cause.NO_AGENT


@pytest.mark.parametrize("settings", [{"limits": {"shared": "1/min"}}], indirect=True)
async def test_a_limit_that_another_process_defined_counts(team: LocalTeam) -> None:
    """A worker whose own settings lack a limit that the pool knows obeys it."""
    starts_us: list[int] = []
    await team.work(make_agent(team, "one", starts_us, limits=["shared"]))
    await team.work(make_agent(team, "other", starts_us, limits=["shared"]), limits={})
    handles = [await team.orc.submit("work", agent=name) for name in ("one", "other", "other")]

    async def done() -> int:
        states = [(await handle.status()).state for handle in handles]
        return states.count(TaskState.SUCCEEDED)

    await wait_for(done, "the one start that the limit allows")
    with pytest.raises(TimeoutError):
        await handles[2].result(timeout=0.3)
    assert len(starts_us) == await done() == 1
    for handle in handles:
        await handle.cancel()


async def test_order_holds_under_a_limit(team: LocalTeam) -> None:
    """What waits for a limit is started by priority, then in order; a critical task takes the next free slot."""
    agent, labels = Agent("metered", rate=(2, timedelta(milliseconds=200))), list[str]()

    @agent.skill
    async def work(label: str) -> None:
        labels.append(label)

    await team.work(agent)
    handles = await team.orc.submit_many([Submission("work", {"label": f"n{number}"}) for number in range(6)])
    await wait_for(lambda: len(labels) >= 2, "the first two")
    handles.append(await team.orc.submit("work", {"label": "critical"}, priority="critical"))
    await _results(handles)
    assert [label for label in labels if label != "critical"] == [f"n{number}" for number in range(6)]
    assert labels.index("critical") <= 4


async def test_a_cancelled_task_uses_no_start(team: LocalTeam) -> None:
    """Tasks that were cancelled or rejected while they waited for a limit leave it to the others."""
    starts_us: list[int] = []
    await team.work(make_agent(team, "metered", starts_us, rate="1/min"))
    first = await team.orc.submit("work")
    await first.result(TIMEOUT_S)
    waiting = await team.orc.submit("work")
    await waiting.cancel("enough")
    with pytest.raises(Exception, match="enough"):
        await waiting.result(TIMEOUT_S)
    assert len(await _grants_us(team, "@metered")) == 1


async def test_starts_are_spread_as_the_window_allows(team: LocalTeam) -> None:
    """1 per 100 ms: ten starts are at least that far apart, and not much more."""
    starts_us: list[int] = []
    watch = GrantWatch(team, "@metronome")
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        await team.work(make_agent(team, "metronome", starts_us, rate=(1, timedelta(milliseconds=100))))
        await _results(await team.orc.submit_many([Submission("work") for _ in range(10)]))
        group.cancel_scope.cancel()
    watch.assert_kept(1, 100_000)
    gaps = sorted(after - before for before, after in pairwise(sorted(starts_us)))
    assert gaps[4] < 130_000


@pytest.mark.blocks_loop  # fifty workers share one loop, and their fifty heartbeat threads its interpreter
async def test_fifty_workers_keep_one_limit(team: LocalTeam) -> None:
    """Fifty workers of one agent with room for hundreds start no more in any window than the rate allows."""
    starts_us: list[int] = []
    watch = GrantWatch(team, "@crowd")
    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(team.work, make_agent(team, "crowd", starts_us, rate=(20, timedelta(milliseconds=200))))
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        await _results(await team.orc.submit_many([Submission("work") for _ in range(150)]))
        await watch.look()
        group.cancel_scope.cancel()
    assert len(watch.seen) == len(starts_us) == 150
    watch.assert_kept(20, 200_000)


async def test_an_old_grant_is_given_back(settings: Settings) -> None:
    """A worker gives back a limited entry that is older than 1 s, with its slot; the next grant is a start."""
    starts_us: list[int] = []
    async with run_local_team(settings, supervised=False) as team:
        store, keys = team.services.store, team.services.keys
        agent = make_agent(team, "metered", starts_us, rate=(1, timedelta(seconds=60)))
        known = registry.register(keys, worker="absent", spec=agent.spec({}), slots=1, backlog=0, about={}, alive_s=60)
        await store.call(known)
        handle = await team.orc.submit("work")
        assert (await store.call(scripts.assign(keys, agents=["metered"], limit=1))).count == 1
        granted_us = (await _grants_us(team, "@metered"))[0]

        async def is_old() -> bool:
            seconds, micros = await store.execute("TIME")
            return int(seconds) * 1_000_000 + int(micros) > granted_us + 1_050_000

        await wait_for(is_old, "the grant to be older than a second")
        await team.work(agent)
        await team.start_supervisor()
        assert await handle.result(TIMEOUT_S) == "metered"
        assert (await counters(store))["given_back"] == 1
        assert len(await _grants_us(team, "@metered")) == len(starts_us) == 1


@pytest.mark.parametrize("settings", [{"limits": {"shared": "1000/s"}, "worker__heartbeat_s": 0.1}], indirect=True)
@pytest.mark.parametrize("lost", ["limits", "everything", "limits and the inbox"])
async def test_a_lost_limit_ends_no_worker(team: LocalTeam, caplog: pytest.LogCaptureFixture, lost: str) -> None:
    """The other agents of the process work on; the limited one logs one error and works again later."""
    agents = [make_agent(team, "metered", [], limits=["shared"]), make_agent(team, "free", [])]
    definer = await team.work(make_agent(team, "definer", [], limits=["shared"]))
    worker = await team.work(*agents, limits={}, worker__heartbeat_s=0.1)
    await team.stop(definer)
    store, keys = team.services.store, team.services.keys
    gone = {
        "limits": [keys.limits],
        "everything": [key.decode() for key in await store.execute("KEYS", f"{keys.root}*")],
        "limits and the inbox": [keys.limits, keys.inbox("metered")],
    }[lost]
    assert await store.execute("DEL", *gone) == len(gone)
    await wait_for(lambda: "registration_refused" in caplog.text, "the refusal")
    lapsed_s = time.monotonic() + 1.2
    await wait_for(
        lambda: time.monotonic() > lapsed_s, "the time in which the registry forgets a worker that is silent"
    )
    assert await (await team.orc.submit("work", agent="free")).result(TIMEOUT_S) == "free"
    waiting = await team.orc.submit("work", agent="metered")
    await team.work(make_agent(team, "definer", [], limits=["shared"]))
    assert await waiting.result(TIMEOUT_S) == "metered"
    assert caplog.text.count("registration_refused") == 1
    await store.execute("DEL", keys.limits)
    await team.stop(worker)
