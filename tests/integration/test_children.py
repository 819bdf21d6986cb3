"""Child tasks: found again by a retried parent, bounded in depth, refused to an attempt that was taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Retry, TaskContext
from orchestrator.core.errors import KeyConflict, SubmitRefused, TaskFailed
from orchestrator.core.ids import new_task_id
from orchestrator.tasks.submission import Parent, Submission
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


async def test_a_retried_parent_finds_the_same_children(team: LocalTeam) -> None:
    """Children of an attempt that failed are those of the next one: run once each, their results at hand."""
    agent, ran = Agent("family", concurrency=5), list[int]()
    ids: list[list[str]] = []

    @agent.skill
    async def child(number: int) -> int:
        ran.append(number)
        return number * number

    @agent.skill(backoff=0)
    async def parent(ctx: TaskContext) -> int:
        handles = [await ctx.submit("child", {"number": number}) for number in range(4)]
        ids.append([handle.id for handle in handles])
        results = [await handle.result() for handle in handles]
        if ctx.attempt < 3:
            raise ValueError("after the children")
        return sum(results)

    await team.work(agent)
    handle = await team.orc.submit("parent")
    assert await handle.result(TIMEOUT_S) == 14
    assert sorted(ran) == [0, 1, 2, 3]
    assert ids[0] == ids[1] == ids[2]
    info = await team.orc.task(ids[0][2]).info()
    assert (info.parent, info.key) == (handle.id, f"{handle.id}/3")


async def test_children_carry_the_session(team: LocalTeam) -> None:
    """A child belongs to its parent's session, and its children too, unless it is given another."""
    agent = Agent("family", concurrency=5)

    @agent.skill
    async def tell(ctx: TaskContext, deeper: bool = True) -> list[str | None]:  # noqa: FBT001, FBT002
        if not deeper:
            return [ctx.session]
        same = await ctx.submit("tell", {"deeper": False})
        other = await ctx.submit("tell", {"deeper": False}, session="other")
        return [ctx.session, *await same.result(), *await other.result()]

    await team.work(agent)
    assert await (await team.orc.submit("tell", session="s 1")).result(TIMEOUT_S) == ["s 1", "s 1", "other"]
    assert await (await team.orc.submit("tell")).result(TIMEOUT_S) == [None, None, "other"]


async def test_a_child_may_have_a_key_of_its_own(team: LocalTeam) -> None:
    """Two parents that give the same key share the child; an empty key or session is refused, not replaced."""
    agent, ran = Agent("family", concurrency=5), list[str]()

    @agent.skill
    async def child() -> str:
        ran.append("once")
        return "shared"

    @agent.skill
    async def parent(ctx: TaskContext) -> Any:
        return await (await ctx.submit("child", key="the one")).result()

    @agent.skill(max_attempts=1)
    async def careless(ctx: TaskContext, what: str) -> None:
        if what == "key":
            await ctx.submit("child", key="")
        else:
            await ctx.submit("child", session="")

    await team.work(agent)
    handles = [await team.orc.submit("parent") for _ in range(3)]
    assert [await handle.result(TIMEOUT_S) for handle in handles] == ["shared"] * 3
    assert ran == ["once"]
    for what in ("key", "session"):
        with pytest.raises(TaskFailed, match=f"InvalidInput: {what} '' is refused"):
            await (await team.orc.submit("careless", {"what": what})).result(TIMEOUT_S)


async def test_another_child_at_the_same_place_is_a_conflict(team: LocalTeam) -> None:
    """A parent that asks for something else when it is retried is told so."""
    agent, seen = Agent("family", concurrency=5), list[BaseException]()

    @agent.skill
    async def child(number: int) -> int:
        return number

    @agent.skill(backoff=0)
    async def parent(ctx: TaskContext) -> str:
        try:
            await (await ctx.submit("child", {"number": ctx.attempt})).result()
        except KeyConflict as conflict:
            seen.append(conflict)
            return "told"
        raise ValueError("again")

    await team.work(agent)
    assert await (await team.orc.submit("parent")).result(TIMEOUT_S) == "told"
    assert len(seen) == 1


async def test_an_attempt_that_is_over_submits_no_children(team: LocalTeam) -> None:
    """A context that outlived its attempt is refused; so is a parent that nobody knows. Nothing is stored."""
    agent, contexts = Agent("family", concurrency=5), list[TaskContext]()

    @agent.skill(backoff=0)
    async def parent(ctx: TaskContext) -> int:
        contexts.append(ctx)
        if ctx.attempt == 1:
            raise Retry(delay=0)
        with pytest.raises(SubmitRefused, match="no longer run by this attempt"):
            await contexts[0].submit("child")
        return ctx.attempt

    await team.work(agent)
    assert await (await team.orc.submit("parent")).result(TIMEOUT_S) == 2
    with pytest.raises(SubmitRefused, match="no longer run by this attempt"):
        await contexts[1].submit("child")
    with pytest.raises(SubmitRefused):
        await team.orc.submit_one(Submission("child"), Parent(new_task_id(), "1", 0))
    assert await team.services.store.execute("EXISTS", team.services.keys.queue("skill:child")) == 0


@pytest.mark.parametrize("settings", [{"queue__max_child_depth": 3}], indirect=True)
async def test_children_of_children_are_bounded(team: LocalTeam) -> None:
    """A task that submits itself without end is stopped at the cap, with the cap in the reason."""
    agent = Agent("family", concurrency=8)

    @agent.skill(max_attempts=1)
    async def dig(ctx: TaskContext, depth: int) -> int:
        handle = await ctx.submit("dig", {"depth": depth + 1})
        try:
            return int(await handle.result())
        except TaskFailed as failed:
            assert "number 4 in a row; at most 3" in failed.reason  # noqa: PT017
            return depth

    await team.work(agent)
    assert await (await team.orc.submit("dig", {"depth": 0})).result(TIMEOUT_S) == 2


async def test_a_failed_child_fails_the_parent_that_waits(team: LocalTeam) -> None:
    """The join raises what happened to the child; the parent's reason names it."""
    agent = Agent("family", concurrency=5)

    @agent.skill(max_attempts=1)
    async def child() -> None:
        raise ValueError("childish")

    @agent.skill(max_attempts=1)
    async def parent(ctx: TaskContext) -> None:
        await (await ctx.submit("child")).result()

    await team.work(agent)
    with pytest.raises(TaskFailed, match=r"ChildFailed: task .* failed: ValueError: childish"):
        await (await team.orc.submit("parent")).result(TIMEOUT_S)


async def test_many_parents_wait_for_children_of_the_same_agent(team: LocalTeam) -> None:
    """Parents that wait leave slots to their children as long as there are any; joins run concurrently."""
    agent = Agent("family", concurrency=8)

    @agent.skill
    async def child(number: int) -> int:
        return number

    @agent.skill
    async def parent(ctx: TaskContext, size: int) -> int:
        results: list[int] = []

        async def join(number: int) -> None:
            results.append(await (await ctx.submit("child", {"number": number})).result())

        async with anyio.create_task_group() as group:
            for number in range(size):
                group.start_soon(join, number)
        return sum(results)

    await team.work(agent)
    handles = [await team.orc.submit("parent", {"size": 10}) for _ in range(7)]
    assert [await handle.result(TIMEOUT_S) for handle in handles] == [45] * 7
