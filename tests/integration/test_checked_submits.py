"""Submits of a `Skill` itself: arguments that its handler would refuse are refused before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, Field, FilePath

from orchestrator import Agent, TaskContext
from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import InvalidInput, TaskFailed
from orchestrator.sync import Orchestrator as BlockingOrchestrator
from orchestrator.tasks.submission import Submission
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

agent = Agent("editor")

INVALID_ARGUMENTS = "arguments do not fit 'summarize': text: Field required; txt: Extra inputs are not permitted"


class Order(BaseModel):
    """Arguments as a model, one of them under another name in JSON."""

    text: str
    limit: int = Field(default=3, alias="atMost")


class Slip(BaseModel):
    """Arguments that no skill here takes."""

    txt: int


@agent.skill
async def summarize(ctx: TaskContext, text: str, limit: int = 3) -> str:
    """Shorten a text."""
    return f"{text[:limit]} by {ctx.agent}"


@agent.skill
async def read(file: FilePath) -> int:
    """Tell the length of a file, which is where the worker is."""
    return len(file.read_bytes())


@agent.skill(max_attempts=1)
async def delegate(ctx: TaskContext, args: dict[str, Any]) -> str:
    """Pass arguments on to a child."""
    return await (await ctx.submit(summarize, args)).result()


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client and nobody else, so that whatever the server runs was sent by it."""
    async with Orchestrator(settings=settings) as opened:
        yield opened


async def test_invalid_arguments_are_refused_before_it_is_sent(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """One, one of many, a model, and what JSON cannot hold: refused, and the server has seen no command."""
    counter = CommandCounter(redis_client)
    for args in ({"txt": 1}, Slip(txt=1)):
        with pytest.raises(InvalidInput, match=f"^{INVALID_ARGUMENTS}$"):
            await orc.submit(summarize, args, key="k", delay=5)
    with pytest.raises(InvalidInput, match=f"^{INVALID_ARGUMENTS}$"):
        await orc.submit_many([Submission(summarize, {"text": "a"}), Submission(summarize, {"txt": 1})])
    with pytest.raises(InvalidInput, match="ctx: Extra inputs are not permitted"):
        await orc.submit(summarize, {"text": "a", "ctx": None})
    with pytest.raises(InvalidInput, match="NaN"):
        await orc.submit(summarize, {"text": float("nan")})
    assert counter.calls() == {}
    await orc.submit(summarize, {"text": "a"})
    await orc.submit("summarize", {"txt": 1})
    assert counter.scripts() == 2


async def test_the_worker_refuses_in_the_same_words(team: LocalTeam) -> None:
    """Before a worker has registered it is sent as it is, and becomes a dead letter for the same reason."""
    handle = await team.orc.submit("summarize", {"txt": 1})
    await team.work(agent)
    with pytest.raises(TaskFailed) as failed:
        await handle.result(TIMEOUT_S)
    assert failed.value.reason.endswith(INVALID_ARGUMENTS)


async def test_what_fits_is_sent(team: LocalTeam) -> None:
    """Mappings and models that fit reach the handler, also under the names that the fields have in Python."""
    await team.work(agent)
    for args, result in (({"text": "abcdef"}, "abc"), (Order(text="abcdef", atMost=2), "ab"), ({"text": ""}, "")):
        handle = await team.orc.submit(summarize, args)
        assert await handle.result(TIMEOUT_S) == f"{result} by editor"


async def test_what_only_the_worker_sees_is_left_to_it(team: LocalTeam) -> None:
    """A file that is not here may be where the worker is: the task is sent, and the worker decides."""
    await team.work(agent)
    handle = await team.orc.submit(read, {"file": "/no/such/file"})
    with pytest.raises(TaskFailed, match="arguments do not fit 'read': file: Path does not point to a file"):
        await handle.result(TIMEOUT_S)


async def test_a_child_that_does_not_fit_is_refused_to_its_parent(team: LocalTeam) -> None:
    """`ctx.submit` checks as well: the handler gets the error, and no child comes to be."""
    await team.work(agent)
    handle = await team.orc.submit(delegate, {"args": {"txt": 1}})
    with pytest.raises(TaskFailed, match=f"InvalidInput: {INVALID_ARGUMENTS}"):
        await handle.result(TIMEOUT_S)
    fitting = await team.orc.submit(delegate, {"args": {"text": "abcdef"}})
    assert await fitting.result(TIMEOUT_S) == "abc by editor"


def test_the_blocking_client_checks_as_well(settings: Settings) -> None:
    """The synchronous client refuses the same, in the same words."""
    with BlockingOrchestrator(settings=settings) as orc:
        with pytest.raises(InvalidInput, match=f"^{INVALID_ARGUMENTS}$"):
            orc.submit(summarize, {"txt": 1})
        with pytest.raises(InvalidInput, match=f"^{INVALID_ARGUMENTS}$"):
            orc.submit_many([Submission(summarize, {"txt": 1})])
