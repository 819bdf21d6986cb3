"""Dead letters in groups, and bulk actions on a frozen selection."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING

from orchestrator import Agent, TaskState
from orchestrator.accounts.model import Role
from orchestrator.core.ids import new_task_id
from orchestrator.tasks.selecting import TaskFilter
from orchestrator.views.control import list_commands
from orchestrator.views.dead_groups import read_dead_groups
from orchestrator.views.tasks import DEAD, select_tasks
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


SECRET = "sk-very-secret"


def _agent(broken: list[bool]) -> Agent:
    agent = Agent("mailer")

    @agent.skill
    async def send(number: int, api_key: str = "") -> str:
        if broken:
            raise TimeoutError(f"no answer in {number} s") if number % 2 else ValueError("a bad address")
        return "sent"

    return agent


async def _dead(team: LocalTeam, count: int) -> list[str]:
    handles = [await team.orc.submit("send", {"number": n, "api_key": SECRET}, max_attempts=1) for n in range(count)]

    async def all_dead() -> bool:
        return len((await select_tasks(team.services, TaskFilter(), among=DEAD)).ids) >= count

    await wait_for(all_dead, "all dead letters")
    return [handle.id for handle in handles]


async def _question(web: WebClient, path: str) -> dict[str, str]:
    """Return the hidden fields of the form of a question."""
    action = path.partition("?")[0]
    return {name: html.unescape(value) for name, value in (await web.form(path, action)).items()}


async def _groups(web: WebClient, action: str) -> list[str]:
    page = (await web.get("/dead")).text
    return [html.unescape(path) for path in re.findall(rf'<a href="(/bulk/{action}\?[^"]+)">', page)]


async def test_groups(team: LocalTeam) -> None:
    """Dead letters of one skill and one kind of error are one group; numbers in the error do not matter."""
    await team.work(_agent([True]))
    await _dead(team, 7)
    found = await read_dead_groups(team.services)
    assert [(one.skill, one.tasks, one.line) for one in found.groups] == [
        ("send", 4, "ValueError: a bad address"),
        ("send", 3, "TimeoutError: no answer in # s"),
    ]
    assert (found.found, found.looked, found.total) == (2, 7, 7)
    assert (await read_dead_groups(team.services, skill="other")).groups == ()
    web = WebClient(team.orc)
    await web.log_in()
    page = (await web.get("/dead")).text
    assert "no answer in # s" in page
    assert "orc dead list --group error" in page
    for path in re.findall(r'<a href="(/dead/export\?[^"]+)"', page):
        export = await web.get(html.unescape(path))
        assert export.headers["content-disposition"].startswith("attachment")
        assert SECRET not in export.text
        lines = [json.loads(line) for line in export.text.splitlines()]
        assert len(lines) in {3, 4}
        assert {line["state"] for line in lines} == {"dead"}
        assert {line["args"]["number"] % 2 for line in lines} == {1 if len(lines) == 3 else 0}
    assert (await web.get("/dead/export")).status_code == 400


async def test_a_group_is_retried(team: LocalTeam) -> None:
    """The job retries the tasks of the question and no later ones, once, and its page tells what became of each."""
    broken = [True]
    await team.work(_agent(broken))
    web = WebClient(team.orc)
    await web.dashboard.accounts.put_user("op", Role.OPERATOR, "correct horse")
    await web.post("/login", {"name": "op", "password": "correct horse"})
    first = await _dead(team, 6)
    retry, _ = await _groups(web, "retry")
    form = await _question(web, retry)
    assert len(form["tasks"].split()) == 3
    assert "Delete…" not in (await web.get("/dead")).text
    late = [id_ for id_ in await _dead(team, 12) if id_ not in first]
    broken.clear()
    answers = [await web.post("/bulk/retry", form | {"reason": "it is up again"}) for _ in range(2)]
    place = f"/control/{form['id']}"
    assert [answer.headers["location"] for answer in answers] == [place, f"{place}?replayed=1"]

    async def done() -> bool:
        return "3 requeued" in (await web.get(place)).text

    await wait_for(done, "the end of the job")
    accepted = [one for one in await list_commands(team.services) if one.state != "refused"]
    assert [(one.kind, one.actor, one.reason) for one in accepted] == [("retry-tasks", "web:op", "it is up again")]
    chosen = set(form["tasks"].split())

    async def succeeded() -> bool:
        return all([(await team.orc.task(id_).status()).state is TaskState.SUCCEEDED for id_ in chosen])

    await wait_for(succeeded, "the retried tasks")
    for id_ in {*first, *late} - chosen:
        assert (await team.orc.task(id_).status()).state is TaskState.DEAD
    page = (await web.get(place)).text
    assert set(re.findall(r'<th scope="row"><a href="/tasks/([0-9a-f-]{36})">', page)) == chosen
    assert "1 to 3 of 3" in page
    assert (await web.post("/bulk/delete", form | {"reason": "x"})).status_code == 403


async def test_a_name_is_typed(team: LocalTeam) -> None:
    """More than twenty tasks, or a loss of data, need the name; a loss of data needs a reason, too."""
    await team.work(_agent([True]))
    web = WebClient(team.orc)
    await web.log_in()
    await _dead(team, 22)
    form = await _question(web, "/bulk/retry?state=dead&skill=send")
    refused = await web.post("/bulk/retry", form)
    assert refused.status_code == 400
    assert "type send to retry 22 tasks" in refused.text
    delete, _ = await _groups(web, "delete")
    form = await _question(web, delete)
    for given, said in (
        ({"typed": "send"}, "needs a reason"),
        ({"reason": "obsolete"}, "type send"),
        ({"reason": "obsolete", "typed": "other"}, "type send"),
    ):
        answer = await web.post("/bulk/delete", form | given)
        assert answer.status_code == 400
        assert said in answer.text
    assert not await list_commands(team.services)
    answer = await web.post("/bulk/delete", form | {"reason": "obsolete", "typed": "send"})
    assert answer.status_code == 303

    async def gone() -> bool:
        return (await read_dead_groups(team.services)).total == 11

    await wait_for(gone, "the deletion")
    page = (await web.get(answer.headers["location"])).text
    assert "11 deleted" in page
    assert page.count("gone</span>") == 11


async def test_a_queue_is_purged(team: LocalTeam) -> None:
    """Purging cancels what waited when it was asked for, and nothing that came later."""
    web = WebClient(team.orc)
    await web.log_in()
    before = [await team.orc.submit("later") for _ in range(3)]
    assert "/bulk/purge?queue=skill%3Alater" in (await web.get("/queues/skill:later")).text
    form = await _question(web, "/bulk/purge?queue=skill:later")
    after = await team.orc.submit("later")
    answer = await web.post("/bulk/purge", form | {"reason": "a mistake", "typed": "skill:later"})
    assert answer.status_code == 303, answer.text

    async def cancelled() -> bool:
        return all([(await one.status()).state is TaskState.CANCELLED for one in before])

    await wait_for(cancelled, "the purge")
    assert (await after.status()).state is TaskState.READY


async def test_bad_questions(team: LocalTeam) -> None:
    """Each is refused with a sentence, and nothing is given."""
    web = WebClient(team.orc)
    await web.log_in()
    for path, status in (
        ("/bulk/explode?skill=x", 404),
        ("/bulk/retry", 400),
        ("/bulk/retry?line=x", 400),
        ("/bulk/purge?queue=nothing", 400),
        ("/bulk/purge?queue=skill:x&session=s", 400),
        ("/bulk/cancel?state=nope", 400),
    ):
        assert (await web.get(path)).status_code == status, path
    assert "No task that can be retried matches" in (await web.get("/bulk/retry?skill=none")).text
    assert "No task that can be retried matches" in (await web.get("/bulk/retry?skill=none&state=ready")).text
    id_ = {"id": new_task_id(), "skill": "x", "reason": "x"}
    for form, said in (
        ({"tasks": ""}, "names 0 tasks"),
        ({"tasks": "1 2"}, "task id"),
        ({"tasks": " ".join(new_task_id() for _ in range(1001))}, "names 1001 tasks"),
        ({"id": "x"}, "load the page again"),
    ):
        answer = await web.post("/bulk/cancel", id_ | form)
        assert answer.status_code == 400
        assert said in answer.text
    answer = await web.post("/bulk/purge", {"id": new_task_id(), "queue": "skill:x", "reason": "x", "typed": "skill:x"})
    assert "no time of its question" in answer.text
    purge = {"id": new_task_id(), "queue": "skill:x", "session": "s", "until": "1", "reason": "x", "typed": "skill:x"}
    assert "takes no other filter" in (await web.post("/bulk/purge", purge)).text
    # The reason of a job is no filter.
    answer = await web.post("/bulk/cancel", {"id": new_task_id(), "tasks": new_task_id(), "reason": "x"})
    assert "needs a filter" in answer.text
    assert not await list_commands(team.services)
