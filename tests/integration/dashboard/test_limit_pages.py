"""The page of limits and locks, and its forms."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, LockLost
from orchestrator.views.control import list_commands
from orchestrator.views.limit_pages import page_limits
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


_HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


async def greet(name: str) -> str:
    """Greet."""
    return name


async def test_limits(team: LocalTeam) -> None:
    """Each limit is on one page with its rate; a form changes it, and another one resets it."""
    agents = [Agent(f"agent-{n}", rate=f"{n + 1}/min") for n in range(5)]
    for agent in agents:
        agent.skill(greet)
    await team.work(*agents)
    shown: list[tuple[str, str | None]] = []
    cursor = None
    while True:
        page = await page_limits(team.services, after=cursor, limit=2)
        assert page.looked == 5
        shown += [(one.limit, one.rate) for one in page.limits]
        cursor = page.cursor
        if cursor is None:
            break
    assert shown == [(f"@agent-{n}", f"{n + 1}/min") for n in range(5)]
    web = WebClient(team.orc)
    await web.log_in()
    form = await web.form("/limits?starts=@agent-3", "/commands/set-limit")
    answer = await web.post("/commands/set-limit", form | {"rate": "7/s", "reason": "half of the quota"})
    assert answer.status_code == 303, answer.text
    (changed,) = (await page_limits(team.services, starts="@agent-3")).limits
    assert (changed.rate, changed.defined) == ("7/s", "4/min")
    assert "half of the quota" in (await web.get("/limits")).text
    form = await web.form("/limits?starts=@agent-3", "/commands/reset-limit")
    await web.post("/commands/reset-limit", form)
    (reset,) = (await page_limits(team.services, starts="@agent-3")).limits
    assert (reset.rate, reset.defined) == ("4/min", None)


async def test_a_lock_is_released(team: LocalTeam) -> None:
    """Only from the holder that the page showed, with a reason and the typed name; it is recorded."""
    web = WebClient(team.orc)
    await web.log_in()

    async def take_from_its_holder() -> None:
        async with team.orc.locks("session:s 1", owner="nightly").hold("report"):
            page = html.unescape((await web.get("/limits?scope=session:s 1")).text)
            assert "nightly" in page
            form = dict(_HIDDEN.findall(page.partition('release"')[2]))
            sure = {"reason": "it hangs", "typed": "report"}
            for wrong, status in (({}, 400), (sure | {"typed": "x"}, 400), (sure | {"nonce": "x"}, 404)):
                assert (await web.post("/limits/locks/release", form | wrong)).status_code == status
            answer = await web.post("/limits/locks/release", form | sure)
            assert answer.status_code == 303, answer.text
            assert "report: released" in (await web.get(answer.headers["location"])).text

    with pytest.raises(LockLost):  # its holder learns that it was taken
        await take_from_its_holder()
    assert not await team.orc.locks("session:s 1").list()
    (record,) = await list_commands(team.services)
    assert (record.kind, record.actor, record.reason) == ("release-lock", "web:local", "it hangs")
    assert (await web.get("/limits?scope=nothing")).status_code == 400
