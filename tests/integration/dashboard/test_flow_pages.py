"""The pages of tasks of a flow: results in the arguments, predecessors, followers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import Agent, Flow
from orchestrator.accounts.model import Role
from orchestrator.dashboard.pages.task import WITHOUT_RESULTS
from tests.helpers.api_client import api_client
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


async def test_arguments_that_take_results(team: LocalTeam) -> None:
    """The form that submits again and the pages of the arguments say that null stands in place of results."""
    agent = Agent("editor")

    @agent.skill
    async def judge(pages: list[str]) -> str:
        return str(pages)

    await team.work(agent)
    flow = Flow("review")
    page = flow.task("fetch", {"url": "moon"})
    judged = flow.task("judge", {"pages": [page.result]})
    handle = await team.orc.submit_flow(flow)
    api = await api_client(team.orc, Role.VIEWER)
    web = WebClient(team.orc)
    await web.log_in()
    for task, takes in ((page, False), (judged, True)):
        id_ = handle.task(task).id
        assert (await api.read(f"/tasks/{id_}"))["takes_results"] is takes
        for path in (f"/submit?from={id_}", f"/tasks/{id_}", f"/tasks/{id_}/args"):
            assert (WITHOUT_RESULTS in (await web.get(path)).text) is takes, path
    assert "[null]" in (await web.get(f"/submit?from={handle.task(judged).id}")).text


async def test_predecessors_and_followers(team: LocalTeam) -> None:
    """The page of a task leads to its predecessors and followers, the first 20 of each, and counts the rest."""
    flow = Flow("wide")
    first = flow.task("fetch")
    middle = [flow.task("judge", after=[first]) for _ in range(23)]
    last = flow.task("publish", after=middle)
    handle = await team.orc.submit_flow(flow)
    ids = [handle.task(task).id for task in middle]
    web = WebClient(team.orc)
    await web.log_in()

    async def shown(id_: str) -> str:
        page = (await web.get(f"/tasks/{id_}")).text
        return page.partition('id="flow"')[2].partition("</section>")[0]

    for id_, word in ((handle.task(first).id, "Followers: "), (handle.task(last).id, "After ")):
        part = await shown(id_)
        assert part.count("href=") == 20
        assert all(f'href="/tasks/{one}"' in part for one in ids[:20])
        assert f"{word}<a" in part
        assert "</a>, and 3 more</p>" in part
    part = await shown(ids[0])
    assert f'After <a href="/tasks/{handle.task(first).id}">' in part
    assert f'Follower: <a href="/tasks/{handle.task(last).id}">' in part
    page = (await web.get(f"/tasks/{handle.task(last).id}")).text
    assert "waits for its predecessors" in page
    overview = (await web.get("/")).text
    assert 'Waiting for predecessors</dt><dd><a href="/tasks?state=awaiting_tasks">24</a>' in overview
    api = await api_client(team.orc, Role.VIEWER)
    assert (await api.read("/overview"))["awaiting_tasks"] == 24
