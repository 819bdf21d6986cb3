"""Locks in `run_skill` and `make_context`: real ones, of an attempt that has no task in Redis."""

from __future__ import annotations

import pytest

from orchestrator import Agent, InvalidInput, LockBusy, TaskContext
from orchestrator.workers.testing import make_context, run_skill
from tests.helpers.waiting import wait_for

agent = Agent("ed")


@agent.skill(lock="session")
async def edit(ctx: TaskContext) -> list[int | None]:
    """Hold a lock, and the session."""
    async with ctx.locks.hold("n") as lease:
        seen = await ctx.locks.peek("n")
        assert seen is not None
        assert seen.fence == lease.fence
        with pytest.raises(LockBusy):
            async with ctx.locks.hold("n", wait=0):
                pytest.fail("it is held")
        await lease.extend(5)
    assert await ctx.locks.peek("n") is None
    again = await ctx.locks.try_acquire("n")
    assert again is not None
    await again.release()
    return [ctx.fence, lease.fence]


async def test_run_skill() -> None:
    """A skill with lock="session" runs without a team, and its handler may lock."""
    outcome = await run_skill(edit, session="s")
    own, lock = outcome.value
    assert own is not None
    assert lock is not None
    assert lock > own


async def test_without_session() -> None:
    """Without a session there is nothing to have for itself; named locks are the pool's."""
    outcome = await run_skill(edit)
    assert outcome.value[0] is None


async def test_make_context() -> None:
    """A context of a test has locks too."""
    ctx = make_context(session="s")
    assert ctx._resources.locks_in_use is None
    assert (ctx.locks.scope, ctx.locks.within("agent:ed").scope) == ("session:s", "agent:ed")
    async with ctx.locks.hold("n"):
        assert [lock.name for lock in await ctx.locks.list()] == ["n"]
    proof = await ctx._resources.locks.execution.session.proof()
    assert ctx.fence == proof.fence


def test_lock_of_a_skill_is_checked() -> None:
    """A misspelt lock= is refused when the skill is declared."""
    with pytest.raises(InvalidInput, match="lock must be one of task, session, agent"):
        agent.skill(lock="sesion")  # type: ignore[call-overload]


@pytest.mark.parametrize("wait", [0, 0.05])
async def test_a_held_lock_is_waited_for(wait: float) -> None:
    """Who waits for what the handler itself holds is told after its time that it is busy."""
    ctx = make_context(session="s")
    async with ctx.locks.hold("n"):
        with pytest.raises(LockBusy):
            async with ctx.locks.hold("n", wait=wait):
                pytest.fail("it is held")


async def test_a_held_lock_is_renewed() -> None:
    """A lock of a context alone outlives its ttl, because a timer renews it, and the timer ends with the lock."""
    ctx = make_context(session="s")
    async with ctx.locks.hold("n", ttl=0.2) as lease:
        first = lease.deadline
        await wait_for(lambda: lease.deadline > first + 0.1, "two renewals")
        assert lease.held
    renewer = ctx._resources.locks_in_use.named._renewer  # type: ignore[union-attr]
    assert renewer._timer is None
