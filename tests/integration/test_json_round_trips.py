"""Arguments come back as they went in: through submit, inbox, handler, result; through retries and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import Agent, Reject, Retry, TaskContext
from orchestrator.core.errors import TaskFailed
from orchestrator.core.payload import decode_json
from orchestrator.tasks.submission import Submission
from tests.helpers.json_values import alike, json_values
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from orchestrator.client.handle import TaskHandle
    from tests.helpers.local_team import LocalTeam


def make_echo() -> Agent:
    """An agent that gives back what it got."""
    agent = Agent("echo", concurrency=50)

    @agent.skill(backoff=0, max_attempts=2)
    async def echo(ctx: TaskContext, value: Any, how: str = "at once") -> Any:
        if how == "rejected":
            raise Reject("as asked")
        if how == "retried" and ctx.attempt == 1:
            raise Retry(delay=0)
        if how == "failed":
            raise ValueError("as asked")
        return value

    return agent


def nested(levels: int) -> Any:
    """A value of so many levels."""
    value: Any = "floor"
    for level in range(levels):
        value = [value] if level % 2 else {"deeper": value}
    return value


AWKWARD: list[Any] = [
    [], {}, [[]], {"": {}}, "", 0, -0.0, 1.0, 2**53 + 1, 2**64, -(2**63) - 1, 5e-324, 1.7976931348623157e308, 0.1 + 0.2,
    True, None, "𝄞 \x00 \u2028 \x7f é", {"a": [], "b": {}, "c": [{}]}, list(range(1000)), "x" * 100_000, nested(63),
    {"key " * 50: "\n"}, "'\"\\/", [None] * 9,
]  # fmt: skip


@pytest.mark.parametrize("how", ["at once", "retried"])
async def test_awkward_values_travel_unchanged(team: LocalTeam, how: str) -> None:
    """Empty containers, large integers, whole floats, deep nesting, large texts: the same after one attempt or two."""
    await team.work(make_echo())
    handles = await team.orc.submit_many([Submission("echo", {"value": value, "how": how}) for value in AWKWARD])
    for handle, value in zip(handles, AWKWARD, strict=True):
        assert alike(await handle.result(TIMEOUT_S), value), repr(value)[:80]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(json_values(), min_size=5, max_size=40), how=st.sampled_from(["at once", "retried"]))
async def test_any_json_travels_unchanged(running_echo: LocalTeam, values: list[Any], how: str) -> None:
    """Whatever JSON holds comes out of the handler as it went into the submit."""
    handles = await running_echo.orc.submit_many([Submission("echo", {"value": value, "how": how}) for value in values])
    for handle, value in zip(handles, values, strict=True):
        assert alike(await handle.result(TIMEOUT_S), value)


@pytest.fixture
async def running_echo(team: LocalTeam) -> LocalTeam:
    """A team with the echo at work."""
    await team.work(make_echo())
    return team


@pytest.mark.parametrize("how", ["rejected", "failed"])
async def test_dead_letters_keep_their_arguments(team: LocalTeam, how: str) -> None:
    """A dead letter still holds what it was asked, byte for byte."""
    await team.work(make_echo())
    handles = await team.orc.submit_many([Submission("echo", {"value": value, "how": how}) for value in AWKWARD])

    async def check(handle: TaskHandle[Any], value: Any) -> None:
        with pytest.raises(TaskFailed, match="as asked"):
            await handle.result(TIMEOUT_S)
        assert alike(decode_json((await handle.info()).args), {"value": value, "how": how})

    async with anyio.create_task_group() as group:
        for handle, value in zip(handles, AWKWARD, strict=True):
            group.start_soon(check, handle, value)


async def test_arguments_as_large_as_allowed_travel(team: LocalTeam) -> None:
    """256 KiB of arguments, far more than an inbox entry carries, arrive and come back."""
    await team.work(make_echo())
    value = "é" * ((262_144 - len('{"value":""}')) // 2)
    handle = await team.orc.submit("echo", {"value": value})
    assert await handle.result(TIMEOUT_S) == value


async def test_results_as_large_as_allowed_travel(team: LocalTeam) -> None:
    """A result of just under 1 MiB is read by the client that waits and by one that comes later."""
    agent = Agent("large")

    @agent.skill
    async def produce(size: int) -> str:
        return "x" * size

    await team.work(agent)
    handle = await team.orc.submit("produce", {"size": 1_048_574})
    assert len(await handle.result(TIMEOUT_S)) == 1_048_574
    assert len(await (await team.client()).task(handle.id).result(TIMEOUT_S)) == 1_048_574


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("large", "result of 'produce' would be 1048577 bytes of JSON, more than the 1048576 allowed"),
        ("nan", "NaN, infinities"),
        ("inside", "NaN, infinities"),
        ("object", "unknown type"),
        ("surrogate", "unpaired surrogate"),
        ("deep", "nested deeper than 128"),
        ("loop", "result of 'produce' does not fit its type or JSON"),
    ],
)
async def test_results_that_cannot_be_stored_end_the_task_with_the_reason(
    team: LocalTeam, what: str, told: str
) -> None:
    """A result that JSON lacks, or one too large, is a dead letter at once; the handler is not run again."""
    agent, runs = Agent("odd"), []
    loop: list[Any] = []
    loop.append(loop)
    results: dict[str, Any] = {
        "large": "x" * 1_048_575, "nan": float("nan"), "inside": {"a": [float("-inf")]}, "object": object(),
        "surrogate": "\ud800", "deep": nested(129), "loop": loop,
    }  # fmt: skip

    @agent.skill
    async def produce() -> Any:
        runs.append(what)
        return results[what]

    await team.work(agent)
    with pytest.raises(TaskFailed, match=told) as failed:
        await (await team.orc.submit("produce")).result(TIMEOUT_S)
    assert len(runs) == 1
    assert len(failed.value.errors) == 1
