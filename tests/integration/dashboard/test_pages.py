"""Pages show the pool, and their forms give commands once."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent, TaskFailed
from orchestrator.accounts.model import Role
from orchestrator.core.ids import new_task_id
from orchestrator.dashboard.live import patches
from orchestrator.dashboard.page import PAGES
from orchestrator.views.control import list_commands
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

HOSTILE = "<script>alert(1)</script>\"'\u202e\x1b]0;x\x07"


def _agent() -> Agent:
    agent = Agent("greeter", rate="100/s")

    @agent.skill
    async def greet(name: str) -> str:
        if name == HOSTILE:
            raise ValueError(name)
        return f"hi {name}"

    return agent


async def test_every_page(team: LocalTeam) -> None:
    """Each page shows texts of agents as text, has one heading and a STOP."""
    worker = await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("greet", {"name": HOSTILE}, session=HOSTILE, max_attempts=1)
    with pytest.raises(TaskFailed):
        await handle.result(timeout=TIMEOUT_S)
    command = (await team.orc.admin.pause_agent("other", reason=HOSTILE)).id
    await team.orc.admin.set_budget("team", usd=1)
    for page in PAGES:
        if page.path.startswith(("/sessions/", "/memory")):
            continue  # their query names what they show: see test_session_pages.py
        names = {"queue": "skill:greet", "agent": "greeter", "worker": worker.id, "action": "cancel", "kind": "stop"}
        names |= {"budget": "team", "limit": "@greeter"}
        names["id"] = handle.id if page.path.startswith("/tasks") else command
        path = page.path.format(**names) + ("?skill=greet" if page.path.startswith("/bulk") else "")
        answer = await web.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert "<script>alert" not in answer.text
        assert not {"\u202e", "\x1b", "\x07"} & set(answer.text)
        assert answer.text.count("<h1>") == 1
        assert "/commands/stop" in answer.text
    task = (await web.get(f"/tasks/{handle.id}")).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in task
    assert "ValueError" in task


async def test_a_stop_is_given_once(team: LocalTeam) -> None:
    """The form of the header stops the pool; a second click leads to the receipts of the first."""
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    form = await web.form("/", "/commands/stop")
    answers = [await web.post("/commands/stop", form | {"reason": "the model is down"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [303, 303]
    place = answers[0].headers["location"]
    assert place == f"/control/{form['id']}"
    assert answers[1].headers["location"] == f"{place}?replayed=1"

    async def answered() -> bool:
        return "has not answered" not in (await web.get(place)).text

    await wait_for(answered, "all receipts")
    page = (await web.get(place)).text
    assert "web:local" in page
    assert "the model is down" in page
    assert "given once" in (await web.get(f"{place}?replayed=1")).text
    assert sorted(one.state for one in await list_commands(team.services)) == ["active", "refused"]


async def _of(team: LocalTeam, role: Role) -> WebClient:
    """A browser in which a user with this role has logged in."""
    web = WebClient(team.orc)
    await web.dashboard.accounts.put_user(role.word, role, "correct horse")
    await web.post("/login", {"name": role.word, "password": "correct horse"})
    return web


async def test_roles(team: LocalTeam) -> None:
    """A viewer has no buttons and is refused; an operator gives no command of class C, an admin one with a reason."""
    for role, stop, renew in ((Role.VIEWER, 403, 403), (Role.OPERATOR, 303, 403), (Role.ADMIN, 303, 303)):
        web = await _of(team, role)
        page = (await web.get("/")).text
        assert ("/commands/stop" in page) == (role is not Role.VIEWER)
        for kind, status in (("stop", stop), ("renew-epoch", renew)):
            id_ = {"id": new_task_id(), "reason": "a test"}
            assert (await web.post(f"/commands/{kind}", id_)).status_code == status, (role, kind)
    web = await _of(team, Role.ADMIN)
    unsaid = await web.post("/commands/renew-epoch", {"id": new_task_id()})
    assert unsaid.status_code == 400
    assert "needs a reason" in unsaid.text


async def test_read_only(team: LocalTeam) -> None:
    """A read-only dashboard has no buttons and refuses on the server."""
    web = WebClient(team.orc, read_only=True)
    await web.log_in()
    assert "/commands/" not in (await web.get("/")).text
    assert (await web.post("/commands/stop", {"id": new_task_id()})).status_code == 403


async def test_below_a_path(team: LocalTeam) -> None:
    """Every address of a page begins with the path under which a proxy serves it."""
    web = WebClient(team.orc, base="/a/b")
    await web.log_in()
    for page in PAGES:
        if "{" not in page.path and not page.path.startswith(("/sessions/", "/memory")):
            text = (await web.get(page.path)).text
            addresses = re.findall(r'(?:href|src|action|hx-sse:connect)="(?!data:)([^"#?]+)', text)
            assert len(addresses) > 10
            assert all(address.startswith("/a/b/") for address in addresses), addresses


async def test_lists_go_on(team: LocalTeam) -> None:
    """A list shows one page, says how far it looked, and its link goes on behind it."""
    web = WebClient(team.orc)
    await web.log_in()
    ids = [(await team.orc.submit("later", session="s")).id for _ in range(60)]
    shown: list[str] = []
    path = "/tasks?skill=later"
    for _ in range(3):
        text = (await web.get(path)).text
        shown += re.findall(r'<th scope="row"><a href="/tasks/([0-9a-f-]{36})">', text)
        found = re.search(r'rel="next" href="([^"]+)"', text)
        if found is None:
            break
        path = html.unescape(found.group(1))
    assert sorted(shown) == sorted(ids)


async def test_bad_requests(team: LocalTeam) -> None:
    """Each is refused with a sentence, and none is a failure of the server."""
    web = WebClient(team.orc)
    await web.log_in()
    for path, status, said in (
        ("/tasks?state=nope", 400, "no state"),
        ("/tasks?after=zzz", 400, "cursor"),
        ("/tasks/123", 400, "task id"),
        ("/tasks/01a20b3c-8edb-710f-8780-7ca34f674ff4", 404, "01a20b3c-8edb"),
        ("/control/none", 404, "none"),
        ("/nothing", 404, ""),
    ):
        answer = await web.get(path)
        assert answer.status_code == status, (path, answer.text)
        assert said in answer.text
    assert (await web.post("/commands/nope", {"id": new_task_id()})).status_code == 405
    assert (await web.post("/commands/cancel-tasks", {"id": new_task_id()})).status_code == 405
    assert (await web.post("/commands/stop", {"id": "x"})).status_code == 400
    assert (await web.post("/commands/stop", {"id": new_task_id(), "nope": "1"})).status_code == 400
    large = await web.post("/commands/stop", {"id": new_task_id(), "reason": "x" * (3 << 20)})
    assert large.status_code == 413


async def test_a_page_is_kept_current(team: LocalTeam) -> None:
    """The stream of a page sends the regions that changed, and nothing while nothing changes."""
    web = WebClient(team.orc)
    dashboard = web.dashboard
    rendered, renderings = ["<p>1</p>"], [0]

    async def render() -> dict[str, str]:
        renderings[0] += 1
        return {"one": rendered[0], "two": f'<time datetime="x">{renderings[0]} s ago</time>'}

    async with anyio.create_task_group() as group:
        group.start_soon(dashboard.feed.run)
        events = patches(dashboard.feed, render, stopping=dashboard.stopping)
        assert (await anext(events)).startswith("retry")
        first = await anext(events)
        assert 'hx-target="#one"' in first
        assert 'hx-target="#two"' in first
        await team.orc.submit("later")  # rings the doorbell
        assert (await anext(events)).startswith(":")
        rendered[0] = "<p>2</p>"
        await team.orc.submit("later")
        second = await anext(events)
        assert "<p>2</p>" in second
        assert "#two" not in second
        dashboard.stopping.set()
        assert "event: bye" in await anext(events)
        await events.aclose()
        group.cancel_scope.cancel()
