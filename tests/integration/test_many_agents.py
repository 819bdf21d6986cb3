"""The supervisor and many agents of one skill: what a lone task and a changed agent cost, and who gets the tasks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.agents.queries import agent_names
from orchestrator.core.wakeups import Wakeup
from orchestrator.repair.scan import ALL_AGENTS, AgentTurn, KeyLifetimes, PoolScan
from orchestrator.store.store import Store
from orchestrator.supervisor.key_types import KeyTypes
from orchestrator.supervisor.reconciler import Reconciler
from orchestrator.supervisor.recoverer import CLEAN_EVERY, Recoverer
from orchestrator.tasks import scripts
from orchestrator.tasks.inbox import GROUP, parse_entries
from orchestrator.tasks.model import Verdict, VerdictKind
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable

    import redis

    from orchestrator.store.calls import Call
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

OF_TASKS = {"tasks/submit", "tasks/dispatch", "tasks/assign", "tasks/finish"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Script calls of all parts of the team by script."""
    counted: Counter[str] = Counter()
    call = Store.call

    def counting(self: Store, made: Call[Any], **options: Any) -> Awaitable[Any]:
        counted[made.script] += 1
        return call(self, made, **options)

    monkeypatch.setattr(Store, "call", counting)
    return counted


AT_ONCE = 100


def registration(team: LocalTeam, number: int, *, slots: int = 4, backlog: int = 0) -> Call[Any]:
    """The call with which the worker of one agent registers."""
    spec = AgentSpec(f"agent-{number}", frozenset({"lone"}))
    return registry.register(
        team.services.keys, worker=f"w{number}", spec=spec, slots=slots, backlog=backlog, about={}, alive_s=600
    )


async def register_all(team: LocalTeam, agents: int) -> None:
    """Register the workers of so many agents."""
    for first in range(0, agents, AT_ONCE):
        some = range(first, min(first + AT_ONCE, agents))
        await team.services.store.call_all([registration(team, number) for number in some])


async def run_lone_task(team: LocalTeam) -> str:
    """Submit a task, wait until it is assigned, and finish it as a worker would; its agent."""
    store, keys = team.services.store, team.services.keys
    handle = await team.orc.submit("lone")

    async def place() -> bytes | None:
        found: bytes | None = await store.execute("HGET", keys.task(handle.id), "at")
        return found

    found = await wait_for(place, "the task to be assigned", TIMEOUT_S, poll_s=0.001)
    agent = (found or b"").decode().split(" ")[0]
    reply = await store.execute("XREADGROUP", "GROUP", GROUP, "w", "STREAMS", keys.inbox(agent), ">")
    rows = [(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in parse_entries(agent, reply[0][1])]
    await store.call(scripts.finish(keys, worker="w", rows=rows, dead_ttl_s=60, max_wait_s=60))
    return agent


@pytest.mark.parametrize("agents", [20, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_a_lone_task_costs_three_calls(team: LocalTeam, calls: Counter[str], agents: int) -> None:
    """Submit, dispatch, finish: for any number of agents; and equal agents get equal shares."""
    await register_all(team, agents)
    await run_lone_task(team)
    await wait_for(
        lambda: not calls.pop("tasks/assign", 0), "the supervisor to have looked at each agent", 30, poll_s=0.2
    )
    calls.clear()
    shares = Counter([await run_lone_task(team) for _ in range(100)])
    # A sweep that meets a ready task may dispatch it once more.
    assert sum(calls[name] for name in OF_TASKS) <= 3 * 100 + 10
    assert max(shares.values()) <= -(-100 // agents) + 1
    assert len(shares) >= min(agents, 99)
    # The clean-up of the test removes all keys in one command.
    keys = team.services.keys
    for first in range(0, agents, AT_ONCE):
        gone: list[str] = []
        for number in range(first, min(first + AT_ONCE, agents)):
            name = f"agent-{number}"
            gone += keys.agent(name), keys.agent_workers(name), keys.inbox(name), keys.leases(name), keys.offers(name)
            gone.append(keys.worker(f"w{number}"))
        await team.services.store.execute("UNLINK", *gone)


async def test_a_changed_agent_costs_two_calls(team: LocalTeam, calls: Counter[str]) -> None:
    """A registration with other slots and another backlog is followed by one `assign`, whatever agents there are."""
    await register_all(team, 50)
    await run_lone_task(team)
    calls.clear()
    for number in range(30):
        await team.services.store.call(registration(team, 0, slots=4 + number % 3, backlog=number % 2))
    await run_lone_task(team)
    assert calls["agents/register"] == 30
    assert calls["tasks/assign"] <= 30 + 5


async def test_sweeps_leave_empty_inboxes_alone(redis_server: RedisServer, prefix: str, calls: Counter[str]) -> None:
    """The recoverer searches all inboxes at once; the search for unknown consumers takes a few in turn."""
    async with run_local_team(local_settings(redis_server.url, prefix), supervised=False) as team:
        await register_all(team, 50)
        store, recoverer = team.services.store, Recoverer(team.services, repair_requested=Wakeup())
        with team.services.watch_loop("recoverer", waits_s=60.0) as turn:
            calls.clear()
            await recoverer._recover_all(turn)
            assert calls["tasks/recover"] == 0
            inbox = team.services.keys.inbox("agent-7")
            entry = await store.execute("XADD", inbox, "*", "t", "x", "g", "1", "e", "")
            await recoverer._recover_all(turn)
            await recoverer._recover_all(turn)
            assert calls["tasks/recover"] == 2
            await store.execute("XDEL", inbox, entry)
            await recoverer._recover_all(turn)
            await recoverer._recover_all(turn)
            assert calls["tasks/recover"] == 3, "the one that found the inbox empty"
        agents = await agent_names(store)
        recoverer._sweeps = CLEAN_EVERY - 1
        cleaned = [recoverer._next_to_clean(agents) for _ in range(10)]
        assert {len(names) for names in cleaned} == {5}
        assert set[str]().union(*cleaned) == set(agents)
        recoverer._sweeps += 1
        assert recoverer._next_to_clean(agents) == set()


async def test_damaged_data_of_one_agent_delays_no_other(
    team: LocalTeam, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis refuses to dispatch while the inbox of an idle agent is a string; the others get the tasks one by one."""

    async def leave(_: KeyTypes, queues: object) -> None:
        """Rename no key: a worker would make the group of the inbox again, and none runs here."""

    monkeypatch.setattr(KeyTypes, "_check", leave)
    await register_all(team, 3)
    await run_lone_task(team)
    keys = team.services.keys
    damaged = [keys.inbox(f"agent-{number}") for number in (0, 1)]
    redis_client.delete(*damaged)
    for key in damaged:
        redis_client.set(key, "x", ex=60)
    assert {await run_lone_task(team) for _ in range(3)} == {"agent-2"}


async def test_scans_take_many_agents_in_turns(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Each agent is checked in one scan of four, at a part of the cost; inboxes that hold entries in each."""
    await register_all(team, 100)
    store, keys = team.services.store, team.services.keys
    damaged = [keys.offers(f"agent-{number}") for number in range(20)]
    for key in damaged:
        redis_client.hset(key, "slots", 77)
    redis_client.xadd(keys.inbox("agent-50"), {"t": "x", "g": "1", "e": ""})
    nameless = keys.inbox("").encode() + b"\xff"
    redis_client.xadd(nameless, {"t": "x", "g": "1", "e": ""})

    async def scan(turn: AgentTurn) -> tuple[Counter[str], int]:
        before = redis_client.info("stats")["total_commands_processed"]
        step = PoolScan(store, KeyLifetimes.of(team.services.settings), repair=False, agent_turn=turn)
        codes = Counter([finding.code async for found in step.steps() for finding in found])
        assert step.agents_seen >= 100
        return codes, redis_client.info("stats")["total_commands_processed"] - before

    whole, cost = await scan(ALL_AGENTS)
    assert whole == {"miscounted-agent": 20, "stray-entry": 1}
    parts = [await scan(AgentTurn(number, 4)) for number in range(4)]
    assert [codes["stray-entry"] for codes, _ in parts] == [1] * 4
    assert sum(codes["miscounted-agent"] for codes, _ in parts) == 20
    assert max(codes["miscounted-agent"] for codes, _ in parts) < 20
    assert max(commands for _, commands in parts) < cost / 2
    redis_client.delete(nameless)


@pytest.mark.parametrize("settings", [{"supervisor__sweep_s": 0.3}], indirect=True)
async def test_scans_of_a_pool_that_has_grown(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of a pool that has grown ends soon after its time, and the next ones are as the pool is now."""
    await register_all(team, 100)
    reconciler = Reconciler(team.services, Wakeup(), keys_lost=Wakeup())
    scans: list[AgentTurn] = []
    new_scan = reconciler._new_scan

    def counting(turn: AgentTurn = ALL_AGENTS) -> PoolScan:
        scans.append(turn)
        return new_scan(turn)

    monkeypatch.setattr(reconciler, "_new_scan", counting)
    monkeypatch.setattr("orchestrator.supervisor.reconciler.SCAN_EVERY_S", 3.0)
    monkeypatch.setattr("orchestrator.supervisor.reconciler.SHARE", 0.5)
    server = await team.services.store.info()
    with team.services.watch_loop("scans", waits_s=60.0) as turn:
        async with anyio.create_task_group() as group:
            # As after a first scan of an empty pool: 3 s for each of now 10 steps.
            group.start_soon(reconciler._scan_slowly, server, 1, 0, turn)
            await wait_for(lambda: len(scans) > 1, "the first scan to end", 20)
            monkeypatch.setattr("orchestrator.supervisor.reconciler.SCAN_EVERY_S", 0.1)
            await wait_for(lambda: len(scans) > 3, "two scans of a part", 20)
            group.cancel_scope.cancel()
    assert scans[:4] == [ALL_AGENTS, AgentTurn(0, 2), AgentTurn(1, 2), AgentTurn(0, 2)]
