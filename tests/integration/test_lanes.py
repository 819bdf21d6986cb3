"""Lanes from outside: order over attempts and workers, what a busy lane does, what is said of who waits."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Cause, InvalidInput, LaneBusy, Retry, Snooze, SubmitRefused, TaskCancelled, TaskContext
from orchestrator.tasks import queries
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.submission import Submission
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator.client.handle import TaskHandle
    from tests.helpers.local_team import LocalTeam


class Notes:
    """An agent whose tasks note when they begin and end, and fail or snooze now and then."""

    def __init__(self, name: str = "scribe", *, trouble: float = 0.0, concurrency: int = 8) -> None:
        self.agent = Agent(name, concurrency=concurrency)
        self.begun: dict[str, list[int]] = {}
        self.running: dict[str, int] = {}
        self.most = 0
        dice = random.Random(name)

        @self.agent.skill(max_attempts=100, backoff=0.01)
        async def note(lane: str, number: int) -> int:
            self.running[lane] = self.running.get(lane, 0) + 1
            self.most = max(self.most, self.running[lane])
            try:
                if number not in self.begun.setdefault(lane, []):
                    self.begun[lane].append(number)
                await anyio.sleep(dice.random() * 0.005)
                if dice.random() < trouble:
                    raise Retry(dice.random() * 0.02)
                if dice.random() < trouble:
                    raise Snooze(dice.random() * 0.02)
                return number
            finally:
                self.running[lane] -= 1


class Holder:
    """An agent whose tasks run until they are let go."""

    def __init__(self) -> None:
        self.agent, self.started, self.let_go = Agent("holder", concurrency=4), list[str](), anyio.Event()

        @self.agent.skill
        async def hold(ctx: TaskContext) -> None:
            self.started.append(ctx.task_id)
            await self.let_go.wait()

    async def runs(self, handle: TaskHandle[Any]) -> None:
        """Wait until a task has started."""
        await wait_for(lambda: handle.id in self.started, f"{handle.id} to start", TIMEOUT_S)


@pytest.mark.every_server
async def test_order(team: LocalTeam) -> None:
    """Tasks of a lane run one at a time, in their order, over two workers, with retries and snoozes."""
    first, second = Notes(trouble=0.2), Notes(trouble=0.2)
    second.begun, second.running = first.begun, first.running
    await team.work(first.agent)
    await team.work(second.agent)
    tasks = [(f"l{n % 5}", n // 5) for n in range(100)]
    handles = await team.orc.submit_many(
        [Submission("note", {"lane": lane, "number": number}, lane=lane) for lane, number in tasks]
    )
    assert [await handle.result(10) for handle in handles] == [number for _, number in tasks]
    assert first.begun == {f"l{n}": list(range(20)) for n in range(5)}
    assert max(first.most, second.most) == 1


async def test_without_lanes_nothing_is_in_order(team: LocalTeam) -> None:
    """The twin: the same tasks without lanes run at the same time."""
    notes = Notes(trouble=0.2)
    await team.work(notes.agent)
    handles = await team.orc.submit_many([Submission("note", {"lane": "x", "number": n}) for n in range(30)])
    for handle in handles:
        await handle.result(10)
    assert notes.most > 1


async def test_many_chunks_keep_their_order(team: LocalTeam) -> None:
    """More tasks of one lane than one call carries stand in it in their order."""
    handles = await team.orc.submit_many([Submission("note", lane="x", key=f"k{n}") for n in range(800)])
    keys = team.services.store.keys
    members = await team.services.store.execute("ZRANGE", keys.lane("x"), 0, -1)
    assert [id_.decode() for id_ in members] == [handle.id for handle in handles]


async def test_reject(team: LocalTeam) -> None:
    """A busy lane refuses with the name of the task; of many submits each is told for itself."""
    holder = Holder()
    await team.work(holder.agent)
    owner = await team.orc.submit("hold", lane="chat 7/ü")
    with pytest.raises(LaneBusy, match=f"lane 'chat 7/ü' is busy with task {owner.id}") as refused:
        await team.orc.submit("hold", lane="chat 7/ü", on_busy="reject")
    assert (refused.value.lane, refused.value.task_id, refused.value.exit_code) == ("chat 7/ü", owner.id, 4)
    with pytest.raises(SubmitRefused) as some:
        await team.orc.submit_many([Submission("hold", lane=lane, on_busy="reject") for lane in ("a", "chat 7/ü", "a")])
    created, *others = some.value.outcomes
    assert [type(other) for other in others] == [LaneBusy, LaneBusy]
    assert isinstance(others[1], LaneBusy)
    assert others[1].task_id == created.id  # type: ignore[attr-defined]
    holder.let_go.set()
    await owner.result(TIMEOUT_S)
    await (await team.orc.submit("hold", lane="chat 7/ü", on_busy="reject")).result(TIMEOUT_S)


async def test_interrupt(team: LocalTeam) -> None:
    """The running task is cancelled within a second, the new one is next, and those that waited come after it."""
    holder, order = Holder(), Notes(concurrency=1)
    await team.work(holder.agent, order.agent)
    owner = await team.orc.submit("hold", lane="x")
    await holder.runs(owner)
    waits = await team.orc.submit("note", {"lane": "x", "number": 1}, lane="x")
    new = await team.orc.submit("note", {"lane": "x", "number": 2}, lane="x", on_busy="interrupt")
    with pytest.raises(TaskCancelled, match=f"interrupted by task {new.id}"), anyio.fail_after(1):
        await owner.result()
    assert (await waits.result(TIMEOUT_S), await new.result(TIMEOUT_S)) == (1, 2)
    assert order.begun == {"x": [2, 1]}


async def test_replace(team: LocalTeam) -> None:
    """Those that wait are dropped, what runs goes on, and the new one is next."""
    holder = Holder()
    await team.work(holder.agent)
    owner = await team.orc.submit("hold", lane="x")
    await holder.runs(owner)
    dropped = await team.orc.submit_many([Submission("hold", lane="x") for _ in range(3)])
    new = await team.orc.submit("hold", lane="x", on_busy="replace")
    for handle in dropped:
        with pytest.raises(TaskCancelled, match=f"replaced by task {new.id}"):
            await handle.result(TIMEOUT_S)
    holder.let_go.set()
    await owner.result(TIMEOUT_S)
    await new.result(TIMEOUT_S)
    assert holder.started == [owner.id, new.id]


async def test_replaces_very_many(team: LocalTeam) -> None:
    """A lane with more tasks than one call may end is replaced all the same, and the order of the new ones is kept."""
    await team.orc.submit_many([Submission("hold", lane="x") for _ in range(1200)])
    new = [Submission("hold", lane="x", on_busy="replace"), Submission("hold", lane="x")]
    first, second = await team.orc.submit_many(new)
    keys = team.services.store.keys
    members = await team.services.store.execute("ZRANGE", keys.lane("x"), 0, -1)
    assert [id_.decode() for id_ in members] == [first.id, second.id]
    assert (await queries.counters(team.services.store))["cancelled"] == 1200


@pytest.mark.parametrize("on_busy", ["enqueue", "reject", "interrupt", "replace"])
async def test_the_same_key_is_the_same_task(team: LocalTeam, on_busy: Any) -> None:
    """A submit with a known key finds its task and does nothing to the lane, which that task keeps busy."""
    first = await team.orc.submit("hold", lane="x", key="k")
    again = await team.orc.submit("hold", lane="x", key="k", on_busy=on_busy)
    assert again.id == first.id
    assert (await first.status()).state is TaskState.READY


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lane": ""}, "lane '' is refused"),
        ({"lane": "x" * 257}, "257 bytes of at most 256"),
        ({"on_busy": "reject"}, "needs a lane"),
        ({"lane": "x", "on_busy": "drop"}, "use enqueue, reject, interrupt, replace"),
        ({"lane": "x", "on_busy": "replace", "delay": 5}, "leave out on_busy, or delay and at"),
    ],
)
async def test_refused_by_validation(team: LocalTeam, options: Any, words: str) -> None:
    """What cannot be meant is refused before anything is sent."""
    with pytest.raises(InvalidInput, match=words):
        await team.orc.submit("hold", **options)


async def test_children(team: LocalTeam) -> None:
    """A handler submits into lanes too; its own lane goes on with the child when it has ended."""
    agent, order = Agent("family"), list[str]()

    @agent.skill
    async def parent(ctx: TaskContext) -> str:
        child = await ctx.submit("child", lane="x", on_busy="enqueue")
        order.append("parent")
        return child.id

    @agent.skill
    async def child() -> None:
        order.append("child")

    await team.work(agent)
    handle = await team.orc.submit("parent", lane="x")
    await team.orc.task(await handle.result(TIMEOUT_S)).result(TIMEOUT_S)
    assert order == ["parent", "child"]


async def test_what_is_said_of_who_waits(team: LocalTeam) -> None:
    """A task that waits for its turn is ready; status and info name the lane, and the task that has the turn."""
    holder = Holder()
    await team.work(holder.agent)
    owner, second, third = await team.orc.submit_many([Submission("hold", lane="a b") for _ in range(3)])
    await holder.runs(owner)
    status = await third.status()
    assert status.state is TaskState.READY
    assert (status.detail.cause, status.detail.lane, status.detail.task) == (Cause.LANE, "a b", owner.id)
    assert status.detail.ahead == 2
    assert status.why == f"lane 'a b' is busy with task {owner.id}, which is with its agent, 2 tasks of it come first"
    assert (await second.status()).why == f"lane 'a b' is busy with task {owner.id}, which is with its agent"
    assert [(await handle.info()).lane for handle in (owner, second)] == ["a b", "a b"]
    listed = await queries.listing(team.services.store, states=[], limit=10)
    assert [(row.id, row.state) for row in listed] == [
        (owner.id, TaskState.RUNNING),
        (second.id, TaskState.READY),
        (third.id, TaskState.READY),
    ]
    holder.let_go.set()
    for handle in (owner, second, third):
        await handle.result(TIMEOUT_S)


async def test_cancelling_who_waits(team: LocalTeam) -> None:
    """One that waits for its turn ends at once, and is not waited for."""
    holder = Holder()
    await team.work(holder.agent)
    owner, second, third = await team.orc.submit_many([Submission("hold", lane="x") for _ in range(3)])
    await holder.runs(owner)
    await second.cancel("no need")
    with pytest.raises(TaskCancelled, match="no need"):
        await second.result(TIMEOUT_S)
    holder.let_go.set()
    await third.result(TIMEOUT_S)
    assert holder.started == [owner.id, third.id]
