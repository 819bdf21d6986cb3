"""When a Redis that did not answer excuses an attempt."""

from __future__ import annotations

import pytest

from orchestrator.core.errors import Fenced, OrchestratorError, ServerFull, ServerUnavailable
from workers import Agent, TaskContext
from workers.runtime.hurt_server import PUT_OFF_MAX, REMEMBERED, HurtServer, PutOff
from workers.testing import run_skill

agent = Agent("agent")


@agent.skill
async def fenced(ctx: TaskContext) -> None:
    """Let out what a lost attempt is told."""
    raise Fenced(ctx.task_id)


def test_a_redis_that_is_not_the_pools_excuses_nothing() -> None:
    """A handler that uses another server, which is away or full, has failed."""
    foreign = HurtServer("t", ours=False, put_off=PutOff())
    assert not foreign.excuses(ServerUnavailable("away"))
    assert not foreign.excuses(ServerFull("full"))
    assert not HurtServer("t", ours=True, put_off=PutOff()).excuses(ValueError("boom"))


def test_a_redis_that_never_answers_excuses_so_often() -> None:
    """After that the failures of this task count, not those of others; a full server always excuses."""
    put_off = PutOff()
    task, other = (HurtServer(name, ours=True, put_off=put_off) for name in "ab")
    assert [task.excuses(ServerUnavailable("away")) for _ in range(PUT_OFF_MAX + 1)] == [True] * PUT_OFF_MAX + [False]
    assert other.excuses(ServerUnavailable("away"))
    assert all(task.excuses(ServerFull("full")) for _ in range(PUT_OFF_MAX + 1))


def test_what_is_remembered_is_bounded() -> None:
    """The oldest tasks are forgotten."""
    put_off = PutOff()
    for n in range(REMEMBERED + 5):
        assert put_off.once_more(str(n))
    assert len(put_off._times) == REMEMBERED


async def test_an_attempt_that_lets_fenced_out_has_no_verdict() -> None:
    """There is nothing to store; the test of a handler says so and does not wait."""
    with pytest.raises(OrchestratorError, match="let Fenced out"):
        await run_skill(fenced)
