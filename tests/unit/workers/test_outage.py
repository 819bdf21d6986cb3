"""When a Redis that did not answer exempts an attempt."""

from __future__ import annotations

import pytest

from orchestrator import Agent, TaskContext
from orchestrator.core.errors import Fenced, FormatMismatch, OrchestratorError, ServerFull, ServerUnavailable
from orchestrator.workers.runtime.verdicts import MAX_OUTAGE_RETRIES, REMEMBERED, OutagePolicy, OutageRetries
from orchestrator.workers.testing import run_skill

agent = Agent("agent")


@agent.skill
async def fenced(ctx: TaskContext) -> None:
    """Let out what a lost attempt is told."""
    raise Fenced(ctx.task_id)


def test_a_redis_that_is_not_the_pools_exempts_nothing() -> None:
    """A handler that uses another server, which is away or full, has failed."""
    foreign = OutagePolicy("t", "ours", ours=False, retries=OutageRetries())
    assert not foreign.exempts(ServerUnavailable("away"))
    assert not foreign.exempts(ServerFull("full"))
    assert not OutagePolicy("t", "ours", ours=True, retries=OutageRetries()).exempts(ValueError("boom"))


def test_a_pool_that_admits_this_version_no_more() -> None:
    """Another worker takes the task; a client of another pool, or of data that it does not read, has failed."""
    policy = OutagePolicy("t", "ours", ours=False, retries=OutageRetries())
    assert policy.exempts(FormatMismatch("old", shut_out_of="ours"))
    assert not policy.exempts(FormatMismatch("old", shut_out_of="other"))
    assert not policy.exempts(FormatMismatch("unreadable"))


def test_a_redis_that_never_answers_exempts_so_often() -> None:
    """After that the failures of this task count, not those of others; a full server always exempts."""
    retries = OutageRetries()
    task, other = (OutagePolicy(name, "ours", ours=True, retries=retries) for name in "ab")
    assert [task.exempts(ServerUnavailable("away")) for _ in range(MAX_OUTAGE_RETRIES + 1)] == [
        True
    ] * MAX_OUTAGE_RETRIES + [False]
    assert other.exempts(ServerUnavailable("away"))
    assert all(task.exempts(ServerFull("full")) for _ in range(MAX_OUTAGE_RETRIES + 1))


def test_what_is_remembered_is_bounded() -> None:
    """The oldest tasks are forgotten."""
    retries = OutageRetries()
    for n in range(REMEMBERED + 5):
        assert retries.count(str(n))
    assert len(retries._times) == REMEMBERED


async def test_an_attempt_that_lets_fenced_out_has_no_verdict() -> None:
    """There is nothing to store; the test of a handler says so and does not wait."""
    with pytest.raises(OrchestratorError, match="raised Fenced"):
        await run_skill(fenced)
