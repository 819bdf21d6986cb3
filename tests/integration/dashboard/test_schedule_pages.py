"""The page of schedules, and its forms."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from orchestrator.core.ids import new_task_id
from orchestrator.views.control import list_commands
from orchestrator.views.schedule_pages import page_schedules
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


async def _add(team: LocalTeam, name: str) -> None:
    await team.orc.admin.schedules.add(name, "tidy", cron="0 9 * * MON", zone="Europe/Berlin")


async def test_each_schedule_once(team: LocalTeam) -> None:
    """Pages go on behind score and name, also among paused schedules, which all have the same score."""
    names = [f"tidy-{n:02}" for n in range(13)]
    for name in names:
        await _add(team, name)
    for name in names[::2]:
        await team.orc.admin.schedules.pause(name)
    shown: list[str] = []
    cursor = None
    while True:
        page = await page_schedules(team.services, after=cursor, limit=3)
        assert page.total == 13
        shown += [row.schedule.name for row in page.schedules]
        cursor = page.cursor
        if cursor is None:
            break
    assert shown == [*names[1::2], *names[::2]]
    row = (await page_schedules(team.services, limit=1)).schedules[0]
    assert row.words == "at 09:00 on Monday, Europe/Berlin"
    assert len(set(row.next_fires)) == 3
    assert {each.isoweekday() for each in row.next_fires} == {1}


async def test_a_cursor_of_a_schedule_that_is_gone(team: LocalTeam) -> None:
    """The list goes on at its place."""
    for name in ("a", "b", "c"):
        await _add(team, name)
        await team.orc.admin.schedules.pause(name)
    first = await page_schedules(team.services, limit=2)
    await team.orc.admin.schedules.resume("b")
    second = await page_schedules(team.services, after=first.cursor, limit=9)
    assert {"c"} <= {row.schedule.name for row in second.schedules} <= {"a", "b", "c"}


async def test_forms(team: LocalTeam) -> None:
    """They pause, resume, run and delete a schedule; a second click on Run now submits nothing."""
    await _add(team, "tidy")
    web = WebClient(team.orc)
    await web.log_in()
    page = html.unescape((await web.get("/schedules")).text)
    assert "at 09:00 on Monday, Europe/Berlin" in page
    assert "1 of 1 schedule" in page
    assert (await web.post("/schedules/tidy/pause")).status_code == 303
    assert "paused" in (await web.get("/schedules")).text
    assert (await web.post("/schedules/tidy/resume")).status_code == 303
    form = {"id": new_task_id()}
    places = [(await web.post("/schedules/tidy/trigger", form)).headers["location"] for _ in range(2)]
    assert places == [f"/tasks/{form['id']}"] * 2
    assert len(re.findall(r'<th scope="row"><a href="/tasks/', (await web.get("/tasks?skill=tidy")).text)) == 1
    assert form["id"][-12:] in (await web.get("/schedules")).text
    for wrong in ({"reason": "x"}, {"typed": "tidy"}, {"reason": "x", "typed": "other"}):
        assert (await web.post("/schedules/tidy/delete", wrong)).status_code == 400
    assert (await web.post("/schedules/tidy/delete", {"reason": "x", "typed": "tidy"})).status_code == 303
    assert "There is no schedule" in (await web.get("/schedules")).text
    assert (await web.post("/schedules/tidy/pause")).status_code == 404
    assert (await web.get("/schedules?after=nope")).status_code == 400
    assert {one.actor for one in await list_commands(team.services)} >= {"web:local"}
