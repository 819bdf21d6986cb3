"""`orc tasks answer`, and what other commands show of a task that waits for a person: forms of output, exit codes."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.tasks.model import TaskState
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.terminal import Done, Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from orchestrator import TaskHandle
    from tests.helpers.local_team import LocalTeam

UNKNOWN_ID = "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"


@pytest.fixture
def orc(team: LocalTeam, tmp_path: Path) -> Callable[..., Awaitable[Done]]:
    """Runs a command in a thread, while the team goes on."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))

    return typed


@pytest.fixture
async def handle(team: LocalTeam) -> TaskHandle[Any]:
    """A task that asks twice and waits with its first question."""
    agent = Agent("clerk")

    @agent.skill
    async def book(ctx: TaskContext) -> list[Any]:
        return [
            await ctx.ask("Which row\x1b?", options=["1", "2"]),
            await ctx.ask("Sure?", deadline=3600, default=None),
        ]

    await team.work(agent)
    handle = await team.orc.submit("book")
    await asks(handle)
    return handle


async def asks(handle: TaskHandle[Any], number: int = 1) -> None:
    """Wait until it waits with this question."""

    async def waits() -> bool:
        return (await handle.status()).detail.number == number

    await wait_for(waits, f"question {number}", TIMEOUT_S)


async def test_answer(team: LocalTeam, orc: Callable[..., Awaitable[Done]], handle: TaskHandle[Any]) -> None:
    """Answers are JSON or text; each form says what was answered; what stands is told again, shown with who gave it."""
    id_ = handle.id
    listed = await orc("tasks", "list", "--state", "awaiting_input", "-o", "id")
    assert listed.out == f"{id_}\n"
    why = await orc("tasks", "why", id_)
    assert why.out.startswith('awaiting_input: asks \'Which row\\x1b?\' ("1", "2") since ')
    assert why.out.endswith(f"type `orc tasks answer {id_} VALUE`\n")
    first = await orc("tasks", "answer", id_, "1")  # a text, because the options are texts
    assert (first.code, first.out) == (0, f'question 1 of task {id_} was answered: "1"\n')
    await asks(handle, 2)
    again = await orc("tasks", "answer", id_, "1", "--question", "1", "-o", "json")
    assert json.loads(again.out) == {"id": id_, "status": "already", "question": 1, "answer": "1"}
    second = await orc("tasks", "answer", id_, '{"seat": 12345678901234567890123}', "-o", "jsonl")
    assert second.out.endswith('"answer":{"seat":12345678901234567890123}}\n')
    assert await handle.result(TIMEOUT_S) == ["1", {"seat": 12345678901234567890123}]
    shown = json.loads((await orc("tasks", "show", id_, "-o", "json")).out)
    one, two = shown["questions"]
    assert (one["question"], one["options"], one["answer"]) == ("Which row\x1b?", ["1", "2"], "1")
    assert "@" in one["answered_by"]
    assert (two["answer"], two["default"]) == ({"seat": 12345678901234567890123}, None)
    table = (await orc("tasks", "show", id_)).out
    assert '  1. Which row\\x1b? ("1", "2")\n     "1", by ' in table
    repeated = await orc("tasks", "answer", id_, "2", "--question", "1", "-o", "id")
    assert (repeated.code, repeated.out) == (4, "")
    assert f'question 1 of task {id_} was answered by {one["answered_by"]}: "1"' in repeated.err


async def test_refused(team: LocalTeam, orc: Callable[..., Awaitable[Done]], handle: TaskHandle[Any]) -> None:
    """None of the options is 2, an unknown task 3, what was not asked 4; the task waits on."""
    invalid = await orc("tasks", "answer", handle.id, "3")
    assert (invalid.code, invalid.out) == (2, "")
    assert 'the answer "3" is none of the options: "1", "2"' in invalid.err
    unknown = await orc("tasks", "answer", UNKNOWN_ID, "1")
    assert unknown.code == 3
    assert "does not exist" in unknown.err
    early = await orc("tasks", "answer", handle.id, "1", "--question", "2")
    assert early.code == 4
    assert "has not asked question 2; it waits with question 1" in early.err
    assert (await handle.status()).state is TaskState.AWAITING_INPUT


async def test_how_many_wait(orc: Callable[..., Awaitable[Done]], handle: TaskHandle[Any]) -> None:
    """The queues show how many tasks wait for a person, and what the first of them asks."""
    rows = json.loads((await orc("queues", "list", "-o", "json")).out)["items"]
    (row,) = [row for row in rows if row["queue"] == "awaiting_input"]
    assert (row["tasks"], row["head"], row["cause"]) == (1, handle.id, "awaiting_input")


async def test_watch(orc: Callable[..., Awaitable[Done]], handle: TaskHandle[Any]) -> None:
    """A followed task shows each question and answer on a line, and names them for programs."""
    await (team_follow := handle.events()).__anext__()
    await handle.answer("2", actor="ada")
    await asks(handle, 2)
    await handle.answer(None, actor="bob")
    await handle.result(TIMEOUT_S)
    await team_follow.aclose()
    lines = [line.split(None, 1)[1] for line in (await orc("tasks", "watch", handle.id)).out.splitlines()]
    assert [line.strip() for line in lines if line.startswith(("asked", "answered"))] == [
        'answered    ada: "2"',
        "asked       Sure?",
        "answered    bob: null",
    ]
    events = [json.loads(line) for line in (await orc("tasks", "watch", handle.id, "-o", "jsonl")).out.splitlines()]
    told = [event for event in events if event["kind"] == "asked"]
    assert [(event["question"], event["options"], event["number"]) for event in told] == [("Sure?", None, 2)]
