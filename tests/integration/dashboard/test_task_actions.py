"""Forms that submit, answer, cancel, retry and delete tasks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, TaskContext, TaskFailed, TaskState
from orchestrator.accounts.model import Role
from orchestrator.core.ids import new_task_id
from orchestrator.views.control import list_commands
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


def _agent(broken: list[bool]) -> Agent:
    agent = Agent("greeter")

    @agent.skill
    async def greet(name: str) -> str:
        if broken:
            raise ValueError("the model is down")
        return f"hi {name}"

    @agent.skill
    async def publish(ctx: TaskContext) -> str:
        said: str = await ctx.ask("Publish this text?", options=["yes", "no"])
        return f"said {said}"

    return agent


async def test_submit(team: LocalTeam) -> None:
    """The form submits a task, a second click the same one."""
    await team.work(_agent([]))
    web = WebClient(team.orc)
    await web.log_in()
    form = await web.form("/submit", "/submit") | {"skill": "greet", "args": '{"name": "Ada"}', "session": "s 1"}
    places = [(await web.post("/submit", form)).headers["location"] for _ in range(2)]
    assert places[0] == places[1]
    task = places[0].removeprefix("/tasks/")
    assert await team.orc.task(task).result(timeout=TIMEOUT_S) == "hi Ada"
    page = (await web.get(places[0])).text
    assert "hi Ada" in page
    for wrong, said in (("[1]", "must be a JSON object"), ("{", "not JSON")):
        answer = await web.post("/submit", form | {"id": new_task_id(), "args": wrong})
        assert answer.status_code == 400
        assert said in answer.text


async def test_answer(team: LocalTeam) -> None:
    """The page of a task that asks has a button per answer."""
    await team.work(_agent([]))
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("publish")

    async def asked() -> bool:
        return (await handle.status()).state is TaskState.AWAITING_INPUT

    await wait_for(asked, "its question")
    page = (await web.get(f"/tasks/{handle.id}")).text
    assert "Publish this text?" in page, page
    assert re.findall(r'name="value" value="([^"]+)"', page) == ["&#34;yes&#34;", "&#34;no&#34;"]
    answer = await web.post(f"/tasks/{handle.id}/answer", {"number": "1", "value": '"yes"'})
    assert answer.status_code == 303
    assert await handle.result(timeout=TIMEOUT_S) == "said yes"
    late = await web.post(f"/tasks/{handle.id}/answer", {"number": "1", "value": '"no"'})
    assert late.status_code == 409


async def test_retry_and_delete(team: LocalTeam) -> None:
    """A dead letter is retried with the actor; deleting needs the role of admin and a reason."""
    broken = [True]
    await team.work(_agent(broken))
    web = WebClient(team.orc)
    await web.dashboard.accounts.put_user("op", Role.OPERATOR, "correct horse")
    await web.post("/login", {"name": "op", "password": "correct horse"})
    handle = await team.orc.submit("greet", {"name": "Ada"}, max_attempts=1)
    with pytest.raises(TaskFailed):
        await handle.result(timeout=TIMEOUT_S)
    page = (await web.get(f"/tasks/{handle.id}")).text
    assert f"/tasks/{handle.id}/retry" in page
    assert f"/tasks/{handle.id}/delete" not in page
    broken.clear()
    answer = await web.post(f"/tasks/{handle.id}/retry", {"reason": "it is up again"})
    assert answer.headers["location"] == f"/tasks/{handle.id}?said=retry:requeued"
    assert await handle.result(timeout=TIMEOUT_S) == "hi Ada"
    (record,) = await list_commands(team.services)
    assert (record.actor, record.reason) == ("web:op", "it is up again")
    assert (await web.post(f"/tasks/{handle.id}/delete", {"reason": "x"})).status_code == 403
    await web.log_in()
    assert (await web.post(f"/tasks/{handle.id}/delete")).status_code == 400
    answer = await web.post(f"/tasks/{handle.id}/delete", {"reason": "a test"})
    assert answer.headers["location"] == "/tasks?said=delete:deleted"
    assert (await web.get(f"/tasks/{handle.id}")).status_code == 404


async def test_cancel(team: LocalTeam) -> None:
    """A waiting task is cancelled; unknown tasks and actions are refused."""
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("later")
    answer = await web.post(f"/tasks/{handle.id}/cancel")
    assert answer.headers.get("location") == f"/tasks/{handle.id}?said=cancel:ended", answer.text
    assert (await handle.status()).state is TaskState.CANCELLED
    assert (await web.post(f"/tasks/{handle.id}/explode")).status_code == 404
    assert (await web.post("/tasks/123/cancel")).status_code == 400
