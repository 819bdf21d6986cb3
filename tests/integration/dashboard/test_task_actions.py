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
    """The form has a field per argument; a second click submits the same task, and errors keep what was typed."""
    await team.work(_agent([]))
    web = WebClient(team.orc)
    await web.log_in()
    path = "/submit?skill=greet"
    assert 'name="arg.name"' in (await web.get(path)).text
    form = await web.form(path, "/submit") | {"arg.name": "Ada", "session": "s 1"}
    places = [(await web.post("/submit", form)).headers["location"] for _ in range(2)]
    assert places[0] == places[1]
    task = places[0].removeprefix("/tasks/")
    assert await team.orc.task(task).result(timeout=TIMEOUT_S) == "hi Ada"
    page = (await web.get(places[0])).text
    assert "hi Ada" in page
    as_json = form | {"id": new_task_id(), "as": "json"}
    for wrong, said in (("[1]", "must be a JSON object"), ("{", "not JSON")):
        answer = await web.post("/submit", as_json | {"args": wrong})
        assert answer.status_code == 400
        assert said in answer.text
        assert f">{wrong}</textarea>" in answer.text
        assert 'value="s 1"' in answer.text
    assert (await web.post("/submit", {"skill": "greet", "arg.name": "Ada"})).status_code == 400
    missing = await web.post("/submit", as_json | {"args": "{}", "priority": "no such"})
    assert missing.status_code == 400
    assert "no such" in missing.text


async def test_submit_again(team: LocalTeam) -> None:
    """The form of an earlier task has its arguments and options; secrets are masked."""
    await team.work(_agent([]))
    web = WebClient(team.orc)
    await web.log_in()
    first = await team.orc.submit("greet", {"name": "Ada <&>\nL"}, session="s 1", tags=["eu", "x"], priority="low")
    text = (await web.get(f"/submit?from={first.id}")).text
    assert "Ada &lt;&amp;&gt;\nL</textarea>" in text
    assert 'value="s 1"' in text
    assert "eu\nx</textarea>" in text
    assert '<option value="low" selected>' in text
    secret = await team.orc.submit("unknown", {"api_key": "hunter2", "row": 7})
    text = (await web.get(f"/submit?from={secret.id}")).text
    assert "hunter2" not in text
    assert "masked" in text
    assert "********" in text


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
    same = await web.post(f"/tasks/{handle.id}/answer", {"number": "1", "value": '"yes"'})
    assert same.headers["location"] == f"/tasks/{handle.id}?said=answer:already"


async def test_questions(team: LocalTeam) -> None:
    """The page of questions lists those that wait, with buttons that answer them."""
    await team.work(_agent([]))
    web = WebClient(team.orc)
    await web.log_in()
    assert "No task waits" in (await web.get("/questions")).text
    handle = await team.orc.submit("publish")

    async def asked() -> bool:
        return (await handle.status()).state is TaskState.AWAITING_INPUT

    await wait_for(asked, "its question")
    web.dashboard.forget_reads()
    page = (await web.get("/questions")).text
    assert "Publish this text?" in page
    form = await web.form("/questions", f"/tasks/{handle.id}/answer")
    answer = await web.post(f"/tasks/{handle.id}/answer", form)
    assert answer.headers["location"] == "/questions?said=answer:answered"
    assert await handle.result(timeout=TIMEOUT_S) in {"said yes", "said no"}


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
    form = await web.form(f"/tasks/{handle.id}", f"/tasks/{handle.id}/retry") | {"reason": "it is up again"}
    answers = [await web.post(f"/tasks/{handle.id}/retry", form) for _ in range(2)]
    assert [answer.headers["location"] for answer in answers] == [f"/tasks/{handle.id}?said=retry:requeued"] * 2
    assert "waits to run again" in (await web.get(answers[1].headers["location"])).text
    assert await handle.result(timeout=TIMEOUT_S) == "hi Ada"
    records = await list_commands(team.services)
    assert {(one.actor, one.reason) for one in records} == {("web:op", "it is up again")}
    assert sorted(one.state for one in records) == ["given", "refused"]
    form = {"id": new_task_id(), "reason": "a test"}
    assert (await web.post(f"/tasks/{handle.id}/delete", form)).status_code == 403
    await web.log_in()
    assert (await web.post(f"/tasks/{handle.id}/delete", {"id": form["id"]})).status_code == 400
    assert (await web.post(f"/tasks/{handle.id}/delete", {"reason": "a test"})).status_code == 400
    answer = await web.post(f"/tasks/{handle.id}/delete", form)
    assert answer.headers["location"] == "/tasks?said=delete:deleted"
    assert (await web.get(f"/tasks/{handle.id}")).status_code == 404


async def test_cancel(team: LocalTeam) -> None:
    """A waiting task is cancelled; unknown tasks and actions are refused."""
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("later")
    answer = await web.post(f"/tasks/{handle.id}/cancel", {"id": new_task_id()})
    assert answer.headers.get("location") == f"/tasks/{handle.id}?said=cancel:ended", answer.text
    assert (await handle.status()).state is TaskState.CANCELLED
    assert (await web.post(f"/tasks/{handle.id}/explode")).status_code == 404
    assert (await web.post("/tasks/123/cancel")).status_code == 400
