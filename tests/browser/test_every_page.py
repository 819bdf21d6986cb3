"""Every page in a real browser: no serious fault of access in both themes, no broken policy, nothing from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

import pytest

from orchestrator.dashboard import pages
from orchestrator.dashboard.page import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.browser import Browser
    from tests.helpers.site import Site

OPENED: Final[dict[str, tuple[str, ...]]] = {
    "/tasks/{id}": ("succeeded", "question", "dead", "raised", "ready", "scheduled", "joining"),
}
"""Tasks whose page is opened, by the page."""


def addresses(site: Site) -> Iterator[str]:
    """Yield a path of each page, below the address of the dashboard."""
    assert pages.ALL
    for page in PAGES:
        if page.path == "/tasks/{id}":
            yield from (f"/tasks/{site.names[name]}" for name in OPENED[page.path])
        elif page.path.startswith("/sessions/"):
            yield f"{page.path}?" + urlencode({"id": site.names["session"], "path": "title", "from": 0})
        elif page.path.startswith("/bulk/"):
            yield "/bulk/cancel?skill=write"
        elif page.path == "/memory":
            yield "/memory?agent=editor"
        else:
            yield page.path.format(
                id=site.names["command" if page.path.startswith("/control") else "succeeded"],
                agent="editor",
                queue=quote("agent:editor", safe=""),
                worker=quote(site.names["worker"], safe=""),
                session=site.names["session"],
                kind="pause-agent",
                budget="team",
                limit="model:gpt",
                action="cancel",
            )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_access(site: Site, browser: Browser, theme: str) -> None:
    """Axe finds nothing serious, and the browser logs and asks for nothing that it should not."""
    browser.theme(theme)
    browser.log_in(site.link if theme == "light" else site.new_link())
    faults: list[str] = []
    for path in addresses(site):
        browser.open(site.url + path)
        faults += browser.faults_of_access()
        faults += [f"{path}: {said}" for said in browser.complaints()]
        # Agents wrote these texts; none of them is an element.
        faults += browser.run("return [...document.querySelectorAll('main script, img')].map(each => each.outerHTML)")
        assert "run" not in browser.driver.title
    assert faults == [], "\n".join(faults)
    assert {address for address in browser.asked() if not address.startswith(site.url)} == set()


def test_a_fault_of_access_is_found(site: Site, browser: Browser) -> None:
    """The twin: a field without a name, and a text that is hard to read."""
    browser.log_in(site.new_link())
    browser.run(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<input><p id=pale>pale</p>');"
        "document.getElementById('pale').style.color = '#ddd'"
    )
    found = "\n".join(browser.faults_of_access())
    assert "label" in found
    assert "color-contrast" in found


def test_narrow_screens(site: Site, browser: Browser) -> None:
    """At 390 pixels, and at 200 % of a small window, no page is wider than the screen."""
    browser.log_in(site.new_link())
    browser.resize(390)
    wide = []
    for path in addresses(site):
        browser.open(site.url + path)
        width = browser.run("return document.scrollingElement.scrollWidth")
        if width > 390:
            wide.append(f"{path}: {width}")
    assert wide == []


def test_on_paper(site: Site, browser: Browser) -> None:
    """Tasks and sessions print without the frame and the buttons, and with the whole of what a screen scrolls."""
    browser.log_in(site.new_link())
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for path in (f"/tasks/{site.names['counted']}", f"/sessions/one?id={site.names['session']}"):
            browser.open(site.url + path)
            assert browser.one("h1").is_displayed()
            for part in ("header", "nav", "footer", "main .act", "main button"):
                assert not [each for each in browser.all(part) if each.is_displayed()], (path, part)
            boxes = "[...document.querySelectorAll('main pre, main ol')]"
            assert browser.run(f"return {boxes}.filter(box => box.scrollHeight > box.clientHeight + 2).length") == 0
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_scripts(site: Site, browser: Browser) -> None:
    """Pages are readable and their forms work; what needs a script is not shown."""
    browser.log_in(site.new_link())
    browser.scripts(on=False)
    browser.open(f"{site.url}/tasks/{site.names['dead']}")
    assert "dead" in browser.text
    assert not [each for each in browser.all(".scripted") if each.is_displayed()]
    browser.open(site.url + "/tasks?state=succeeded")
    assert "write" in browser.text
    browser.click(lambda: browser.summary("STOP"))
    assert browser.one(".stop input[name=reason]").is_displayed()
    assert browser.all('noscript meta[http-equiv="refresh"]')
