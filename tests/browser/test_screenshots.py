"""The pictures of the guide and of the README: a team at work, as a browser shows it.

`python -m tests.browser.test_screenshots` writes them into docs/images; a test makes them too, so that none names a
page or a part that is gone.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import anyio
import pytest

from orchestrator import Orchestrator
from orchestrator.testing.waiting import wait_until
from tests.helpers.browser import running_browser
from tests.helpers.server_matrix import start_server
from tests.helpers.site import running_site

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.faultkit.servers import RedisServer
    from tests.helpers.browser import Browser
    from tests.helpers.site import Site

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
PAGES_WITH_PICTURES: Final = ("docs/guides/dashboard.md", "README.md")
WIDTH: Final = 1280
HEIGHT: Final = 860


async def _count(site: Site) -> None:
    """Write what the pool has done in the last hour, which it did not exist."""
    async with Orchestrator(settings=site.settings) as orc:
        store = orc.services.store
        minute = int((await store.execute("TIME"))[0]) // 60
        for age in range(1, 62):
            wave = int(40 + 25 * math.sin(age / 9) + 12 * math.sin(age * 2))
            done = {"submitted": wave + age % 5, "succeeded": wave, "retried": age % 7, "dead": int(age % 20 == 0)}
            key = store.keys.stats(str(minute - age))
            await store.execute("HSET", key, *[part for pair in done.items() for part in pair])
            await store.execute("EXPIRE", key, 3600)


def _busy(site: Site) -> dict[str, str]:
    """Let the team do some more; return the path of the page of each picture."""
    anyio.run(_count, site)
    orc = site.terminal.orc
    for topic in ("ferries", "harbours", "lighthouses"):
        orc("tasks", "submit", "write", "-a", f"topic={topic}", "--session", "draft-1")
    for number in range(4):
        orc("tasks", "submit", "fail", "-a", f"reason=row {number} has no price")
    counted = orc("tasks", "submit", "count", "-a", "to=400", "--session", "draft-1", "-o", "id").out.strip()
    failed = orc("tasks", "list", "--state", "dead", "-o", "id").out.split()
    wait_until(
        lambda: len(orc("tasks", "list", "--state", "dead", "-o", "id").out.split()) >= 6, f"six after {failed}", 30
    )
    orc("budgets", "set", "run-7", "--usd", "2", "--tokens", "2M", "--at-hard", "ask", "--per", "day")
    for page in ("moon", "mars", "venus", "saturn", "pluto"):
        orc("tasks", "submit", "read", "-a", f"page={page}", "--budget", "run-7", "--session", "draft-1")
    wait_until(lambda: orc("budgets", "show", "run-7", "-o", "json").json()["waiting"] == 1, "a task held back", 30)
    return {
        "dashboard-overview": "/",
        "dashboard-budget": "/budgets/run-7",
        "dashboard-task": f"/tasks/{counted}",
        "dashboard-session": "/sessions/replay?" + urlencode({"id": site.names["session"], "from": 0}),
        "dashboard-dead": "/dead",
    }


def make(site: Site, browser: Browser, folder: Path) -> Mapping[str, Path]:
    """Write the pictures into a folder; return them by name."""
    browser.theme("light")
    metrics: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.log_in(site.link)
    made = {}
    for name, path in _busy(site).items():
        browser.open(site.url + path)
        browser.see({"dashboard-task": "number 5", "dashboard-overview": "run-7 is exhausted"}.get(name, ""))
        shot = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        made[name] = folder / f"{name}.png"
        made[name].write_bytes(base64.b64decode(shot["data"]))
    return made


@pytest.mark.slow
def test_pictures(tmp_path: Path, running_server: Callable[[str], RedisServer], browser: Browser) -> None:
    """Each picture can be made; the guide and the README show these and no others."""
    with running_site(tmp_path, running_server, hostile=False) as site:
        made = make(site, browser, tmp_path)
    for path in made.values():
        data = path.read_bytes()
        assert struct.unpack(">II", data[16:24]) == (WIDTH, HEIGHT)
        assert len(data) > 20_000, f"{path.name} is empty"
    shown = {
        name
        for page in PAGES_WITH_PICTURES
        for name in re.findall(r"images/(dashboard-\w+)\.png", (IMAGES.parents[1] / page).read_text())
    }
    assert shown == set(made) == {path.stem for path in IMAGES.glob("dashboard-*.png")}


def main() -> None:
    """Write the pictures into the documentation."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "browser").mkdir()
        browser = stack.enter_context(running_browser(folder / "browser"))
        site = stack.enter_context(
            running_site(folder, lambda which: stack.enter_context(start_server(which)), hostile=False)
        )
        make(site, browser, IMAGES)


if __name__ == "__main__":
    main()
