"""A dashboard that is killed, that lies below a path, or that refuses commands."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import redis

from orchestrator.testing.waiting import wait_until
from tests.browser.test_every_page import addresses
from tests.helpers.site import LINK, running_site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.faultkit.servers import RedisServer
    from tests.helpers.browser import Browser
    from tests.helpers.site import Site


def test_the_server_is_killed(site: Site, browser: Browser) -> None:
    """An open page goes on where it was as soon as another server answers at the same address, without a login."""
    with site.terminal.start("web", "--port", "0") as first:
        first.wait_output("dashboard", timeout_s=30)
        link = LINK.search(first.output)
        assert link is not None
        url, port = link[1].partition("/login?")[0], re.findall(r":(\d+)/", link[1])[0]
        browser.log_in(link[1])
        browser.see("Overview")
        browser.click(lambda: browser.summary("STOP"))
        browser.type(".stop input[name=reason]", "typed before")
        first.kill()
    with site.terminal.start("web", "--port", port) as second:
        second.wait_output("dashboard", timeout_s=30)
        before = browser.one("#health").text
        site.terminal.orc("tasks", "submit", "write", "-a", "topic=after")
        wait_until(lambda: browser.one("#health").text != before, "a patch of the second server", 30)
        assert browser.one(".stop input[name=reason]").get_attribute("value") == "typed before"
        assert browser.driver.current_url == url + "/"


def test_a_stop_is_seen_at_once(site: Site, browser: Browser) -> None:
    """The page of the stop is there within a second of the click, and its receipts follow by themselves."""
    browser.log_in(site.new_link())
    browser.click(lambda: browser.summary("STOP"))
    browser.type(".stop input[name=reason]", "looks wrong")
    clicked_s = time.monotonic()
    browser.click(lambda: browser.button("Stop all"))
    wait_until(lambda: "/control/" in browser.path, "the page of the command", 20)
    seen_s = time.monotonic() - clicked_s
    try:
        browser.see("looks wrong")
        wait_until(lambda: "done" in browser.one("main").text, lambda: "receipts in\n" + browser.text, 20)
        assert site.terminal.orc("status", "-o", "json").json()["active_commands"]
    finally:
        assert site.terminal.orc("start", "--timeout", "20s").code == 0
    # Half a minute of patience is not what is promised; the figure of a free machine is in the guide.
    assert seen_s < 10


def test_below_a_path_and_read_only(
    tmp_path: Path, running_server: Callable[[str], RedisServer], browser: Browser, subtests: pytest.Subtests
) -> None:
    """Each page works below the path of a proxy; where commands are refused, no page has a button for one."""
    with running_site(tmp_path, running_server, "--base-path", "/orc/x", "--read-only") as site:
        assert site.url.endswith("/orc/x")
        browser.log_in(site.link)
        for path in addresses(site):
            with subtests.test(path):
                browser.open(site.url + path)
                assert browser.one("h1").text
                assert "STOP" not in browser.text
                posts = browser.run(
                    "return [...document.querySelectorAll('form[method=post]')].map(each => each.action)"
                )
                assert [action for action in posts if not action.endswith("/logout")] == []
                assert browser.complaints() == []
        assert {address for address in browser.asked() if not address.startswith(site.url)} == set()


def test_a_hidden_tab_costs_nothing(site: Site, browser: Browser) -> None:
    """A tab that is not seen holds no stream; seen again, it shows what has changed meanwhile."""
    browser.log_in(site.new_link())
    browser.see("Overview")
    wait_until(lambda: _streams(site) == 1, lambda: f"one stream among {_streams(site)}", 20)
    before = browser.one("#health").text
    _be_hidden(browser, hidden=True)
    wait_until(lambda: _streams(site) == 0, "the end of the stream", 20)
    site.terminal.orc("tasks", "submit", "write", "-a", "topic=unseen", "--wait")
    assert browser.one("#health").text == before
    _be_hidden(browser, hidden=False)
    wait_until(lambda: browser.one("#health").text != before, "what has changed", 20)


def _be_hidden(browser: Browser, *, hidden: bool) -> None:
    """Tell the page what a browser tells it when another tab comes to the front."""
    state = "hidden" if hidden else "visible"
    browser.run(
        f"Object.defineProperty(document, 'hidden', {{value: {str(hidden).lower()}, configurable: true}});"
        f"Object.defineProperty(document, 'visibilityState', {{value: '{state}', configurable: true}});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )


def _streams(site: Site) -> int:
    """Number of blocking reads that the dashboards hold: one while any page is open, none without."""
    prefix, url = site.terminal.environ["ORC_PREFIX"], site.terminal.environ["ORC_REDIS__URL"]
    with redis.Redis.from_url(url) as client:
        names = [one["name"] for one in client.client_list() if "b" in one["flags"]]
    return sum(prefix in name and name.endswith(":dashboard") for name in names)
