"""A worker's life: it drains, gives back, comes back into the registry, and hosts several agents."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.agents import scripts as registry
from orchestrator.tasks.inbox import read_inbox
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.submission import Submission
from orchestrator.workers.runtime.fetcher import Fetcher
from tests.faultkit.processes import ActorProcess
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.client.handle import TaskHandle
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam


class Gate:
    """An agent whose handlers note their attempt and wait until the gate opens."""

    def __init__(self, name: str = "gated", *, concurrency: int = 5) -> None:
        self.agent = Agent(name, concurrency=concurrency)
        self.started: list[tuple[str, int]] = []
        self.opened = anyio.Event()

        @self.agent.skill
        async def work(ctx: TaskContext) -> int:
            self.started.append((ctx.task_id, ctx.attempt))
            await self.opened.wait()
            return ctx.attempt

    async def wait_started(self, count: int) -> None:
        """Wait until so many attempts have begun."""
        await wait_for(lambda: len(self.started) >= count, lambda: f"{count} starts, saw {self.started}")


@pytest.mark.parametrize("settings", [{"worker__drain_s": 10.0}], indirect=True)
async def test_a_draining_worker_finishes_what_runs_and_takes_nothing_new(team: LocalTeam) -> None:
    """After the first signal: running tasks end with their results, what comes later waits for another worker."""
    gate = Gate()
    worker = await team.work(gate.agent)
    running = await team.orc.submit("work")
    await gate.wait_started(1)
    worker.stop()

    async def drains() -> bool:
        return (await running.info()).state is TaskState.RUNNING and not await team.services.store.execute(
            "HGET", team.services.keys.agent("gated"), "skills"
        )

    await wait_for(drains, "the worker to take no more")
    later = await team.orc.submit("work")
    assert (await later.status()).state is TaskState.READY
    gate.opened.set()
    assert await running.result(TIMEOUT_S) == 1
    await team.stop(worker)
    assert (await later.status()).why.startswith("parked: no live agent has the skill 'work'")
    await team.work(gate.agent)
    assert await later.result(TIMEOUT_S) == 1


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("settings", [{"worker__drain_s": 0.2}], indirect=True)
async def test_what_does_not_end_in_time_is_given_back_unburnt(team: LocalTeam, *, at_once: bool) -> None:
    """When the drain time is over, or at the second signal, running tasks go back; the attempt keeps its number."""
    gate, fresh = Gate(), Gate()
    fresh.opened.set()
    worker = await team.work(gate.agent)
    handles = [await team.orc.submit("work") for _ in range(7)]  # two more than slots
    await gate.wait_started(5)
    asked_s = time.monotonic()
    worker.stop()
    if at_once:
        worker.stop()
    await team.stop(worker)
    assert time.monotonic() - asked_s < 2
    assert [(await handle.info()).state for handle in handles] == [TaskState.READY] * 7
    await team.work(fresh.agent)
    assert [await handle.result(TIMEOUT_S) for handle in handles] == [1] * 7
    assert [(await handle.info()).errors for handle in handles] == [()] * 7


async def test_a_slow_release_of_entries_is_not_a_failed_announcement(
    team: LocalTeam, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The registry answers and the inbox does not: the log names the step that failed, and the worker."""
    worker = await team.work(Gate().agent)

    async def no_answer(*_: object, **__: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(Fetcher, "_lost_and_expired", no_answer)
    monkeypatch.setattr("orchestrator.workers.runtime.worker.ANNOUNCE_TIMEOUT_S", 0.3)
    worker.stop()
    await wait_for(lambda: "release_failed" in caplog.text, "the release to fail")
    await team.stop(worker)
    (line,) = [text for text in caplog.messages if "unread_entries_release_failed" in text]
    assert "agent='gated'" in line
    assert f"worker='{worker.id}'" in line
    assert "drain_announcement_failed" not in caplog.text


async def test_given_back_tasks_keep_their_place(team: LocalTeam) -> None:
    """What a stopping worker gives back starts before what was submitted behind it."""
    gate = Gate(concurrency=2)
    worker = await team.work(gate.agent)
    first = await team.orc.submit_many([Submission("work")] * 2)
    await gate.wait_started(2)
    behind = await team.orc.submit_many([Submission("work")] * 2)
    worker.stop()
    await team.stop(worker)
    again = Gate(concurrency=1)
    again.opened.set()
    await team.work(again.agent)
    for handle in [*first, *behind]:
        await handle.result(TIMEOUT_S)
    assert [task for task, _ in again.started] == [handle.id for handle in [*first, *behind]]


async def test_a_forgotten_worker_registers_again(team: LocalTeam) -> None:
    """A worker that the registry lost is back within a heartbeat, and works on."""
    gate = Gate()
    gate.opened.set()
    worker = await team.work(gate.agent)
    store, keys = team.services.store, team.services.keys
    await store.execute(
        "DEL", keys.worker(worker.id), keys.agent("gated"), keys.agent_workers("gated"), keys.skill("work")
    )
    await wait_for(lambda: store.execute("EXISTS", keys.agent_workers("gated")), "the worker to register again")
    assert await (await team.orc.submit("work")).result(TIMEOUT_S) == 1


async def test_a_lost_inbox_is_made_again(team: LocalTeam) -> None:
    """When its stream is gone, the worker makes it again and takes what comes next."""
    gate = Gate()
    gate.opened.set()
    await team.work(gate.agent)
    store, keys = team.services.store, team.services.keys
    await store.execute("DEL", keys.inbox("gated"))
    await wait_for(lambda: store.execute("EXISTS", keys.inbox("gated")), "the inbox to be there again")
    assert await (await team.orc.submit("work")).result(TIMEOUT_S) == 1


async def test_one_worker_hosts_several_agents(team: LocalTeam) -> None:
    """Each has its own slots: one that is full does not keep the other waiting."""
    full, other = Gate("full", concurrency=1), Gate("other", concurrency=1)
    other.opened.set()
    await team.work(full.agent, other.agent)
    stuck = [await team.orc.submit("work", agent="full") for _ in range(2)]
    await full.wait_started(1)
    for _ in range(3):
        assert await (await team.orc.submit("work", agent="other")).result(TIMEOUT_S) == 1
    full.opened.set()
    assert [await handle.result(TIMEOUT_S) for handle in stuck] == [1, 1]


async def test_workers_of_one_agent_share_its_tasks(team: LocalTeam) -> None:
    """Four workers: every one gets some of a thousand tasks, each task runs exactly once."""
    ran: list[int] = []

    def make() -> Agent:
        agent = Agent("crowd", concurrency=5)

        @agent.skill
        async def work(ctx: TaskContext, number: int) -> str:
            ran.append(number)
            await anyio.lowlevel.checkpoint()
            return ctx.worker

        return agent

    started = [await team.work(make()) for _ in range(4)]
    handles = await team.orc.submit_many([Submission("work", {"number": number}) for number in range(1000)])
    workers = [await handle.result(20) for handle in handles]
    assert sorted(ran) == list(range(1000))
    assert set(workers) == {worker.id for worker in started}


async def test_a_worker_reads_no_further_than_its_free_slots(team: LocalTeam) -> None:
    """Of what waits, a full worker holds as many as it has slots; the rest can be taken by another at once."""
    gate = Gate(concurrency=2)
    await team.work(gate.agent)
    handles = [await team.orc.submit("work") for _ in range(6)]
    await gate.wait_started(2)
    states = [(await handle.status()).state for handle in handles]
    assert states == [TaskState.RUNNING] * 2 + [TaskState.READY] * 4
    other = Gate(concurrency=4)
    await team.work(other.agent)
    await other.wait_started(4)
    gate.opened.set()
    other.opened.set()
    assert [await handle.result(TIMEOUT_S) for handle in handles] == [1] * 6


@pytest.mark.parametrize("settings", [{}, {"worker__stuck_after_s": 0.2}], indirect=True, ids=["usual", "strict"])
async def test_a_slow_handler_keeps_its_lease(team: LocalTeam) -> None:
    """A task that runs longer than its agent's lease stays with its worker, however soon a loop counts as stuck."""
    runs: list[str] = []

    def make() -> Agent:
        agent = Agent("slow", lease=1.0)

        @agent.skill
        async def work(ctx: TaskContext) -> int:
            runs.append(ctx.worker)
            await anyio.sleep(2.3)
            return ctx.attempt

        return agent

    await team.work(make())
    await team.work(make())
    handle = await team.orc.submit("work")
    assert await handle.result(TIMEOUT_S) == 1
    assert len(runs) == 1


async def test_a_full_worker_keeps_looking_for_what_the_dead_left(team: LocalTeam) -> None:
    """Entries of a vanished worker are adopted as soon as a survivor that was busy all the time has a slot again."""
    gate = Gate(concurrency=1)
    gate.agent.lease_ms = 1000
    keys, store = team.services.keys, team.services.store
    ghost = registry.register(keys, worker="ghost", spec=gate.agent.spec({}), slots=1, backlog=0, about={}, alive_s=60)
    await store.call(ghost)
    left = await team.orc.submit("work")
    link = store.blocking_link(TIMEOUT_S)
    inbox_key = keys.inbox("gated")
    taken = await read_inbox(link, inbox_key=inbox_key, agent="gated", worker="ghost", count=1, block_ms=5000)
    await link.close()
    assert [one.task_id for one in taken] == [left.id]
    await team.work(gate.agent)
    busy = await team.orc.submit("work")
    await gate.wait_started(1)

    async def seen_while_full() -> bool:
        return bool(await store.execute("HGET", keys.agent("gated"), "rest") == b"1")

    await wait_for(seen_while_full, "the full worker sees that a lease ran out")
    gate.opened.set()
    assert await busy.result(TIMEOUT_S) == 1
    assert await left.result(TIMEOUT_S) == 2
    assert (await left.info()).deaths[0].split(" ")[1] == "ghost"


USER_FILE = """
from orchestrator import Agent, TaskContext, run

agent = Agent("standalone")

@agent.skill
async def greet(ctx: TaskContext, name: str) -> str:
    return f"hello {name}"

if __name__ == "__main__":
    run(agent)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
async def test_run_is_a_worker_in_this_process(
    team: LocalTeam, redis_server: RedisServer, tmp_path: Path, number: signal.Signals
) -> None:
    """`orchestrator.run(agent)` works until a signal, then leaves the registry and ends with success."""
    script = tmp_path / "mine.py"
    script.write_text(USER_FILE)
    environment = {**os.environ, "ORC_REDIS__URL": redis_server.url, "ORC_PREFIX": team.settings.prefix}
    with ActorProcess([sys.executable, str(script)], name="worker", env=environment) as process:
        handle: TaskHandle[Any] = await team.orc.submit("greet", {"name": "you"})
        assert await handle.result(10) == "hello you"
        os.kill(process.pid, number)
        await wait_for(lambda: process.returncode is not None, lambda: process.describe("its end"))
        assert process.returncode == 0
    assert await team.services.store.execute("ZCARD", team.services.keys.workers) == 0


async def test_a_skill_that_is_gone_is_given_back_unburnt(team: LocalTeam) -> None:
    """A worker that reads a task whose skill it lacks gives it back; the attempt is not counted."""
    gate = Gate()
    gate.opened.set()
    store, keys = team.services.store, team.services.keys
    await team.work(gate.agent)
    handle = await team.orc.submit("vanished")
    # As if the skill had been there when the task was assigned.
    await store.execute("HSET", keys.agent("gated"), "skills", "vanished work")
    await store.execute("XADD", keys.doorbell, "*", "w", "agents")

    async def given_back() -> bool:
        return (await handle.info()).last_retry == "no-skill vanished"

    await wait_for(given_back, "the task to come back")
    await store.execute("HSET", keys.agent("gated"), "skills", "work")
    await store.execute("XADD", keys.doorbell, "*", "w", "agents")
    late = Gate("late")

    @late.agent.skill
    async def vanished(ctx: TaskContext) -> int:
        return ctx.attempt

    await team.work(late.agent)
    assert await handle.result(TIMEOUT_S) == 1


async def test_several_agents_share_one_worker(team: LocalTeam) -> None:
    """One blocking read over one connection covers the inboxes of all agents."""
    agents = [Agent(name) for name in ("one", "two", "three")]
    for agent in agents:

        @agent.skill(name=f"ask_{agent.name}")
        async def ask(ctx: TaskContext) -> str:
            return ctx.agent

    await team.work(*agents)
    handles = [await team.orc.submit(f"ask_{agent.name}") for agent in agents]
    assert [await handle.result(TIMEOUT_S) for handle in handles] == ["one", "two", "three"]

    async def blocking() -> list[str]:
        clients = (await team.services.store.execute("CLIENT", "LIST")).decode().splitlines()
        names = [re.search(r" name=(\S*)", client) for client in clients if " cmd=xreadgroup " in client]
        return sorted(name[1].rpartition(":")[2] for name in names if name)

    async def one_for_all() -> bool:
        return [name for name in await blocking() if name == "inboxes"] == ["inboxes"]

    await wait_for(one_for_all, "one blocking read for all agents")
