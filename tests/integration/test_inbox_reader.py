"""One read for the inboxes of all agents of a worker: connections, full agents, inboxes that cannot be read."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent
from orchestrator.agents import scripts as registry
from orchestrator.core.errors import ServerRefused
from orchestrator.tasks import scripts
from orchestrator.tasks.inbox import find_filled
from orchestrator.tasks.model import TaskState
from orchestrator.workers.runtime import heartbeat, inbox_reader
from orchestrator.workers.runtime.inbox_reader import InboxReader
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    from orchestrator.store.store import Store
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam


def make_agents(count: int, *, concurrency: int = 2, lease: float = 15.0) -> list[Agent]:
    """Return agents whose skill has their name and returns its number."""
    agents = [Agent(f"a{number}", concurrency=concurrency, lease=lease) for number in range(count)]
    for agent in agents:

        @agent.skill(name=agent.name)
        async def work(number: int, seconds: float = 0.0) -> int:
            await anyio.sleep(seconds)
            return number

    return agents


async def test_many_agents_need_one_blocking_connection(team: LocalTeam) -> None:
    """A hundred agents run tasks, and at rest their worker has one blocking read, which covers all inboxes."""
    await team.work(*make_agents(100))
    handles = [await team.orc.submit(f"a{number}", {"number": number}) for number in range(100)]
    assert [await handle.result(TIMEOUT_S) for handle in handles] == list(range(100))

    async def reads() -> int:
        clients = (await team.services.store.execute("CLIENT", "LIST")).decode().splitlines()
        return sum(" cmd=xreadgroup " in client and ":inboxes " in client for client in clients)

    await wait_for(reads, "the blocking read")
    assert await reads() == 1


async def test_a_free_slot_ends_the_read_of_the_others(team: LocalTeam) -> None:
    """A full agent gets its next task when it has a free slot, and not when the read of idle agents ends after 60 s."""
    await team.work(*make_agents(3, concurrency=1, lease=300.0))
    started_s = time.monotonic()
    handles = [await team.orc.submit("a0", {"number": number, "seconds": 0.02}) for number in range(10)]
    assert [await handle.result(TIMEOUT_S) for handle in handles] == list(range(10))
    assert time.monotonic() - started_s < TIMEOUT_S


async def test_without_the_right_to_end_a_read(
    team: LocalTeam, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A user without CLIENT UNBLOCK gets shorter reads, and every task runs."""

    async def refuse(reader: InboxReader) -> None:
        if reader._may_unblock:
            reader._forbid(ServerRefused("NOPERM"))

    monkeypatch.setattr(InboxReader, "_prepare_unblock", refuse)
    await team.work(*make_agents(3, concurrency=1, lease=300.0))
    handles = [await team.orc.submit("a0", {"number": number, "seconds": 0.02}) for number in range(5)]
    assert [await handle.result(TIMEOUT_S) for handle in handles] == list(range(5))
    assert caplog.text.count("unblock_refused") == 1


@pytest.mark.parametrize("damage", ["no group", "no stream"])
async def test_an_inbox_that_cannot_be_read_affects_no_other(
    damage: str, team: LocalTeam, caplog: pytest.LogCaptureFixture
) -> None:
    """Other agents go on, and the worker makes the group again."""
    await team.work(*make_agents(5, lease=1.0))
    assert await (await team.orc.submit("a1", {"number": 1})).result(TIMEOUT_S) == 1
    key, store = team.services.keys.inbox("a0"), team.services.store
    command: tuple[Any, ...] = ("XGROUP", "DESTROY", key, "workers") if damage == "no group" else ("DEL", key)
    await store.execute(*command)
    for number in range(5):
        assert await (await team.orc.submit("a1", {"number": number})).result(TIMEOUT_S) == number
    assert await (await team.orc.submit("a0", {"number": 7})).result(TIMEOUT_S) == 7
    await wait_for(lambda: "inbox_missing" in caplog.text, "the missing inbox to be noticed")
    assert "agent='a0'" in caplog.text
    assert "inbox_missing agent='a1'" not in caplog.text


async def test_a_busy_agent_starves_no_other(team: LocalTeam) -> None:
    """While one agent has hundreds of tasks, those of others start at once."""
    await team.work(*make_agents(4))
    busy = [await team.orc.submit("a0", {"number": number, "seconds": 0.01}) for number in range(300)]
    for number in (1, 2, 3):
        assert await (await team.orc.submit(f"a{number}", {"number": number})).result(TIMEOUT_S) == number
    assert (await busy[-1].status()).state is TaskState.READY, "the busy agent ended first"


async def test_the_reader_asks_once_for_the_id_of_its_connection(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Partial reads need the id of the connection; it is asked for again only after the connection was lost."""
    await team.work(*make_agents(3, concurrency=1, lease=300.0))
    counter = CommandCounter(redis_client)

    async def run_ten() -> None:
        handles = [await team.orc.submit("a0", {"number": number, "seconds": 0.02}) for number in range(10)]
        assert [await handle.result(TIMEOUT_S) for handle in handles] == list(range(10))

    await run_ten()
    assert counter.calls().get("client|id", 0) <= 1
    clients = (await team.services.store.execute("CLIENT", "LIST")).decode().splitlines()
    (reader,) = [client for client in clients if ":inboxes " in client]
    await team.services.store.execute("CLIENT", "KILL", "ID", reader.partition("id=")[2].partition(" ")[0])
    await run_ten()
    assert counter.calls()["client|id"] <= 2


async def test_many_agents_cost_little_at_rest(
    redis_server: RedisServer, prefix: str, searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At rest a worker sends a few commands for all its agents at each search and heartbeat, and adopts nothing."""
    counted: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counting(*args: Any, **options: Any) -> Any:
            counted[name] += 1
            return function(*args, **options)

        monkeypatch.setattr(module, name, counting)

    count(registry, "heartbeat")
    count(inbox_reader, "read_inboxes")
    count(scripts, "adopt")
    settings = local_settings(redis_server.url, prefix, worker__heartbeat_s=0.2)
    with redis_server.client() as direct:
        async with run_local_team(settings, supervised=False) as team:
            await team.work(*make_agents(120, lease=2.0))
            await wait_for(lambda: len(searches) >= 3 and searches[-1] == 120, "the worker to be at rest", 20)
            counted.clear()
            counter, first = CommandCounter(direct), len(searches)
            await wait_for(lambda: len(searches) >= first + 10, "searches", 30)
            searched, sizes = len(searches) - first, set(searches[first:])
            # Read here: a worker that stops looks for lost entries of each agent.
            calls, made = counter.calls(), Counter(counted)
    assert sizes == {120}
    assert made["adopt"] == 0
    # One more of each may have been under way.
    assert sum(calls.values()) <= 3 * (searched + 1) + 40 * (made["heartbeat"] + 1) + 2 * (made["read_inboxes"] + 1)
    assert made["read_inboxes"] <= 3 * (searched + 1)


async def test_the_search_finds_what_holds_entries(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Inboxes with entries, read or not, are found, and those that Redis cannot search."""
    keys, store = team.services.keys, team.services.store
    inboxes = [keys.inbox(name) for name in ("read", "unread", "empty", "missing")]
    for inbox in inboxes[:3]:
        redis_client.xgroup_create(inbox, "workers", mkstream=True)
        redis_client.expire(inbox, 60)
    for inbox in inboxes[:2]:
        redis_client.xadd(inbox, {"t": "x"})
    redis_client.xreadgroup("workers", "w", {inboxes[0]: ">"})
    assert await find_filled(store, inboxes) == (set(inboxes[:2]), False)
    redis_client.sadd(keys.suspected_queues, "skill:x")
    assert await find_filled(store, inboxes[2:]) == (set(), True)
    assert await find_filled(store, []) == (set(), True)
    redis_client.delete(keys.suspected_queues)
    damaged = keys.inbox("damaged")
    redis_client.set(damaged, "x", ex=60)
    found, _ = await find_filled(store, [damaged, *inboxes])
    assert found >= {damaged, *inboxes[:2]}


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of inboxes that workers have searched."""
    made: list[int] = []

    async def find(store: Store, keys: Sequence[str]) -> tuple[set[str], bool]:
        found = await find_filled(store, keys)
        made.append(len(keys))
        return found

    monkeypatch.setattr(inbox_reader, "find_filled", find)
    return made


async def test_heartbeats_of_many_agents_are_short(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call checks more than 50 agents in full; the first heartbeat checks all, a later one a few."""
    calls: list[tuple[set[str], set[str]]] = []
    send = registry.heartbeat

    def note(*args: Any, backlogs: Any, others: Any, **options: Any) -> Any:
        calls.append(({agent for agent, _ in backlogs}, set(others)))
        return send(*args, backlogs=backlogs, others=others, **options)

    monkeypatch.setattr(registry, "heartbeat", note)
    await team.work(*make_agents(120), worker__heartbeat_s=0.05)
    everyone = {f"a{number}" for number in range(120)}
    await wait_for(lambda: any(others for _, others in calls), "a second heartbeat")
    first = [checked for checked, others in calls if not others]
    assert set[str]().union(*first) == everyone
    assert max(len(checked) for checked, _ in calls) <= 50
    beats = 5 * heartbeat.CHECK_ONE_BEATS
    await wait_for(lambda: len([others for _, others in calls if others]) >= beats, "heartbeats")
    for checked, others in calls[len(first) :]:
        assert len(checked) <= 1
        assert checked | others == everyone
    # The turns of full checks go through all agents.
    assert len(set[str]().union(*(checked for checked, _ in calls[len(first) :]))) >= 4
    store, keys = team.services.store, team.services.keys
    await store.execute("DEL", keys.agent("a60"))
    await wait_for(lambda: store.execute("EXISTS", keys.agent("a60")), "the worker to register again")
