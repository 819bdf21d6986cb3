"""A worker that dies around an effect: it is never repeated unseen, whatever the policy."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import TaskFailed, TaskState
from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.helpers import subprocesses
from tests.helpers.end_state import find_violations
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator import TaskHandle
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

pytestmark = pytest.mark.slow

AGENT = "tests.fault.effect_agents:till"
WAIT_S = 30


@pytest.fixture
async def orc(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> AsyncIterator[Orchestrator]:
    """A client of a pool with a supervisor and one worker process with one slot."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, slots=1, agents=AGENT))
        async with Orchestrator(settings=settings) as client:
            yield client
        direct = stack.enter_context(redis_server.client())
        assert find_violations(direct, pool_keys(settings)) == []


async def asks(handle: TaskHandle[Any]) -> str:
    """Wait until a task asks, and return the question."""

    async def waits() -> bool:
        return (await handle.status()).state is TaskState.AWAITING_INPUT

    await wait_for(waits, "a question", WAIT_S)
    return (await handle.info()).questions[-1].question


@pytest.mark.parametrize("policy", ["ask", "retry", "fail"])
@pytest.mark.parametrize("point", ["before", "stored"])
async def test_known_outcomes(orc: Orchestrator, attempt_log: AttemptLog, point: str, policy: str) -> None:
    """A worker that dies before the begin or after the result is stored leaves no doubt: the task charges once."""
    handle = await orc.submit("buy", {"die_at": point, "unknown": policy})
    assert await handle.result(WAIT_S) == {"cents": 12}
    assert len(attempt_log.notes("died", task=handle.id)) == 1
    assert len(attempt_log.notes("charged", task=handle.id)) == 1
    (effect,) = await orc.tasks.effects(handle.id)
    assert (effect.name, effect.state, effect.decisions, effect.question) == ("charge", "done", (), None)


@pytest.mark.parametrize("point", ["begun", "done"])
async def test_a_person_decides(orc: Orchestrator, attempt_log: AttemptLog, point: str) -> None:
    """After a death between begin and result a person says what has happened, and each answer is followed."""
    charged = point == "done"
    handle = await orc.submit("buy", {"die_at": point, "unknown": "ask"})
    question = await asks(handle)
    (effect,) = await orc.tasks.effects(handle.id)
    assert question.startswith(f"charge was begun by worker {effect.worker} at ")
    assert "and its outcome is unknown" in question
    assert (effect.state, effect.question) == ("begun", 1)
    assert len(attempt_log.notes("charged", task=handle.id)) == charged
    await handle.answer("maybe", actor="ada")
    await asks(handle)
    await handle.answer({"done": {"cents": 12}} if charged else "not done", actor="ada")
    assert await handle.result(WAIT_S) == {"cents": 12}
    assert len(attempt_log.notes("charged", task=handle.id)) == 1
    (effect,) = await orc.tasks.effects(handle.id)
    assert effect.state == "done"
    assert effect.decisions == ("invalid by ada", "done by ada" if charged else "not done by ada")
    assert (await handle.info()).questions[0].answer == "maybe"


@pytest.mark.parametrize("point", ["begun", "done"])
async def test_the_task_fails(orc: Orchestrator, attempt_log: AttemptLog, point: str) -> None:
    """With `fail` the task becomes a dead letter that names the worker."""
    charged = point == "done"
    handle = await orc.submit("buy", {"die_at": point, "unknown": "fail"})
    with pytest.raises(TaskFailed, match=r"effect 'charge' was begun by worker .* and its outcome is unknown"):
        await handle.result(WAIT_S)
    assert len(attempt_log.notes("charged", task=handle.id)) == charged


@pytest.mark.parametrize("point", ["begun", "done"])
async def test_the_policy_retries(orc: Orchestrator, attempt_log: AttemptLog, point: str) -> None:
    """With `retry` the effect is begun again, and the decision is recorded."""
    handle = await orc.submit("buy", {"die_at": point, "unknown": "retry"})
    assert await handle.result(WAIT_S) == {"cents": 12}
    assert len(attempt_log.notes("charged", task=handle.id)) == (2 if point == "done" else 1)
    (effect,) = await orc.tasks.effects(handle.id)
    assert effect.decisions == ("retry by policy",)


@pytest.mark.parametrize("policy", ["ask", "retry", "fail"])
async def test_a_check_decides(orc: Orchestrator, attempt_log: AttemptLog, policy: str) -> None:
    """A check that finds the charge spares the policy, whichever it is."""
    handle = await orc.submit("buy", {"die_at": "done", "unknown": policy, "checks": True})
    assert await handle.result(WAIT_S) == {"cents": 12}
    assert len(attempt_log.notes("charged", task=handle.id)) == 1
    (effect,) = await orc.tasks.effects(handle.id)
    assert effect.decisions == ("done by check",)


async def test_once_charges_twice(orc: Orchestrator, attempt_log: AttemptLog) -> None:
    """The same death in a call of `ctx.once` charges twice, unseen."""
    handle = await orc.submit("buy_once")
    assert await handle.result(WAIT_S) == 12
    assert len(attempt_log.notes("charged", task=handle.id)) == 2
