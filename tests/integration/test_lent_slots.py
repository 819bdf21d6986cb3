"""Parents that wait for children lend their slots (protocol rule 32): no agent waits for itself without end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import pytest

from orchestrator import Agent, Cause, TaskContext
from orchestrator.client.handle import TaskHandle
from orchestrator.core.errors import TaskCancelled, TaskFailed
from orchestrator.tasks import scripts
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime import waiting
from orchestrator.workers.runtime.slots import Slots
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.workers.runtime.attempt import Attempt
    from tests.helpers.local_team import LocalTeam


class Family:
    """An agent whose skill `grow` runs a tree of tasks, and what it has seen.

    Attributes:
        running: handlers that run and do not wait.
        most: the most that ran at a time.
        held: attempts that have begun and not ended.
        most_held: the most of them at a time.
    """

    def __init__(self, *, concurrency: int = 1, name: str = "family") -> None:
        self.agent = Agent(name, concurrency=concurrency)
        self.running = self.most = self.held = self.most_held = 0
        self.order: list[str] = []

        @self.agent.skill
        async def grow(ctx: TaskContext, levels: int, width: int, path: str = "") -> int:
            self._begin()
            self.order.append(path)
            try:
                if levels == 1:
                    await asyncio.sleep(0)
                    return 1
                children = [
                    await ctx.submit("grow", {"levels": levels - 1, "width": width, "path": f"{path}{number}"})
                    for number in range(width)
                ]
                self.running -= 1
                try:
                    return 1 + sum(await asyncio.gather(*[child.result(as_=int) for child in children]))
                finally:
                    self.running += 1
                    self.most = max(self.most, self.running)
            finally:
                self.running -= 1
                self.held -= 1

    def _begin(self) -> None:
        self.running += 1
        self.held += 1
        self.most, self.most_held = max(self.most, self.running), max(self.most_held, self.held)


def tasks_of(levels: int, width: int) -> int:
    """The number of tasks of a tree."""
    return sum(width**level for level in range(levels))


async def test_one_slot_runs_a_tree(team: LocalTeam) -> None:
    """An agent with one slot runs a tree of its own tasks to its end, one task at a time, the deepest first."""
    family = Family()
    await team.work(family.agent)
    handle = await team.orc.submit("grow", {"levels": 3, "width": 2})
    assert await handle.result(TIMEOUT_S) == tasks_of(3, 2)
    assert family.most == 1
    assert family.most_held == 3
    assert family.order == ["", "0", "00", "01", "1", "10", "11"]


async def test_without_lending_a_tree_hangs(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a parent that keeps its slot waits for a child that has none."""
    monkeypatch.setattr(TaskHandle, "waiting_in", lambda handle, _: handle)
    family = Family()
    await team.work(family.agent)
    handle = await team.orc.submit("grow", {"levels": 2, "width": 1})
    with pytest.raises(TimeoutError):
        await handle.result(0.5)
    assert family.order == [""]
    await handle.cancel()


async def test_two_parents_of_two_slots(team: LocalTeam) -> None:
    """Both slots of an agent are held by parents, whose children run all the same."""
    family = Family(concurrency=2)
    await team.work(family.agent)
    handles = [await team.orc.submit("grow", {"levels": 2, "width": 1, "path": name}) for name in "ab"]
    assert [await handle.result(TIMEOUT_S) for handle in handles] == [2, 2]
    assert family.most <= 2


async def test_many_parents_wait_few_at_a_time(team: LocalTeam) -> None:
    """Of many queued parents, one slot begins the next when the tree of the one before has ended."""
    family = Family()
    handles = [await team.orc.submit("grow", {"levels": 3, "width": 1}) for _ in range(30)]
    await team.work(family.agent)
    for handle in handles:
        assert await handle.result(5 * TIMEOUT_S) == 3
    assert family.most == 1
    assert family.most_held <= 3 * 2  # slots x (1 + backlog) of each depth


@pytest.mark.slow
async def test_a_thousand_parents_wait_few_at_a_time(team: LocalTeam) -> None:
    """A thousand queued parents of one slot all end, and no more of them wait at a time than the inbox holds."""
    family = Family()
    handles = [await team.orc.submit("grow", {"levels": 2, "width": 1}) for _ in range(1000)]
    await team.work(family.agent)
    for handle in handles:
        assert await handle.result(120) == 2
    assert family.most == 1
    assert family.most_held <= 2 * 2  # slots x (1 + backlog) of each depth


async def test_a_slot_is_lent_to_deeper_tasks_only(team: LocalTeam) -> None:
    """While a parent waits for another agent, no second parent begins, as without lending; it goes on at once."""
    planner, counter = Agent("planner", concurrency=1), Agent("counter", concurrency=1)
    begun, go = list[int](), anyio.Event()

    @counter.skill
    async def count() -> int:
        await go.wait()
        return 1

    @planner.skill
    async def plan(ctx: TaskContext, number: int) -> int:
        begun.append(number)
        return await (await ctx.submit(count)).result()

    await team.work(planner)
    await team.work(counter)
    handles = [await team.orc.submit(plan, {"number": number}) for number in range(3)]
    await wait_for(lambda: begun == [0], "the first parent begins")
    await anyio.sleep(0.3)
    assert begun == [0]
    go.set()
    assert [await handle.result(TIMEOUT_S) for handle in handles] == [1, 1, 1]


async def test_a_tree_over_two_agents(team: LocalTeam) -> None:
    """A grandchild of the first agent goes into the slot that the grandparent lends."""
    first, second = Agent("first", concurrency=1), Agent("second", concurrency=1)

    @first.skill
    async def down(ctx: TaskContext, levels: int) -> int:
        if levels == 0:
            return 0
        return 1 + await (await ctx.submit("up", {"levels": levels - 1})).result(as_=int)

    @second.skill
    async def up(ctx: TaskContext, levels: int) -> int:
        if levels == 0:
            return 0
        return 1 + await (await ctx.submit("down", {"levels": levels - 1})).result(as_=int)

    await team.work(first)
    await team.work(second)
    assert await (await team.orc.submit(down, {"levels": 6})).result(TIMEOUT_S) == 6


async def test_the_deepest_parent_goes_on_first(team: LocalTeam) -> None:
    """Of several parents that want a slot back, the deepest gets it, before the others and before new tasks."""
    agent, other = Agent("family", concurrency=1), Agent("other", concurrency=9)
    order, blocked, go, busy = list[int](), list[bool](), anyio.Event(), anyio.Event()

    @other.skill
    async def signal() -> None:
        await go.wait()

    @agent.skill
    async def blocker() -> None:
        blocked.append(True)
        await busy.wait()

    @agent.skill
    async def parent(ctx: TaskContext, levels: int) -> None:
        below = ctx.submit("parent", {"levels": levels - 1}) if levels else ctx.submit(blocker)
        async for _ in ctx.as_completed([await ctx.submit(signal), await below]):
            order.append(levels)
            break

    await team.work(agent)
    await team.work(other)
    handle = await team.orc.submit(parent, {"levels": 2})
    lent = team.services.keys.lent("family")

    async def all_wait() -> bool:
        return bool(await team.services.store.execute("HLEN", lent) == 3)

    await wait_for(all_wait, "three parents wait")
    await wait_for(lambda: blocked, "the blocker has the slot")
    go.set()
    await anyio.sleep(0.2)
    assert order == []
    busy.set()
    await handle.result(TIMEOUT_S)
    assert order == [0, 1, 2]


async def test_as_completed_lends(team: LocalTeam) -> None:
    """A parent takes its children as they end, and holds its slot between two of them."""
    agent, running = Agent("family", concurrency=1), list[int]()

    @agent.skill
    async def child(number: int) -> int:
        running.append(number)
        return number

    @agent.skill
    async def parent(ctx: TaskContext) -> list[int]:
        children = [await ctx.submit(child, {"number": number}) for number in range(3)]
        results = [await each.result() async for each in ctx.as_completed(children)]
        return sorted(results)

    await team.work(agent)
    assert await (await team.orc.submit(parent)).result(TIMEOUT_S) == [0, 1, 2]


async def test_output_of_a_child(team: LocalTeam) -> None:
    """A parent that follows the output of its child lends its slot too."""
    agent = Agent("family", concurrency=1)

    @agent.skill
    async def child(ctx: TaskContext) -> None:
        for number in range(3):
            await ctx.emit(number)

    @agent.skill
    async def parent(ctx: TaskContext) -> list[int]:
        handle = await ctx.submit(child)
        return [chunk.data async for chunk in handle.output()]

    await team.work(agent)
    assert await (await team.orc.submit(parent)).result(TIMEOUT_S) == [0, 1, 2]


async def test_a_handler_in_a_thread(team: LocalTeam) -> None:
    """A plain `def` that awaits a child through the event loop lends its slot, and keeps its thread."""
    agent = Agent("family", concurrency=1)

    @agent.skill
    def child(ctx: TaskContext, levels: int) -> int:
        if levels == 0:
            return 0
        handle = anyio.from_thread.run(ctx.submit, "child", {"levels": levels - 1})
        return 1 + int(anyio.from_thread.run(handle.result))

    await team.work(agent)
    assert await (await team.orc.submit("child", {"levels": 3})).result(TIMEOUT_S) == 3


async def test_a_shared_child_that_is_not_deeper(team: LocalTeam) -> None:
    """Tasks that share children by key run with one slot, whichever of them submitted the child first."""
    agent, ran = Agent("memo", concurrency=1), list[int]()

    @agent.skill
    async def fib(ctx: TaskContext, number: int) -> int:
        ran.append(number)
        if number < 2:
            return number
        # The smaller one first, so that the larger one meets a child that its parent has submitted.
        below = [await ctx.submit("fib", {"number": number - by}, key=f"fib {number - by}") for by in (2, 1)]
        return sum([await handle.result() for handle in reversed(below)])

    await team.work(agent)
    assert await (await team.orc.submit(fib, {"number": 9}, key="fib 9")).result(TIMEOUT_S) == 34
    assert sorted(ran) == list(range(10))


class TestCycles:
    """A wait that would never end is refused at once, and the task becomes a dead letter that says so."""

    async def test_itself(self, team: LocalTeam) -> None:
        """A handler finds its own task by a key and awaits it."""
        agent = Agent("loop", concurrency=1)

        @agent.skill
        async def again(ctx: TaskContext) -> None:
            await (await ctx.submit("again", key="the same")).result()

        await team.work(agent)
        with pytest.raises(TaskFailed, match="would wait for itself: it awaits this task"):
            await (await team.orc.submit("again", key="the same")).result(TIMEOUT_S)

    async def test_an_ancestor(self, team: LocalTeam) -> None:
        """The last of three tasks awaits the first one, by its key."""
        agent = Agent("loop", concurrency=1)

        @agent.skill
        async def step(ctx: TaskContext, number: int) -> None:
            following = (number + 1) % 3
            await (await ctx.submit("step", {"number": following}, key=f"step {following}")).result()

        await team.work(agent)
        with pytest.raises(TaskFailed):
            await (await team.orc.submit("step", {"number": 0}, key="step 0")).result(TIMEOUT_S)
        errors = [(await team.orc.task(id_).info()).reason for id_ in await _dead(team)]
        assert any("which waits for" in error for error in errors), errors

    async def test_its_own_lane(self, team: LocalTeam) -> None:
        """A child in the lane of its parent gets its turn when the parent has ended."""
        agent = Agent("loop", concurrency=1)

        @agent.skill
        async def member(ctx: TaskContext) -> None:
            await (await ctx.submit("member", lane="one")).result()

        await team.work(agent)
        with pytest.raises(TaskFailed, match="would wait for itself"):
            await (await team.orc.submit("member", lane="one")).result(TIMEOUT_S)


async def _dead(team: LocalTeam) -> list[str]:
    keys = team.services.keys
    return [id_.decode() for id_ in await team.services.store.execute("ZRANGE", keys.dead, 0, -1)]


async def test_a_caught_cancellation_takes_the_slot_back(team: LocalTeam) -> None:
    """A handler that stops waiting goes on in a slot; the child goes on too."""
    agent, seen = Agent("family", concurrency=1), list[int]()
    go = anyio.Event()

    @agent.skill
    async def child() -> str:
        await go.wait()
        return "done"

    @agent.skill
    async def parent(ctx: TaskContext) -> str:
        handle = await ctx.submit(child)
        with anyio.move_on_after(0.1):
            await handle.result()
        seen.append(1)
        return await handle.result()

    await team.work(agent)
    handle = await team.orc.submit(parent)
    await anyio.sleep(0.3)
    assert seen == []  # the child has the slot
    go.set()
    assert await handle.result(TIMEOUT_S) == "done"
    assert seen == [1]


async def test_a_time_limit_ends_a_parent_that_wants_its_slot_back(team: LocalTeam) -> None:
    """The timeout runs on while a parent waits, also for its slot."""
    agent, go = Agent("family", concurrency=1), anyio.Event()

    @agent.skill
    async def child() -> None:
        await go.wait()

    @agent.skill(timeout=0.3, max_attempts=1)
    async def parent(ctx: TaskContext) -> None:
        handle = await ctx.submit(child)
        with anyio.move_on_after(0.05):
            await handle.result()

    await team.work(agent)
    with pytest.raises(TaskFailed, match="timeout"):
        await (await team.orc.submit(parent)).result(TIMEOUT_S)
    go.set()


@pytest.mark.parametrize("how", ["cancel", "stop", "pause"])
async def test_commands_reach_a_waiting_parent(team: LocalTeam, how: str) -> None:
    """A cancel ends a parent that waits, a stop interrupts it, a pause lets it wait; none of them begins a child."""
    agent, begun, go = Agent("family", concurrency=1), list[str](), anyio.Event()

    @agent.skill
    async def first() -> None:
        begun.append("first")
        await go.wait()

    @agent.skill
    async def second() -> str:
        begun.append("second")
        return "done"

    @agent.skill
    async def parent(ctx: TaskContext) -> str:
        begun.append("parent")
        handles = [await ctx.submit(first), await ctx.submit(second)]
        await handles[0].result()
        return await handles[1].result(as_=str)

    await team.work(agent)
    handle = await team.orc.submit(parent)
    await wait_for(lambda: begun == ["parent", "first"], "the first child to begin")
    if how == "cancel":
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(TIMEOUT_S)
        go.set()
        return
    if how == "pause":
        sent = await team.orc.admin.pause_agent("family")
    else:
        sent = await team.orc.admin.stop(agent="family", now=True)
    await sent.receipts()
    go.set()
    await anyio.sleep(0.3)
    assert begun == ["parent", "first"]
    if how == "pause":
        await team.orc.admin.resume_agent("family")
    else:
        await team.orc.admin.start(agent="family")
    assert await handle.result(TIMEOUT_S) == "done"
    assert begun.count("parent") == (1 if how == "pause" else 2)


async def test_nothing_is_left_behind(team: LocalTeam) -> None:
    """After the last wait no slot is lent, no task is awaited, and the statements of the worker are gone."""
    family = Family(concurrency=2)
    worker = await team.work(family.agent)
    for _ in range(3):
        assert await (await team.orc.submit("grow", {"levels": 3, "width": 2})).result(TIMEOUT_S) == 7
    keys, store = team.services.keys, team.services.store

    async def clean() -> bool:
        stated = await store.execute("HGET", keys.worker(worker.id), "lent:family")
        return stated is None and not await store.execute("EXISTS", keys.lent("family"))

    await wait_for(clean, "nothing is lent")


async def test_why_names_the_missing_children(team: LocalTeam) -> None:
    """The cause of a parent that waits names the children that have not ended, up to ten of them."""
    agent, go = Agent("family", concurrency=1), anyio.Event()

    @agent.skill
    async def child(number: int) -> None:
        if number:
            await go.wait()

    @agent.skill
    async def parent(ctx: TaskContext) -> list[str]:
        children = [await ctx.submit(child, {"number": number}) for number in range(13)]
        await asyncio.gather(*[each.result() for each in children])
        return [each.id for each in children]

    await team.work(agent)
    handle = await team.orc.submit(parent)

    async def missing() -> bool:
        return (await handle.status()).detail.missing == 12

    await wait_for(missing, "twelve children to be missing")
    found = (await handle.status()).detail
    assert found.cause is Cause.CHILDREN
    assert f"awaits 12 tasks, and lends its slot: {', '.join(found.children or ())} and 2 more" in found.text
    go.set()
    children = await handle.result(TIMEOUT_S)
    assert found.children == tuple(children[1:11])


@pytest.mark.slow
async def test_one_slot_runs_a_deep_tree(team: LocalTeam) -> None:
    """Eight levels, three children each: 3,280 tasks in one slot."""
    family = Family()
    await team.work(family.agent)
    handle = await team.orc.submit("grow", {"levels": 8, "width": 3})
    assert await handle.result(120) == tasks_of(8, 3)
    assert family.most == 1
    assert family.most_held <= 8 * 2


async def test_many_children_are_looked_at_once(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of the children of one `gather` change little in Redis while the parent awaits the others."""
    agent, looked, calls = Agent("family", concurrency=4), list[int](), list[int]()
    lend = scripts.lend

    def counted(*args: Any, rows: Sequence[scripts.WaitRow], **others: Any) -> Any:
        looked.extend(len(row.look.split()) for row in rows)
        calls.append(sum(len(row.look.split()) for row in rows))
        return lend(*args, rows=rows, **others)

    monkeypatch.setattr(scripts, "lend", counted)

    @agent.skill
    async def child() -> int:
        return 1

    @agent.skill
    async def parent(ctx: TaskContext) -> int:
        children = [await ctx.submit(child) for _ in range(300)]
        return sum(await asyncio.gather(*[each.result(as_=int) for each in children]))

    await team.work(agent)
    assert await (await team.orc.submit(parent)).result(3 * TIMEOUT_S) == 300
    # Each child about once, and a hundred every second; the ends of 300 children named 45,000 before.
    assert 100 <= sum(looked) <= 300 + 100 * 15
    assert max(calls) <= waiting.LOOK_AT


async def test_output_that_is_there_lends_nothing(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent keeps its slot between the chunks of a child when the next one is there."""
    agent, other, lent = Agent("family", concurrency=1), Agent("other", concurrency=1), list[str]()
    lend, was_lent = Slots.lend, anyio.Event()

    def noted(slots: Slots, attempt: Attempt) -> None:
        lent.append(attempt.delivery.task_id)
        was_lent.set()
        lend(slots, attempt)

    monkeypatch.setattr(Slots, "lend", noted)

    @other.skill
    async def child(ctx: TaskContext, *, at_once: bool) -> None:
        if not at_once:
            await was_lent.wait()
        for number in range(40):
            await ctx.emit(number)

    @agent.skill
    async def parent(ctx: TaskContext, *, first: bool) -> list[int]:
        nonlocal was_lent
        was_lent = anyio.Event()
        handle = await ctx.submit(child, {"at_once": first})
        if first:
            await handle.result()
            lent.clear()
        return [chunk.data async for chunk in handle.output()]

    await team.work(agent)
    await team.work(other)
    assert await (await team.orc.submit(parent, {"first": True})).result(TIMEOUT_S) == list(range(40))
    assert lent == []
    # The twin: it lends its slot until the first chunk is there.
    assert await (await team.orc.submit(parent, {"first": False})).result(TIMEOUT_S) == list(range(40))
    assert lent
