"""A token that may only read learns from no address of the HTTP API what the dashboard masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator import Agent, Record, TaskContext, TaskFailed, TaskState
from orchestrator.accounts.model import Role
from orchestrator.dashboard.api.operation import OPERATIONS
from tests.helpers.api_client import api_client
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

SECRET: Final = "hunter2"
PERSON: Final = "Lovelace"
"""In all that a redacted skill takes, emits, returns and raises."""


def _agent() -> Agent:
    agent = Agent("clerk", rate="100/s")

    @agent.skill(redact=True, max_attempts=1)
    async def sign(ctx: TaskContext, name: str, *, fails: bool = False) -> Any:
        await ctx.emit({"name": name})
        await ctx.progress(1, 2, f"signing for {name}")
        answer = await ctx.ask("who?", default=name, deadline=3600)
        if fails:
            raise ValueError(f"{answer} may not sign")
        await ctx.effect("stamp", _signed, name)
        return await ctx.once("sign", _signed, name)

    @agent.skill
    async def fetch(ctx: TaskContext, api_key: str = SECRET) -> Any:
        await ctx.emit({"apiKey": api_key})
        return {"deep": [{"token": api_key}]}

    return agent


async def _signed(name: str) -> str:
    return name


async def _fill(team: LocalTeam) -> dict[str, list[str]]:
    orc = team.orc
    worker = await team.work(_agent())
    ids = []
    for fails in (False, True):
        handle = await orc.submit("sign", {"name": PERSON, "fails": fails}, session="s", tags=["t"])

        async def asks(handle: Any = handle) -> bool:
            return (await handle.status()).state is TaskState.AWAITING_INPUT

        await wait_for(asks, "the question")
        await handle.answer(f"Ada {PERSON}")
        if fails:
            with pytest.raises(TaskFailed):
                await handle.result(timeout=TIMEOUT_S)
        else:
            assert await handle.result(timeout=TIMEOUT_S) == PERSON
        ids.append(handle.id)
    fetched = await orc.submit("fetch", {"api_key": SECRET}, session="s")
    await fetched.result(timeout=TIMEOUT_S)
    await orc.submit("sign", {"name": PERSON}, agent="nobody")
    await orc.admin.schedules.add("nightly", "sign", {"name": PERSON}, every=86_400)
    await orc.admin.schedules.add("hourly", "fetch", {"api_key": SECRET}, every=3600)
    async with orc.workspace("s").edit(agent="ada") as ws:
        await ws.patch({"plan": {"password": SECRET}, "mail/apiKey": SECRET})
    async with orc.workspace("s").edit(agent="bob") as ws:
        await ws.patch({"plan": {"password": f"{SECRET}!"}, "mail/apiKey": f"{SECRET}!"})
    await orc.chat("s", "main").append([{"role": "user", "content": {"token": SECRET}}])
    await orc.memory("clerk").store(Record(step=1, kind="note", content={"db_password": SECRET}))
    await orc.admin.set_budget("team", usd=1)
    sent = await orc.admin.pause_queue("skill:later", reason="tests")
    return {
        "/tasks/{id}": [*ids, fetched.id],
        "/control/{id}": [sent.id],
        "/agents/{agent}": ["clerk"],
        "/workers/{worker}": [worker.id],
        "/queues/{queue}": ["agent:nobody", "skill:sign"],
        "/skills/{skill}": ["sign", "fetch"],
        "/budgets/{budget}": ["team"],
        "/limits/{limit}": ["@clerk"],
    }


def _addresses(names: dict[str, list[str]]) -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []
    for one in OPERATIONS:
        if one.method != "GET":
            continue
        query = {"id": "s"} if one.path.startswith("/sessions/") else {}
        query |= {"agent": "clerk"} if one.path == "/memory" else {}
        query |= {"at": "2", "from": "1"} if one.path == "/sessions/replay" else {}
        paths = [one.path]
        for begin, known in names.items():
            if one.path.startswith(begin):
                stem, rest = begin.rpartition("{")[0], one.path.removeprefix(begin)
                paths = [f"{stem}{name}{rest}" for name in known]
        several = [{"path": "plan"}, {"path": "mail/apiKey"}] if one.path == "/sessions/path" else [{}]
        found += [(path, query | more) for path in paths for more in several]
    return found


async def test_no_address_tells_a_secret(team: LocalTeam) -> None:
    """Neither values of secret names, nor what a redacted skill was given, said, answered, returned or raised."""
    names = await _fill(team)
    api = await api_client(team.orc, Role.VIEWER)
    for path, query in _addresses(names):
        answer = await api.get(path, **query)
        redacted = path.endswith(("/args", "/result")) and names["/tasks/{id}"][-1] not in path
        assert answer.status_code == (404 if redacted else 200), (path, answer.text)
        for word in (SECRET, PERSON):
            at = answer.text.find(word)
            assert at < 0, (path, query, answer.text[max(0, at - 200) : at + 50])
