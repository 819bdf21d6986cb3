"""Lists of queues, agents and workers, and the pages of one of each."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent, TaskState
from orchestrator.accounts.model import Role
from orchestrator.dashboard.identity import Identity
from orchestrator.dashboard.page import PageRequest
from orchestrator.dashboard.pages.control import command
from orchestrator.views.agent_pages import page_agents
from orchestrator.views.control import page_commands
from orchestrator.views.health import read_health
from orchestrator.views.queue_pages import page_queues
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


def _agent(name: str = "greeter", hold: anyio.Event | None = None) -> Agent:
    agent = Agent(name)

    @agent.skill
    async def greet(name: str) -> str:
        if hold is not None:
            await hold.wait()
        return f"hi {name}"

    return agent


async def _web(team: LocalTeam) -> WebClient:
    web = WebClient(team.orc)
    await web.log_in()
    return web


async def _walk(web: WebClient, path: str, pattern: str) -> list[str]:
    """Return what the pages of a list show, page after page."""
    shown: list[str] = []
    while True:
        text = (await web.get(path)).text
        shown += re.findall(pattern, text)
        found = re.search(r'rel="next" href="([^"]+)"', text)
        if found is None:
            return shown
        path = html.unescape(found.group(1))


async def test_queues_go_on(team: LocalTeam) -> None:
    """Each queue is on exactly one page, with the number of its tasks, its first one and what that waits for."""
    web = await _web(team)
    names = [f"skill:later-{n:02}" for n in range(60)]
    for name in names:
        await team.orc.submit(name.removeprefix("skill:"))
    await team.orc.submit("later-00")
    await team.orc.admin.pause_queue("agent:absent", reason="maintenance")
    shown = await _walk(web, "/queues", r'<th scope="row"><a href="/queues/([^"]+)">')
    assert [name.replace("%3A", ":") for name in shown] == ["agent:absent", *names]
    first = await page_queues(team.services, starts="skill:later-0", limit=1)
    (row,) = first.queues
    assert (row.tasks, row.agents, first.looked, first.cursor) == (2, 0, 10, "skill:later-00")
    assert row.status is not None
    assert row.status.state is TaskState.READY
    text = (await web.get("/queues?starts=skill:later-59")).text
    assert "no live agent has the skill" in html.unescape(text).lower(), text
    assert "Looked at 1 queue" in text
    assert "orc queues list" in text


async def test_one_queue(team: LocalTeam) -> None:
    """Its page shows the agents that take from it and its first tasks, and its forms pause, drain and resume it."""
    await team.work(_agent(), _agent("other"))
    web = await _web(team)
    await team.orc.admin.pause_queue("skill:greet")
    first = await team.orc.submit("greet", {"name": "Ada"})
    path = "/queues/skill:greet"
    text = (await web.get(path)).text
    assert re.findall(r'<a href="/agents/([^"]+)">', text) == ["greeter", "other"]
    assert f"/tasks/{first.id}" in text
    assert "pause queue" in text
    form = await web.form(path, "/commands/resume-queue")
    assert (await web.post("/commands/resume-queue", form)).status_code == 303
    assert await first.result(timeout=4) == "hi Ada"
    text = (await web.get(path)).text
    assert "No task waits here" in text
    for path, status in (("/queues/nothing", 400), ("/queues/skill:", 400), ("/queues/skill:a b", 400)):
        assert (await web.get(path)).status_code == status, path


async def test_agents_go_on(team: LocalTeam) -> None:
    """Each agent is on one page, and its own page tells its workers, its queue and its attempts."""
    worker = await team.work(*(_agent(f"agent-{n:02}") for n in range(12)))
    web = await _web(team)
    handle = await team.orc.submit("greet", {"name": "Ada"}, agent="agent-03")
    assert await handle.result(timeout=4) == "hi Ada"
    names: list[str] = []
    cursor = None
    while True:
        page = await page_agents(team.services, after=cursor, limit=5)
        assert page.looked == 12
        names += [one.name for one in page.agents]
        cursor = page.cursor
        if cursor is None:
            break
    assert names == [f"agent-{n:02}" for n in range(12)]

    async def counted() -> bool:
        return bool(
            re.search(r'skill=greet">greet</a></th><td class="number">1<', (await web.get("/agents/agent-03")).text)
        )

    await wait_for(counted, "the counters of its attempts")
    text = (await web.get("/agents/agent-03")).text
    assert f"/workers/{worker.id}".replace(":", "%3A") in text
    assert "orc agents show agent-03" in text
    assert (await web.get("/agents/nobody")).status_code == 404
    form = await web.form("/agents/agent-03", "/commands/stop")
    assert (await web.post("/commands/stop", form | {"reason": "it answers nonsense"})).status_code == 303
    assert "it answers nonsense" in (await web.get("/agents/agent-03")).text


async def test_one_worker(team: LocalTeam) -> None:
    """Its page shows the tasks that it runs, and its forms drain and stop it."""
    hold = anyio.Event()
    worker = await team.work(_agent(hold=hold))
    web = await _web(team)
    handle = await team.orc.submit("greet", {"name": "Ada"})
    path = f"/workers/{worker.id}"

    async def runs() -> bool:
        return f"/tasks/{handle.id}" in (await web.get(path)).text

    await wait_for(runs, "its task")
    text = (await web.get(path)).text
    assert "running" in text
    assert worker.id in (await web.get("/workers")).text
    form = await web.form(path, "/commands/drain-worker")
    assert (await web.post("/commands/drain-worker", form)).status_code == 303
    assert "drain worker" in (await web.get(path)).text
    hold.set()
    assert await handle.result(timeout=4) == "hi Ada"
    assert (await web.get("/workers/nobody:1:2")).status_code == 404
    assert "Looked at 1 worker" in (await web.get("/workers?starts=" + worker.id[:3])).text
    assert "Looked at 0 workers" in (await web.get("/workers?starts=zzz")).text


@pytest.mark.parametrize("path", ["/queues", "/agents", "/workers"])
async def test_an_empty_pool(team: LocalTeam, path: str) -> None:
    """A list of nothing says so."""
    web = await _web(team)
    text = (await web.get(path)).text
    assert "Looked at 0" in text
    assert "That is all" in text


async def test_overview(team: LocalTeam) -> None:
    """It tells what needs a person, the numbers, and the rates; with nothing to do it says so."""
    await team.work(_agent())
    web = await _web(team)
    text = (await web.get("/")).text
    assert "Nothing needs attention" in text
    assert text.count("<polyline") == 4
    await team.orc.submit("later")
    await team.orc.admin.pause_agent("greeter", reason="maintenance")
    web.dashboard.forget_reads()
    text = html.unescape((await web.get("/")).text)
    assert "skill:later: " in text
    assert "1 active command" in text
    assert "maintenance" in text
    assert "orc status" in text


async def test_rates(team: LocalTeam) -> None:
    """They count the whole minutes before this one."""
    now_s = int((await team.services.store.execute("TIME"))[0])
    for age, count in ((0, 9), (1, 5), (60, 3), (61, 7)):
        key = team.services.keys.stats(str(now_s // 60 - age))
        await team.services.store.execute("HSET", key, "succeeded", count)
        await team.services.store.execute("EXPIRE", key, 60)
    found = await read_health(team.services)
    if int(found.until.timestamp()) == now_s // 60 * 60:  # else a minute has begun meanwhile
        assert found.rates["succeeded"] == (3, *[0] * 58, 5)
        assert found.rates["dead"] == (0,) * 60


async def test_control_goes_on(team: LocalTeam) -> None:
    """Each command is on one page, newest first, and the filters are those of the address."""
    web = await _web(team)
    ids = [(await team.orc.admin.pause_agent(f"agent-{n}", actor=f"who-{n % 2}")).id for n in range(12)]
    shown: list[str] = []
    cursor = None
    while True:
        page = await page_commands(team.services, before=cursor, limit=5)
        shown += [one.id for one in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    assert shown == ids[::-1]
    mine = await page_commands(team.services, actor="who-1", limit=50)
    assert [one.id for one in mine.records] == ids[::-1][::2]
    text = (await web.get("/control?actor=who-1&kind=pause-agent")).text
    assert "agent=agent-11" in text
    assert "orc control list --actor who-1 --kind pause-agent" in text
    assert "Looked at 12 commands" in text
    assert (await web.get("/control?after=nope")).status_code == 400
    assert "No command" in (await web.get("/control?refused=1")).text


async def test_doctor(team: LocalTeam) -> None:
    """The page runs the checks when it is asked to, and not before."""
    web = await _web(team)
    text = (await web.get("/doctor")).text
    assert "Run the checks" in text
    text = (await web.get("/doctor?run=1")).text
    assert "redis-version" in text
    assert "supervisor" in text


async def test_tasks_by_filter(team: LocalTeam) -> None:
    """A page looks at few tasks, says so, and goes on; a filter leads to bulk actions on what matches."""
    web = await _web(team)
    rare = [(await team.orc.submit("later", session="s", tags=["eu"])).id for _ in range(3)]
    for n in range(250):
        await team.orc.submit("other", priority=n % 3)
    text = (await web.get("/tasks?skill=later")).text
    assert "so far" in text
    shown = await _walk(web, "/tasks?skill=later", r'<th scope="row"><a href="/tasks/([0-9a-f-]{36})">')
    assert sorted(shown) == sorted(rare)
    for path in ("/tasks?session=s", "/tasks?tag=eu", "/tasks?tag=eu&state=ready"):
        found = await _walk(web, path, r'<th scope="row"><a href="/tasks/([0-9a-f-]{36})">')
        assert sorted(found) == sorted(rare), path
    every = await _walk(web, "/tasks", r'<th scope="row"><a href="/tasks/([0-9a-f-]{36})">')
    assert len(every) == len(set(every)) == 253
    text = (await web.get("/tasks?state=ready&session=s")).text
    assert "orc tasks list --state ready --session s" in text
    assert "/bulk/cancel?state=ready&amp;session=s" in text
    assert "/bulk/retry" not in text
    assert "/bulk/" not in (await web.get("/tasks")).text
    form = html.unescape((await web.get("/bulk/cancel?state=ready&session=s")).text)
    assert "Cancel 3 tasks" in form


async def test_a_part_is_stopped(team: LocalTeam) -> None:
    """The header stops an agent, session, skill or family, too, and says so on the page of control."""
    web = await _web(team)
    task = await team.orc.submit("later", session="s 1")
    for scope in ({"agent": "greeter"}, {"session": "s 1"}, {"skill": "later"}, {"family": task.id}):
        form = await web.form("/", "/commands/stop") | scope | {"reason": "a test"}
        assert (await web.post("/commands/stop", form)).status_code == 303, scope
    text = html.unescape((await web.get("/control")).text)
    for kind, name in (("agent", "greeter"), ("session", "s 1"), ("skill", "later"), ("family", task.id)):
        assert re.search(rf"stop {kind}</span> {name} ", text), kind
    both = await web.form("/", "/commands/stop") | {"agent": "a", "skill": "b"}
    assert (await web.post("/commands/stop", both)).status_code == 400
    assert "Stop this part" in (await web.get("/submit")).text


async def test_receipts_come_in_live(team: LocalTeam) -> None:
    """The page of a command is read each second while a receipt is missing."""
    worker = await team.work(_agent())
    key = team.services.keys.worker("gone:1:2")
    now_ms = int((await team.services.store.execute("TIME"))[0]) * 1000
    await team.services.store.execute("HSET", key, "started_ms", now_ms - 60_000)
    await team.services.store.execute("EXPIRE", key, 60)
    await team.services.store.execute("ZADD", team.services.keys.workers, now_ms + 60_000, "gone:1:2")
    sent = await team.orc.admin.stop()
    asked = PageRequest(team.services, Identity("x", Role.ADMIN), {"id": sent.id}, {})

    async def answered() -> bool:
        found = await command(asked)
        assert found["hurries"] is True
        receipts = found["command"].receipts
        return worker.id in {one.sender for one in receipts.answered} and receipts.missing == ("gone:1:2",)

    await wait_for(answered, "the receipt of the worker that lives")
    await team.services.store.execute("ZREM", team.services.keys.workers, "gone:1:2")

    async def complete() -> bool:
        return not (await command(asked))["hurries"]

    await wait_for(complete, "the end of the hurry")
