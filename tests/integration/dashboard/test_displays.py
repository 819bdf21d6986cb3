"""Operators see values through the `display` function of an agent, which may not hold up a page."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING

import pytest

from orchestrator.dashboard import displays
from tests.helpers.displayed_agents import agent
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

LOADED = pytest.mark.parametrize(
    "settings", [{"dashboard__agents": ("tests.helpers.displayed_agents:agent",)}], indirect=True
)


async def _page(team: LocalTeam, text: str) -> tuple[WebClient, str]:
    await team.work(agent)
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("keep", {"text": text})
    await handle.result(timeout=TIMEOUT_S)
    return web, f"/tasks/{handle.id}"


@LOADED
async def test_display(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows what the function returns, with masked secrets, and calls it once for a value."""
    monkeypatch.setattr(displays, "LIMIT_S", 60.0)
    encoded = base64.b64encode(b"the plain text").decode()
    web, path = await _page(team, encoded)
    page = (await web.get(path)).text
    assert page.count("the plain text") == 2
    assert "hunter2" not in page
    assert encoded not in page
    monkeypatch.setattr(displays, "LIMIT_S", 0.0)
    web.dashboard.forget_reads()
    whole = (await web.get(f"{path}/result")).text
    assert "the plain text" in whole
    assert encoded not in whole
    assert (await web.get(f"{path}/result/download")).status_code == 404


@LOADED
@pytest.mark.parametrize(("text", "said"), [("hang", "took longer than"), ("fail", "failed")])
async def test_a_function_that_fails(team: LocalTeam, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that hangs or raises hides its value, and the page comes; it is not called again at once."""
    monkeypatch.setattr(displays, "LIMIT_S", 1.0 if text == "hang" else 60.0)
    web, path = await _page(team, text)
    assert (await web.get(path)).text.count(f"The display function of its agent {said}") == 2
    web.dashboard.forget_reads()
    began_s = time.monotonic()
    page = (await web.get(path)).text
    assert time.monotonic() - began_s < 1.0
    assert "(redacted, " in page
    assert f"&#34;{text}&#34;" not in page


async def test_elsewhere(team: LocalTeam) -> None:
    """A dashboard without the agent shows sizes."""
    web, path = await _page(team, "aGk=")
    page = (await web.get(path)).text
    assert "aGk=" not in page
    assert "(redacted, 6 bytes)" in page
