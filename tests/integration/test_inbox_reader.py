"""One read for the inboxes of all agents of a worker: connections, full agents, inboxes that cannot be read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent
from orchestrator.agents import scripts as registry
from orchestrator.core.errors import ServerRefused
from orchestrator.tasks.model import TaskState
from orchestrator.workers.runtime.inbox_reader import InboxReader
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
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


async def test_heartbeats_of_many_agents_are_short(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of a heartbeat has more than 50 agents, and all agents are in it."""
    sizes: list[list[str]] = []
    send = registry.heartbeat

    def note(*args: Any, backlogs: Any, **options: Any) -> Any:
        sizes.append([agent for agent, _ in backlogs])
        return send(*args, backlogs=backlogs, **options)

    monkeypatch.setattr(registry, "heartbeat", note)
    await team.work(*make_agents(120))
    await wait_for(lambda: {name for names in sizes for name in names} >= {f"a{n}" for n in range(120)}, "a heartbeat")
    assert max(len(names) for names in sizes) <= 50
