"""What a task waits for, from tasks that really wait for it; and once the obstacle is gone, each of them runs.

Causes that need processes which die or stand still are in tests/fault/test_why.py.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Cause, Snooze, TaskContext, Why
from orchestrator.core.errors import TaskCancelled, TaskFailed
from orchestrator.tasks import queries
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.submission import Submission
from orchestrator.why import lookup
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

on_every_server = pytest.mark.every_server


async def why(handle: TaskHandle[Any]) -> Why:
    """What a task waits for; text and value agree, and so do the ways to ask for them."""
    status = await handle.status()
    assert status.why == status.detail.text
    return status.detail


async def comes_to(handle: TaskHandle[Any], cause: Cause) -> Why:
    """Wait until a task waits for this."""
    seen: list[Why] = []

    async def is_there() -> bool:
        seen.append(await why(handle))
        return seen[-1].cause is cause

    await wait_for(is_there, lambda: f"{cause}; it is {seen[-1]}", TIMEOUT_S)
    return seen[-1]


async def runs(handle: TaskHandle[Any]) -> None:
    """The twin: with the obstacle gone the task runs, and then it waits for nothing."""
    await handle.result(TIMEOUT_S)
    assert (await why(handle)).cause is Cause.ENDED


def worker_of(name: str, *skills: str, **options: Any) -> Agent:
    """An agent whose skills answer at once."""
    agent = Agent(name, **options)

    async def work() -> str:
        return "done"

    for skill in skills:
        agent.skill(name=skill)(work)
    return agent


class Holder:
    """An agent with one skill that runs until it is let go."""

    def __init__(self, name: str = "holder", **options: Any) -> None:
        self.agent, self.started, self.let_go = Agent(name, **options), 0, anyio.Event()

        @self.agent.skill
        async def hold() -> None:
            self.started += 1
            await self.let_go.wait()

    async def runs(self, count: int) -> None:
        """Wait until so many have started."""
        await wait_for(lambda: self.started >= count, f"{count} to run")


# ------------------------------------------------------------------------------------------------------------ scheduled


async def test_scheduled(team: LocalTeam) -> None:
    """A delayed task waits until it is due, and starts then."""
    await team.work(worker_of("editor", "work"))
    handle = await team.orc.submit("work", delay=0.4)
    found = await why(handle)
    assert (found.cause, found.until) == (Cause.SCHEDULED, (await handle.info()).due_at)
    assert found.until is not None
    assert timedelta() < found.until - datetime.now(UTC) <= timedelta(seconds=0.4)
    assert found.text == f"starts no earlier than {found.until:%H:%M:%S} UTC (in 0.4 s)"
    await runs(handle)
    assert datetime.now(UTC) >= found.until
    far = await team.orc.submit("work", at=datetime(2125, 1, 31, 12, tzinfo=UTC))
    assert (await why(far)).text.startswith("starts no earlier than 2125-01-31 12:00:00 UTC (in 3")


async def test_retrying(team: LocalTeam) -> None:
    """Between two attempts: what failed, and how many attempts are left by the skill or by the task itself."""
    agent = Agent("editor")

    @agent.skill(max_attempts=3, backoff=0.5)
    async def work(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            raise ValueError("too hot")

    await team.work(agent)
    handle, patient = await team.orc.submit("work"), await team.orc.submit("work", max_attempts=5)
    found = await comes_to(handle, Cause.RETRYING)
    assert (found.failures, found.attempts_left, found.reason) == (1, 2, "ValueError: too hot")
    assert found.until is not None
    assert found.text == (
        "1 of 3 attempts failed, the last one with 'ValueError: too hot'; "
        f"the next one starts at {found.until:%H:%M:%S} UTC (in {found.text.rpartition(' (in ')[2]}"
    )
    assert (await comes_to(patient, Cause.RETRYING)).attempts_left == 4
    await runs(handle)
    assert datetime.now(UTC) >= found.until


async def test_snoozed(team: LocalTeam) -> None:
    """A snooze is told from a retry, with its reason; one without a reason shows none, not even that of a failure."""
    agent = Agent("editor")

    @agent.skill(max_attempts=3, backoff=0)
    async def work(ctx: TaskContext, reason: str = "") -> None:
        if ctx.attempt == 1:
            raise ValueError("too hot")
        calls.append(ctx.task_id)
        if calls.count(ctx.task_id) == 1:
            raise Snooze(0.5, reason=reason)

    calls: list[str] = []
    await team.work(agent)
    silent, told = await team.orc.submit("work"), await team.orc.submit("work", {"reason": "the tide is out"})
    found = await comes_to(told, Cause.SNOOZED)
    assert (found.reason, found.failures) == ("the tide is out", None)
    assert found.text.endswith("s): the tide is out")
    found = await comes_to(silent, Cause.SNOOZED)
    assert found.reason is None
    assert "hot" not in found.text
    await runs(told)
    await runs(silent)


# ------------------------------------------------------------------------------------------------- nobody to give it to


async def test_no_supervisor(settings: Settings) -> None:
    """Without a supervisor nothing is assigned, and nothing that is due becomes ready; with one both run."""
    async with run_local_team(settings, supervised=False) as team:
        await team.work(worker_of("editor", "work"))
        ready, due = await team.orc.submit("work"), await team.orc.submit("work", delay=0.05)
        unserved = await team.orc.submit("nobody_can")
        assert (await why(due)).cause is Cause.SCHEDULED
        for handle in (ready, due, unserved):
            found = await comes_to(handle, Cause.NO_SUPERVISOR)
            assert "orc supervisor run" in found.text
        await team.start_supervisor()
        await runs(ready)
        await runs(due)
        assert (await why(unserved)).cause is Cause.NO_AGENT


async def test_no_agent(team: LocalTeam) -> None:
    """A task whose skill no live agent has waits for one that has."""
    await team.work(worker_of("editor", "other"))
    handle = await team.orc.submit("work")
    found = await comes_to(handle, Cause.NO_AGENT)
    assert (found.skill, found.queue) == ("work", "skill:work")
    assert found.text == "parked: no live agent has the skill 'work'; start one with `orc worker run` that has"
    await team.work(worker_of("writer", "work"))
    await runs(handle)


async def test_unknown_agent(team: LocalTeam) -> None:
    """A task for an agent that nobody ever saw says that; it runs once the agent is there."""
    handle = await team.orc.submit("work", agent="editor")
    found = await comes_to(handle, Cause.AGENT_UNKNOWN)
    assert (found.agent, found.seen) == ("editor", None)
    assert found.text.startswith("agent 'editor' is not known")
    await team.work(worker_of("editor", "work"))
    await runs(handle)


async def test_agent_without_live_worker(team: LocalTeam) -> None:
    """A task for an agent whose workers have gone says when it was seen last."""
    await team.stop(await team.work(worker_of("editor", "work")))
    handle = await team.orc.submit("work", agent="editor")
    found = await comes_to(handle, Cause.AGENT_DOWN)
    assert found.agent == "editor"
    assert found.seen is not None
    assert timedelta() <= datetime.now(UTC) - found.seen < timedelta(seconds=5)
    assert found.text.startswith("agent 'editor' has no live worker, it was seen 0.")
    await team.work(worker_of("editor", "work"))
    await runs(handle)


async def test_draining_agent(team: LocalTeam) -> None:
    """While all workers of an agent drain, its tasks wait for another one, addressed or not."""
    holder = Holder("editor")
    worker = await team.work(holder.agent)
    running = await team.orc.submit("hold")
    await holder.runs(1)
    worker.stop()

    async def drains() -> bool:
        return bool(await team.services.store.execute("HGET", team.services.keys.agent("editor"), "slots") == b"0")

    # What is submitted before the registry knows may go into the inbox; the next sweep takes it out.
    await wait_for(drains, "the worker to drain", TIMEOUT_S)
    addressed, open_ = await team.orc.submit("hold", agent="editor"), await team.orc.submit("hold")
    found = await comes_to(addressed, Cause.AGENT_DRAINING)
    assert found.text == "agent 'editor' takes nothing new, its worker drains; start one with `orc worker run`"
    found = await comes_to(open_, Cause.NO_AGENT)
    assert "('editor' has, but takes nothing new)" in found.text
    holder.let_go.set()
    await runs(running)
    await team.work(holder.agent)
    await runs(addressed)
    await runs(open_)


async def test_agent_lacks_the_skill(team: LocalTeam) -> None:
    """A task for an agent that does not have its skill waits until the agent has."""
    old = await team.work(worker_of("editor", "other"))
    handle = await team.orc.submit("work", agent="editor")
    found = await comes_to(handle, Cause.SKILL_MISSING)
    assert (found.agent, found.skill) == ("editor", "work")
    assert found.text.startswith("parked: agent 'editor' does not have the skill 'work'")
    await team.stop(old)
    await team.work(worker_of("editor", "other", "work"))
    await runs(handle)


@on_every_server
@pytest.mark.parametrize("agent", [None, "editor"])
async def test_some_workers_lack_the_skill(team: LocalTeam, agent: str | None) -> None:
    """In a rolling upgrade a task of the new skill waits for the old workers to go; they are named."""
    old = [await team.work(worker_of("editor", "other")) for _ in range(2)]
    await team.work(worker_of("editor", "other", "work"))
    handle = await team.orc.submit("work", agent=agent)
    found = await comes_to(handle, Cause.SKILL_PARTIAL)
    assert found.workers is not None
    assert set(found.workers) == {worker.id for worker in old}
    assert found.text.startswith("parked: 2 of 3 live workers of agent 'editor' lack the skill 'work' (")
    for worker in old:
        await team.stop(worker)
    await runs(handle)


# --------------------------------------------------------------------------------------------------------- limits, room


async def granted_at(team: LocalTeam, handle: TaskHandle[Any], limit: str) -> datetime:
    """When a limit granted the start of a task, by the server's clock."""
    store = team.services.store
    flat = await store.execute("ZRANGE", store.keys.limit(limit), 0, -1, "WITHSCORES")
    grants = {
        member.decode().split(":")[0]: int(float(score))
        for member, score in zip(flat[::2], flat[1::2], strict=True)
        if score != b"inf"
    }
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=grants[handle.id])


@on_every_server
async def test_rate_limit(team: LocalTeam) -> None:
    """Tasks that wait for a rate are told when they start, each by its place, and are granted their start just then."""
    await team.work(worker_of("editor", "work", rate=(2, timedelta(seconds=0.4))))
    handles = [await team.orc.submit("work") for _ in range(5)]
    await runs(handles[1])
    found = [await comes_to(handle, Cause.LIMIT) for handle in handles[2:]]
    assert [(one.limit, one.rate, one.agent, one.ahead) for one in found] == [
        ("agent:editor", "2 per 0.4s", "editor", number) for number in range(3)
    ]
    assert found[0].text.startswith("the limit agent:editor (2 per 0.4s) is used up, the next start is at ")
    assert found[2].text.endswith(" at the earliest, 2 tasks stand before it")
    for handle, told in zip(handles[2:], found, strict=True):
        await runs(handle)
        assert told.until is not None
        late = await granted_at(team, handle, "@editor") - told.until
        assert timedelta(milliseconds=-1) <= late < timedelta(milliseconds=100), "a few ms on a quiet machine"


@pytest.mark.parametrize("settings", [{"limits": {"model:gpt": "2/s", "wide": "100/s"}}], indirect=True)
async def test_named_limit(team: LocalTeam) -> None:
    """Of several limits the one that opens last is named, also when another agent used it up."""
    await team.work(worker_of("editor", "work", limits=["wide", "model:gpt"]))
    await team.work(worker_of("writer", "write", limits=["model:gpt"], rate="50/s"))
    for _ in range(2):
        await runs(await team.orc.submit("write"))
    handle = await team.orc.submit("work")
    found = await comes_to(handle, Cause.LIMIT)
    assert (found.limit, found.rate, found.agent, found.ahead) == ("model:gpt", "2/s", "editor", 0)
    await runs(handle)
    assert found.until is not None
    late = await granted_at(team, handle, "model:gpt") - found.until
    assert timedelta(milliseconds=-1) <= late < timedelta(milliseconds=100)


async def test_the_agent_that_opens_first_counts(team: LocalTeam) -> None:
    """With several agents on one skill a task waits for the one whose limit opens first; for none if one is free."""
    for name, seconds in (("slow", 60.0), ("quick", 0.5)):
        await team.work(worker_of(name, "work", rate=(1, timedelta(seconds=seconds))))
    for _ in range(2):
        await runs(await team.orc.submit("work"))
    handles = [await team.orc.submit("work") for _ in range(2)]
    found = [await comes_to(handle, Cause.LIMIT) for handle in handles]
    assert [one.limit for one in found] == ["agent:quick"] * 2
    assert "the next start is at" in found[1].text
    assert found[1].text.endswith("; 1 task stands before it")
    await runs(handles[0])
    await team.work(worker_of("free", "work"))
    await runs(handles[1])


@pytest.mark.parametrize("settings", [{"limits": {"model:gpt": "10/s"}}], indirect=True)
async def test_undefined_limit(team: LocalTeam) -> None:
    """An agent with a limit that lost its definition gets nothing; a worker that brings one repairs it."""
    agent = worker_of("editor", "work", limits=["model:gpt"])
    await team.work(agent, worker__heartbeat_s=60, limits={"model:gpt": "10/s"})
    store = team.services.store
    # The first heartbeat, which comes as soon as it works, brings the definition back; the second is a minute away.
    for _ in range(2):
        await store.execute("HDEL", store.keys.limits, "model:gpt")
        with anyio.move_on_after(0.3):
            while not await store.execute("HEXISTS", store.keys.limits, "model:gpt"):  # noqa: ASYNC110 - far away
                await anyio.sleep(0.01)
    handle = await team.orc.submit("work")
    found = await comes_to(handle, Cause.LIMIT_UNDEFINED)
    assert (found.agent, found.limit) == ("editor", "model:gpt")
    assert '[limits] "model:gpt" = "60/min"' in found.text
    await team.work(agent)
    await runs(handle)


@on_every_server
async def test_no_room(team: LocalTeam) -> None:
    """With all slots taken a task waits for one; it is told how many there are, and how many tasks stand before it."""
    first, second = Holder("editor", concurrency=2), Holder("writer", concurrency=1)
    await team.work(first.agent)
    running = await team.orc.submit_many([Submission("hold") for _ in range(2)])
    await first.runs(2)
    waiting = await team.orc.submit_many([Submission("hold") for _ in range(3)])
    found = await comes_to(waiting[2], Cause.NO_ROOM)
    assert (found.slots, found.agents, found.ahead, found.queue) == (2, ("editor",), 2, "skill:hold")
    assert found.text.startswith("all 2 slots of agent 'editor' are taken and 2 tasks stand before it")
    await team.work(second.agent)
    await second.runs(1)
    found = await comes_to(waiting[2], Cause.NO_ROOM)
    assert (found.slots, found.agents, found.ahead) == (3, ("editor", "writer"), 1)
    assert found.text.startswith("all 3 slots of the 2 agents with the skill 'hold' are taken and 1 task stands before")
    urgent = await team.orc.submit("hold", agent="writer", priority="critical")
    found = await comes_to(urgent, Cause.NO_ROOM)
    assert found.text.startswith("the one slot of agent 'writer' is taken and no tasks stand before it")
    first.let_go.set()
    second.let_go.set()
    for handle in (*running, *waiting, urgent):
        await runs(handle)


async def test_a_full_agent_goes_before_its_limit(team: LocalTeam) -> None:
    """Where slots and limit are used up, the slots are named: until one is free, the limit lets nobody start."""
    holder = Holder("editor", concurrency=1, rate=(1, timedelta(seconds=0.3)))
    await team.work(holder.agent)
    running, waiting = await team.orc.submit("hold"), await team.orc.submit("hold")
    await holder.runs(1)
    assert (await comes_to(waiting, Cause.NO_ROOM)).until is None
    holder.let_go.set()
    await runs(running)
    await runs(waiting)


# ---------------------------------------------------------------------------------------------------------- on a worker


@on_every_server
async def test_running(team: LocalTeam) -> None:
    """A running task: since when, on which worker and host, which attempt, how fresh its lease is."""
    holder = Holder("editor")
    worker = await team.work(holder.agent)
    handle = await team.orc.submit("hold")
    await holder.runs(1)
    found = await comes_to(handle, Cause.RUNNING)
    (known,) = [one for one in await _workers(team) if one.id == worker.id]
    assert (found.agent, found.worker, found.host, found.pid) == ("editor", worker.id, known.host, known.pid)
    assert (found.attempt, found.until) == (1, None)
    assert found.since is not None
    assert timedelta() <= datetime.now(UTC) - found.since < timedelta(seconds=3)
    assert found.text.startswith(f"worker {worker.id} on {known.host} runs it since {found.since:%H:%M:%S} UTC (")
    assert ", attempt 1, lease renewed 0." in found.text
    assert (await handle.status()).state is TaskState.RUNNING
    holder.let_go.set()
    await runs(handle)


async def _workers(team: LocalTeam) -> list[Any]:
    from orchestrator.agents import queries as registry

    return await registry.workers(team.services.store)


@on_every_server
async def test_cancelling(team: LocalTeam) -> None:
    """A task that was told to stop is cancelling until its handler has stopped; then it is cancelled."""
    agent, started, may_stop = Agent("editor"), anyio.Event(), anyio.Event()

    @agent.skill
    async def stubborn() -> None:
        started.set()
        with anyio.CancelScope(shield=True):
            await may_stop.wait()
        await anyio.sleep_forever()

    worker = await team.work(agent)
    handle = await team.orc.submit("stubborn")
    await started.wait()
    assert await handle.cancel("no need any more") == "signalled"
    found = await why(handle)
    assert (found.cause, found.reason, found.worker) == (Cause.CANCELLING, "no need any more", worker.id)
    assert found.text.startswith(f"told to stop: no need any more; worker {worker.id} on ")
    assert (await handle.status()).state is TaskState.CANCELLING
    may_stop.set()
    with pytest.raises(TaskCancelled, match="no need any more"):
        await handle.result(TIMEOUT_S)
    assert (await why(handle)).cause is Cause.ENDED


async def test_ended(team: LocalTeam) -> None:
    """An ended task waits for nothing: when it ended, and why if there is a reason."""
    agent = Agent("editor")

    @agent.skill(max_attempts=1)
    async def work(*, fail: bool) -> None:
        if fail:
            raise ValueError("too hot")

    await team.work(agent)
    good, bad = await team.orc.submit("work", {"fail": False}), await team.orc.submit("work", {"fail": True})
    await good.result(TIMEOUT_S)
    with pytest.raises(TaskFailed):
        await bad.result(TIMEOUT_S)
    found = await why(good)
    assert (found.cause, found.since, found.reason) == (Cause.ENDED, (await good.info()).ended_at, None)
    assert found.text.startswith("ended at ")
    assert (await why(bad)).text.endswith("ago): ValueError: too hot")


# ------------------------------------------------------------------------------------------------------------- the rest


@on_every_server
@pytest.mark.parametrize("place", ["ready", "scheduled", "assigned"])
async def test_lost(team: LocalTeam, place: str) -> None:
    """A task that stands nowhere, as after a loss of data, says so; the same task in its place does not."""
    keys, store = team.services.keys, team.services.store
    holder = Holder("editor", concurrency=1)
    await team.work(holder.agent)
    running = await team.orc.submit("hold")
    await holder.runs(1)
    handle = (
        running if place == "assigned" else await team.orc.submit("hold", delay=60 if place == "scheduled" else None)
    )
    assert (await why(handle)).cause is not Cause.LOST
    for key in (keys.queue("skill:hold"), keys.scheduled, keys.inbox("editor")):
        await store.execute("DEL", key)
    assert (await comes_to(handle, Cause.LOST)).text.startswith(f"it is {place} by its record, but ")
    holder.let_go.set()


async def test_a_task_that_changes_is_shown_of_one_moment(team: LocalTeam) -> None:
    """While tasks run through their states, what is told of one never mixes two of them."""
    await team.work(worker_of("editor", "work"))
    handles = await team.orc.submit_many([Submission("work") for _ in range(60)])
    for handle in handles:
        info = await handle.info()
        if info.state is TaskState.SUCCEEDED:
            assert (info.result, info.worker) == (b'"done"', None)
            assert info.why.startswith("ended at")
        else:
            assert (info.result, info.ended_at) == (None, None)
    for handle in handles:
        await runs(handle)


async def test_looking_is_one_round_trip(team: LocalTeam) -> None:
    """`status` asks the server once, `info` twice, whatever the task waits for."""
    await team.work(worker_of("editor", "work", rate="1/min"))
    handles = [await team.orc.submit("work") for _ in range(2)]
    await runs(handles[0])
    sent: list[str] = []
    store = team.services.store
    execute, pipeline = store.execute, store.pipeline

    async def counted_together(commands: Any) -> Any:
        sent.append("pipeline")
        return await pipeline(commands)

    async def counted(*command: Any) -> Any:
        sent.append(command[0])
        return await execute(*command)

    store.execute, store.pipeline = counted, counted_together  # type: ignore[method-assign]
    try:
        await lookup.status(store, handles[1].id)
        assert sent == ["EVALSHA"]
        sent.clear()
        await lookup.info(store, handles[1].id)
        assert sent == ["EVALSHA", "pipeline"]
    finally:
        store.execute, store.pipeline = execute, pipeline  # type: ignore[method-assign]


# ----------------------------------------------------------------------------------------------------- stops and pauses


@on_every_server
@pytest.mark.parametrize(
    ("scope", "command"),
    [
        ({}, "`orc start`"),
        ({"agent": "ed"}, "`orc start --agent ed`"),
        ({"skill": "sum"}, "`orc start --skill sum`"),
        ({"session": "my talk"}, "`orc start --session 'my talk'`"),
    ],
)
async def test_stopped(team: LocalTeam, scope: dict[str, Any], command: str) -> None:
    """A stopped task says who stopped what, when and why, and what ends that; then it runs."""
    await team.work(worker_of("ed", "sum"))
    await team.orc.admin.stop(**scope, reason="tea break", actor="ann@desk")
    handle = await team.orc.submit("sum", session="my talk")
    found = await comes_to(handle, Cause.STOPPED)
    assert (found.actor, found.reason) == ("ann@desk", "tea break")
    assert found.since is not None
    assert "by ann@desk: tea break" in found.text
    assert command in found.text
    assert [row.id for row in await queries.listing(team.services.store, states=(), limit=10)] == [handle.id]
    await team.orc.admin.start(**scope)
    await runs(handle)


async def test_paused(team: LocalTeam) -> None:
    """A paused agent holds back what only it could do; another with the skill takes it. So does a paused queue."""
    await team.work(worker_of("ed", "sum"))
    await team.orc.admin.pause_agent("ed", actor="ann@desk")
    handle = await team.orc.submit("sum")
    found = await comes_to(handle, Cause.PAUSED)
    assert found.text.startswith("agent 'ed' is paused since ")
    assert found.text.endswith("by ann@desk; `orc agents resume ed` ends that")
    await team.work(worker_of("joe", "sum"))
    await runs(handle)
    await team.orc.admin.pause_queue("skill:sum")
    handle = await team.orc.submit("sum")
    assert "`orc queues resume skill:sum`" in (await comes_to(handle, Cause.PAUSED)).text
    await team.orc.admin.resume_queue("skill:sum")
    await runs(handle)
