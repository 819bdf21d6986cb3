"""The dashboard by keys alone, with what a person has typed and opened kept while the page changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.testing.waiting import wait_until
from tests.helpers.browser import Keys

if TYPE_CHECKING:
    from tests.helpers.browser import Browser
    from tests.helpers.site import Site


@pytest.fixture(autouse=True)
def _logged_in(site: Site, browser: Browser) -> None:
    browser.log_in(site.new_link())


def test_keys_go_to_pages(browser: Browser) -> None:
    """`g` and a letter go to a page, `/` to its filter, `?` shows the keys, Escape closes them."""
    for key, path in (("t", "/tasks"), ("q", "/queues"), ("o", "/")):
        browser.press("g", key)
        wait_until(lambda path=path: browser.path == path, f"the page {path}", 10)  # type: ignore[misc]
    browser.press("?")
    assert "goes to Tasks" in browser.one("dialog[open]").text
    browser.press(Keys.ESCAPE)
    assert not browser.all("dialog[open]")
    browser.press("g", "t")
    wait_until(lambda: browser.path == "/tasks", "the tasks", 10)
    browser.press("/")
    browser.press("gone")
    assert browser.path == "/tasks"
    assert browser.run("return document.activeElement.value") == "gone"


def test_tab_reaches_everything(browser: Browser) -> None:
    """The first stop skips the navigation, then come the frame and each link and button, and none traps the focus."""
    browser.press(Keys.TAB)
    assert "Skip to the content" in browser.focused()
    seen = []
    for _ in range(80):
        browser.press(Keys.TAB)
        if browser.focused().startswith("body"):
            break
        seen.append(browser.focused())
    assert any("STOP" in each for each in seen)
    assert any("Tasks" in each for each in seen)
    links = browser.run("return [...document.querySelectorAll('main a')].map(each => each.textContent.trim())")
    assert links
    assert all(any(link[:40] in each for each in seen) for link in links[:10]), seen


def test_patches_keep_what_one_types(site: Site, browser: Browser) -> None:
    """An open part, a typed text and the focus stay while the numbers of the page change."""
    browser.click(lambda: browser.summary("STOP"))
    browser.type(".stop input[name=reason]", "half a")
    before = browser.one("#health").text
    for _ in range(3):
        site.terminal.orc("tasks", "submit", "write", "-a", "topic=more")
    wait_until(lambda: browser.one("#health").text != before, "other numbers", 10)
    browser.press(" reason")
    assert browser.one(".stop input[name=reason]").get_attribute("value") == "half a reason"
    assert browser.all(".stop[open]")


def test_the_theme_stays(browser: Browser) -> None:
    """The switch goes through system, light and dark; the next page has the choice."""
    browser.theme("light")
    switch = '[data-act="theme"]'
    light = browser.run("return getComputedStyle(document.body).backgroundColor")
    for said in ("light", "dark"):
        browser.click(lambda: browser.one(switch))
        assert browser.one(switch).text == f"Theme: {said}"
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != light
    browser.press("g", "t")
    wait_until(lambda: browser.path == "/tasks", "the tasks", 10)
    assert browser.one(switch).text == "Theme: dark"
    browser.click(lambda: browser.one(switch))
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == light
