"""`ctx.join` with real workers: attempts that end while tasks have not, and go on when these have."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio import from_thread

from orchestrator import (
    Agent,
    Cause,
    ChildFailed,
    InvalidInput,
    JoinChanged,
    Joined,
    JoinTimeout,
    Reject,
    Retry,
    Submission,
    TaskCancelled,
    TaskContext,
    TaskExpired,
    TaskFailed,
    TaskFilter,
    TaskHandle,
    TaskState,
    UpgradeUnfinished,
)
from orchestrator.core.formats import Feature, Floor
from orchestrator.workers.testing import run_skill
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

pytestmark = pytest.mark.every_server
LONG_S = 6 * TIMEOUT_S


async def joins(handle: TaskHandle[Any]) -> None:
    """Wait until a task waits for others without a slot."""

    async def waits() -> bool:
        return (await handle.status()).state is TaskState.JOINING

    await wait_for(waits, "joining", TIMEOUT_S)


def counter(**options: Any) -> tuple[Agent, list[str]]:
    """An agent with one slot whose `total` joins children that it submits, and the attempts that it began."""
    agent, begun = Agent("counter", concurrency=1), list[str]()

    @agent.skill
    async def double(n: int) -> int:
        if n < 0:
            raise Reject(f"{n} is negative")
        return 2 * n

    @agent.skill
    async def total(ctx: TaskContext, numbers: list[int]) -> Any:
        begun.append(ctx.task_id)
        children = [await ctx.submit(double, {"n": n}) for n in numbers]
        found = await ctx.join(children, **options)
        return [one.value if one.error is None else type(one.error).__name__ for one in found if one.ended]

    return agent, begun


async def test_a_parent_holds_no_slot(team: LocalTeam) -> None:
    """An agent with one slot runs a parent and its children; the join counts no attempt."""
    agent, begun = counter()
    await team.work(agent)
    handle = await team.orc.submit("total", {"numbers": [1, 2, 3]})
    assert await handle.result(LONG_S) == [2, 4, 6]
    info = await handle.info()
    assert (len(begun), info.attempts, info.state) == (2, 1, TaskState.SUCCEEDED)
    assert [one.outcome for one in info.history] == ["joining", "succeeded"]


async def test_children_that_have_ended(team: LocalTeam) -> None:
    """A join of tasks that have ended returns at once."""
    agent = Agent("clerk", concurrency=1)
    begun: list[int] = []

    @agent.skill
    async def double(n: int) -> int:
        return 2 * n

    @agent.skill
    async def total(ctx: TaskContext) -> list[int]:
        begun.append(1)
        children = await ctx.submit_many(Submission("double", {"n": n}) for n in range(3))
        for child in children:
            await child.result()
        nothing: list[TaskHandle[int]] = []
        return [one.value for one in [*await ctx.join(children), *await ctx.join(nothing)]]

    await team.work(agent)
    assert await (await team.orc.submit("total")).result(LONG_S) == [0, 2, 4]
    assert len(begun) == 1


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_tree_on_one_slot(team: LocalTeam, *, full: bool) -> None:
    """A tree of depth 8 and width 3 completes on one worker with one slot; a thin one is quicker."""
    agent = Agent("tree", concurrency=1)

    @agent.skill
    async def grow(ctx: TaskContext, depth: int) -> int:
        if depth == 0:
            return 1
        depths = (depth - 1,) * 3 if full else (depth - 1, 0, 0)
        children = [await ctx.submit("grow", {"depth": each}) for each in depths]
        found = await ctx.join(children)
        return 1 + sum(int(one.value) for one in found)

    await team.work(agent)
    handle = await team.orc.submit("grow", {"depth": 8})
    assert await handle.result(20 * LONG_S) == ((3**9 - 1) // 2 if full else 1 + 8 * 3)


async def test_a_thousand_children(team: LocalTeam) -> None:
    """A parent of 1,000 children runs twice: once to submit them, and once when the last one has ended."""
    agent = Agent("many", concurrency=16)
    begun: list[str] = []

    @agent.skill
    async def leaf(n: int) -> int:
        return n

    @agent.skill
    async def parent(ctx: TaskContext) -> int:
        begun.append(ctx.task_id)
        children = await ctx.submit_many(Submission("leaf", {"n": n}) for n in range(1000))
        return sum([one.value for one in await ctx.join(children)])

    await team.work(agent)
    assert await (await team.orc.submit("parent")).result(LONG_S) == 499_500
    assert len(begun) == 2


@pytest.mark.parametrize(("until", "ended"), [("any", 1), (3, 3)])
async def test_enough_of_them(team: LocalTeam, until: Any, ended: int) -> None:
    """A join may be over before all tasks have ended; the others go on."""
    agent, gates = Agent("racer", concurrency=8), anyio.Event()

    @agent.skill
    async def run(n: int) -> int:
        if n >= ended:
            await gates.wait()
        return n

    @agent.skill
    async def race(ctx: TaskContext) -> tuple[list[int], int]:
        children = [await ctx.submit(run, {"n": n}) for n in range(5)]
        found = await ctx.join(children, until=until)
        return [one.value for one in found if one.ended], len(found)

    await team.work(agent)
    handle = await team.orc.submit("race")
    assert await handle.result(LONG_S) == [list(range(ended)), 5]
    gates.set()


async def test_failures(team: LocalTeam) -> None:
    """A failed child ends the join and its parent as a dead letter, or is one of the results."""
    agent, _ = counter()
    await team.work(agent)
    failing = await team.orc.submit("total", {"numbers": [1, -1, 2]})
    with pytest.raises(TaskFailed, match=r"ChildFailed: .*-1 is negative") as raised:
        await failing.result(LONG_S)
    assert len(raised.value.errors) == 1


async def test_failures_are_collected(team: LocalTeam) -> None:
    """With `collect` the join waits for all, and a failure is one of the results."""
    agent, _ = counter(failed="collect")
    await team.work(agent)
    handle = await team.orc.submit("total", {"numbers": [1, -1, 2]})
    assert await handle.result(LONG_S) == [2, "ChildFailed", 4]


async def test_the_rest_is_cancelled(team: LocalTeam) -> None:
    """With `cancel-rest` the first failure cancels the others, with their children, and is raised."""
    agent = Agent("strict", concurrency=4)
    caught: list[str] = []

    @agent.skill
    async def fail() -> None:
        raise Reject("no")

    @agent.skill
    async def wait() -> None:
        await anyio.sleep_forever()

    @agent.skill
    async def both(ctx: TaskContext) -> str:
        children = [await ctx.submit(wait, delay=3600), await ctx.submit(fail), await ctx.submit(wait)]
        try:
            await ctx.join(children, failed="cancel-rest")
        except ChildFailed as failed:
            caught.append(failed.task_id)
            return children[0].id
        return "not failed"

    await team.work(agent)
    rest = await (await team.orc.submit("both")).result(LONG_S)
    with pytest.raises(TaskCancelled, match=caught[0]):
        await team.orc.task(rest).result(LONG_S)


async def test_the_failure_that_ended_a_join_stays(team: LocalTeam) -> None:
    """With `cancel-rest` each later attempt raises the error of the same task, not of one that was cancelled."""
    agent = Agent("strict", concurrency=4)
    caught: list[tuple[str, str]] = []

    @agent.skill
    async def fail() -> None:
        raise Reject("no")

    @agent.skill
    async def wait() -> None:
        """Do nothing."""

    @agent.skill
    async def both(ctx: TaskContext) -> None:
        children = [await ctx.submit(wait, delay=3600), await ctx.submit(fail)]
        try:
            await ctx.join(children, failed="cancel-rest")
        except (ChildFailed, TaskCancelled) as failed:
            caught.append((type(failed).__name__, failed.task_id))
            with pytest.raises(TaskCancelled):
                await children[0].result()
        if len(caught) < 2:
            raise Retry(0.01)

    await team.work(agent)
    await (await team.orc.submit("both")).result(LONG_S)
    assert [name for name, _ in caught] == ["ChildFailed", "ChildFailed"]
    assert caught[0] == caught[1]


async def test_a_join_that_was_met_stays(team: LocalTeam) -> None:
    """A failure after a join has returned is not raised in a later attempt."""
    agent = Agent("racer", concurrency=1)
    begun: list[int] = []

    @agent.skill
    async def win() -> int:
        return 1

    @agent.skill
    async def fail() -> None:
        raise Reject("no")

    @agent.skill
    async def race(ctx: TaskContext) -> list[int | None]:
        begun.append(1)
        first, second = await ctx.submit(win), await ctx.submit(fail, delay=3600)
        found = await ctx.join([second, first], until="any")
        await second.cancel()
        await ctx.join([second], failed="collect")
        if len(begun) < 3:
            raise Retry(0.01)
        return [one.value for one in found if one.ended and one.error is None]

    await team.work(agent)
    assert await (await team.orc.submit("race")).result(LONG_S) == [1]
    assert len(begun) == 3


async def test_a_success_and_a_failure_before_the_attempt(team: LocalTeam) -> None:
    """A failure between the end of a join and the next attempt does not count if enough tasks have succeeded."""
    agent = Agent("clerk", concurrency=2)

    @agent.skill
    async def win() -> int:
        return 1

    @agent.skill
    async def later() -> None:
        """Do nothing."""

    @agent.skill
    async def race(ctx: TaskContext) -> int:
        slow, quick = await ctx.submit(later, delay=3600), await ctx.submit(win)
        await quick.result()
        await slow.cancel()
        found: list[Joined[Any]] = await ctx.join([slow, quick], until="any")
        return int(found[1].value)

    await team.work(agent)
    assert await (await team.orc.submit("race")).result(LONG_S) == 1


async def test_a_join_that_changes(team: LocalTeam) -> None:
    """An attempt that joins other tasks than the one for which the join was over makes its task a dead letter."""
    agent = Agent("fickle", concurrency=1)
    begun: list[int] = []

    @agent.skill
    async def leaf() -> int:
        return 1

    @agent.skill
    async def wait(ctx: TaskContext) -> None:
        begun.append(1)
        children = [await ctx.submit(leaf) for _ in range(3)]
        await ctx.join(children[: 2 if len(begun) < 3 else 3])
        raise Retry(0.01)

    await team.work(agent)
    with pytest.raises(TaskFailed, match=JoinChanged.__name__):
        await (await team.orc.submit("wait")).result(LONG_S)
    assert len(begun) == 3


async def test_a_child_that_ended_before_is_not_run_again(team: LocalTeam, redis_client: Any) -> None:
    """A child that had ended when the join began is kept while its parent waits."""
    agent = Agent("clerk", concurrency=1)
    ids: list[str] = []

    @agent.skill
    async def quick() -> int:
        return 1

    @agent.skill
    async def slow() -> int:
        return 2

    @agent.skill
    async def both(ctx: TaskContext) -> None:
        first, second = await ctx.submit(quick), await ctx.submit(slow, delay=3600)
        await first.result()
        ids.append(first.id)
        await ctx.join([first, second])

    await team.work(agent)
    handle = await team.orc.submit("both")
    await joins(handle)
    keys = team.services.keys
    assert redis_client.ttl(keys.task(ids[0])) >= redis_client.ttl(keys.task(handle.id))


async def test_children_of_an_earlier_join_are_kept(team: LocalTeam, redis_client: Any) -> None:
    """A later join that waits much longer keeps the children of the earlier ones, met or late, with their keys."""
    agent = Agent("clerk", concurrency=1)
    ids: list[str] = []

    @agent.skill
    async def leaf() -> int:
        return 1

    @agent.skill
    async def several(ctx: TaskContext) -> None:
        met, late = await ctx.submit(leaf, key="met"), await ctx.submit(leaf, key="late", delay=0.3)
        last = await ctx.submit(leaf, delay=3600)
        ids[:] = [met.id, late.id]
        await ctx.join([met])
        await ctx.join([late], deadline=0.1, default=None)
        await late.result()
        await ctx.join([last], deadline=60 * 86_400)

    await team.work(agent)
    handle = await team.orc.submit("several")

    async def waits_for_the_last() -> bool:
        status = await handle.status()
        return status.state is TaskState.JOINING and not {*(status.detail.children or ())} & {*ids}

    await wait_for(waits_for_the_last, "the last join", LONG_S)
    keys = team.services.keys
    await wait_for(lambda: redis_client.ttl(keys.task(handle.id)) > 60 * 86_400, "the verdict", LONG_S)
    waits_s = redis_client.ttl(keys.task(handle.id))
    assert [redis_client.ttl(keys.task(id_)) >= waits_s for id_ in ids] == [True, True]
    names = [(await team.orc.task(id_).info()).key or "" for id_ in ids]
    assert [redis_client.ttl(keys.idempotency(name)) >= waits_s for name in names] == [True, True]


async def test_cancelled_and_deleted_children_have_failed(team: LocalTeam) -> None:
    """A child that an operator cancels, or that was deleted, has failed."""
    agent = Agent("clerk", concurrency=2)

    @agent.skill
    async def later() -> None:
        """Do nothing."""

    @agent.skill
    async def both(ctx: TaskContext) -> list[str]:
        children = [await ctx.submit(later, delay=3600) for _ in range(2)]
        return [type(one.error).__name__ for one in await ctx.join(children, failed="collect")]

    await team.work(agent)
    handle = await team.orc.submit("both")
    await joins(handle)
    detail = (await handle.status()).detail
    assert (detail.cause, detail.missing) == (Cause.CHILDREN, 2)
    first, second = detail.children or ()
    await team.orc.task(first).cancel()
    deleted = await team.orc.admin.delete([first])
    await deleted.receipts(timeout=LONG_S)
    await team.orc.task(second).cancel()
    assert await handle.result(LONG_S) == [TaskExpired.__name__, TaskCancelled.__name__]


async def test_deadline(team: LocalTeam) -> None:
    """After its deadline a join returns the default, in each later attempt too, or the task ends as a dead letter."""
    agent = Agent("hasty", concurrency=2)

    @agent.skill
    async def later() -> None:
        """Do nothing."""

    @agent.skill
    async def wait(ctx: TaskContext, *, default: bool) -> Any:
        children = [await ctx.submit(later, delay=3600)]
        soon: Any = timedelta(milliseconds=200) if default else datetime.now(UTC) + timedelta(milliseconds=200)
        if not default:
            return await ctx.join(children, deadline=soon)
        first = await ctx.join(children, deadline=soon, default="nothing")
        return [first, await ctx.join(children, deadline=soon, default="again")]

    await team.work(agent)
    assert await (await team.orc.submit("wait", {"default": True})).result(LONG_S) == ["nothing", "again"]
    with pytest.raises(TaskFailed, match=JoinTimeout.__name__) as raised:
        await (await team.orc.submit("wait", {"default": False})).result(LONG_S)
    assert len(raised.value.errors) == 1


async def test_several_joins(team: LocalTeam) -> None:
    """A handler that joins again and again finds the results of its earlier joins."""
    agent = Agent("steps", concurrency=1)

    @agent.skill
    async def add(n: int) -> int:
        return n + 1

    @agent.skill
    async def steps(ctx: TaskContext) -> int:
        n = 0
        for _ in range(4):
            (one,) = await ctx.join([await ctx.submit(add, {"n": n})])
            n = one.value
        return n

    await team.work(agent)
    assert await (await team.orc.submit("steps")).result(LONG_S) == 4


async def test_a_cycle_is_refused(team: LocalTeam) -> None:
    """A child cannot join its parent."""
    agent = Agent("circle", concurrency=2)

    @agent.skill
    async def child(ctx: TaskContext, parent: str) -> None:
        await ctx.join([team.orc.task(parent)])

    @agent.skill
    async def parent(ctx: TaskContext) -> str:
        (one,) = await ctx.join([await ctx.submit(child, {"parent": ctx.task_id}, max_attempts=1)], failed="collect")
        return str(one.error)

    await team.work(agent)
    assert "would wait for itself" in await (await team.orc.submit("parent")).result(LONG_S)


async def test_an_awaited_task_that_joins(team: LocalTeam) -> None:
    """A parent that awaits a child in its only slot lends it to the tasks that the child joins."""
    agent = Agent("mixed", concurrency=1)

    @agent.skill
    async def leaf() -> int:
        return 1

    @agent.skill
    async def middle(ctx: TaskContext) -> int:
        return sum(one.value for one in await ctx.join([await ctx.submit(leaf) for _ in range(3)]))

    @agent.skill
    async def top(ctx: TaskContext) -> int:
        return await (await ctx.submit(middle)).result(LONG_S)

    await team.work(agent)
    assert await (await team.orc.submit("top")).result(LONG_S) == 3


async def test_cancel(team: LocalTeam) -> None:
    """A cancel of a task that joins ends it at once, with its children."""
    agent = Agent("clerk", concurrency=2)

    @agent.skill
    async def later() -> None:
        """Do nothing."""

    @agent.skill
    async def wait(ctx: TaskContext) -> None:
        await ctx.join([await ctx.submit(later, delay=3600)])

    await team.work(agent)
    handle = await team.orc.submit("wait")
    await joins(handle)
    (child,) = (await handle.status()).detail.children or ()
    await handle.cancel("enough")
    with pytest.raises(TaskCancelled, match="enough"):
        await handle.result(LONG_S)
    assert (await team.orc.task(child).status()).state is TaskState.CANCELLED


async def test_lists_and_counts(team: LocalTeam) -> None:
    """Lists, counts and `why` know tasks that join."""
    agent = Agent("clerk", concurrency=2)

    @agent.skill
    async def later() -> None:
        """Do nothing."""

    @agent.skill
    async def wait(ctx: TaskContext, count: int) -> None:
        await ctx.join([await ctx.submit(later, delay=3600) for _ in range(count)], deadline=7200)

    await team.work(agent)
    handle = await team.orc.submit("wait", {"count": 12})
    await joins(handle)
    listed = [one.id async for one in team.orc.tasks.list(TaskFilter(states=["joining"]))]
    assert listed == [handle.id]
    status = await handle.status()
    children = status.detail.children or ()
    assert (len(children), status.detail.missing) == (10, 12)
    assert "joins 12 tasks without a slot since" in status.why
    assert f"{children[0]}, {children[1]}" in status.why
    assert "and 2 more" in status.why
    assert status.detail.child == children[0]
    assert status.detail.until is not None


async def test_refused_beside_older_programs(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older programs would end a child without a word to its parent, so nothing is registered."""
    agent, refused = Agent("clerk", concurrency=2), list[str]()
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.JOINS)

    @agent.skill
    async def later() -> None:
        """Do nothing."""

    @agent.skill
    async def wait(ctx: TaskContext) -> None:
        child = await ctx.submit(later, delay=3600)
        with pytest.raises(UpgradeUnfinished) as error:
            await ctx.join([child])
        refused.append(str(error.value))

    await team.work(agent)
    handle = await team.orc.submit("wait")
    await handle.result(LONG_S)
    assert "a join of tasks" in refused[0]


async def test_invalid_calls(team: LocalTeam) -> None:
    """Wrong arguments are refused before anything is sent."""
    agent, refused = Agent("clerk"), list[str]()

    @agent.skill
    async def later() -> None:
        """Do nothing."""

    @agent.skill
    async def wait(ctx: TaskContext) -> None:
        child = await ctx.submit(later, delay=3600)
        wrong: list[dict[str, Any]] = [
            {"until": 0},
            {"until": True},
            {"until": "most"},
            {"until": 2},
            {"failed": "ignore"},
            {"default": 1},
            {"deadline": "soon"},
        ]
        for options in wrong:
            with pytest.raises(InvalidInput) as error:
                await ctx.join([child], **options)
            refused.append(str(error.value))
        none: Any = child.id
        with pytest.raises(InvalidInput) as error:
            await ctx.join([none])
        refused.append(str(error.value))

    await team.work(agent)
    await (await team.orc.submit("wait")).result(LONG_S)
    assert len(refused) == 8
    assert 'until= of join must be "all", "any" or a number of tasks from 1' in refused[0]
    assert "more ends than there are tasks (1)" in refused[3]
    assert "failed= of join must be one of raise, collect, cancel-rest" in refused[4]
    assert "default= needs deadline=" in refused[5]
    assert "join takes handles of tasks" in refused[7]


async def test_a_handler_in_a_thread(team: LocalTeam) -> None:
    """A `def` handler joins from its thread."""
    agent = Agent("threads", concurrency=1)

    @agent.skill
    async def leaf() -> int:
        return 1

    @agent.skill
    def wait(ctx: TaskContext) -> int:
        child = from_thread.run(ctx.submit, "leaf")
        (found,) = from_thread.run(ctx.join, [child])
        return int(found.value)

    await team.work(agent)
    assert await (await team.orc.submit("wait")).result(LONG_S) == 1


async def test_a_task_group(team: LocalTeam) -> None:
    """Joins of one attempt beside each other end it together; later attempts pass one after the other."""
    agent = Agent("groups", concurrency=1)

    @agent.skill
    async def leaf(n: int) -> int:
        return n

    @agent.skill
    async def wait(ctx: TaskContext) -> list[int]:
        found: dict[int, int] = {}
        children = [await ctx.submit(leaf, {"n": n}) for n in range(3)]

        async def one(n: int) -> None:
            (joined,) = await ctx.join([children[n]])
            found[n] = joined.value

        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(one, n)
        return [found[n] for n in range(3)]

    await team.work(agent)
    assert await (await team.orc.submit("wait")).result(LONG_S) == [0, 1, 2]


@pytest.mark.parametrize(("children", "verdict"), [([3, 4], "succeeded"), ([3, TimeoutError()], "succeeded")])
async def test_without_a_team(children: list[Any], verdict: str) -> None:
    """`run_skill` joins scripted children."""
    agent = Agent("alone")

    @agent.skill
    async def leaf() -> int:
        return 1

    @agent.skill
    async def wait(ctx: TaskContext) -> int:
        both = [await ctx.submit("leaf") for _ in range(2)]
        found = await ctx.join(both, deadline=5, default=None)
        return -1 if found is None else sum(int(one.value) for one in found)

    @agent.skill
    async def first_of_two(ctx: TaskContext) -> int:
        found = await ctx.join([await ctx.submit("leaf") for _ in range(2)], until="any", deadline=5)
        return sum(int(one.value) for one in found if one.ended)

    @agent.skill
    async def all_of_two(ctx: TaskContext) -> None:
        await ctx.join([await ctx.submit("leaf") for _ in range(2)])

    done = await run_skill(wait, children={"leaf": children})
    assert (done.verdict, done.value) == (verdict, 7 if children == [3, 4] else -1)
    early = await run_skill(first_of_two, children={"leaf": [TimeoutError(), 3]})
    assert (early.verdict, early.value) == ("succeeded", 3)
    endless = await run_skill(all_of_two, children={"leaf": [TimeoutError(), 3]})
    assert endless.verdict == "join"
    unscripted = await run_skill(wait)
    assert (unscripted.verdict, unscripted.reason) == ("join", "it joins tasks that have not ended")


async def test_a_continued_handler(team: LocalTeam) -> None:
    """A handler that catches the end of its attempt still ends with the join."""
    agent = Agent("stubborn", concurrency=1)
    begun: list[float] = []

    @agent.skill
    async def leaf() -> int:
        return 1

    @agent.skill
    async def wait(ctx: TaskContext) -> int:
        begun.append(time.monotonic())
        try:
            found: list[Joined[int]] = await ctx.join([await ctx.submit(leaf)])
        except BaseException:  # noqa: BLE001 - the test
            return 7
        return found[0].value

    await team.work(agent)
    assert await (await team.orc.submit("wait")).result(LONG_S) == 1
    assert len(begun) == 2
