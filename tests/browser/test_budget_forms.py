"""The forms of budgets and of the state of a provider, as a person fills them in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.helpers.browser import Browser
    from tests.helpers.site import Site


@pytest.fixture(autouse=True)
def _logged_in(site: Site, browser: Browser) -> None:
    browser.log_in(site.new_link())


def test_a_limit_is_raised(site: Site, browser: Browser) -> None:
    """The form asks first, keeps what its fields do not name, and its page shows the new limit."""
    site.terminal.orc("budgets", "set", "forms", "--usd", "2", "--tokens", "2M")
    browser.open(site.url + "/budgets")
    browser.click(lambda: browser.link("forms"))
    browser.see("Budget forms")
    assert not browser.one("#set-budget summary").get_attribute("open")
    browser.click(lambda: browser.summary("Change limits"))
    browser.type("#set-budget input[name=usd]", "3.5")
    browser.type("#set-budget input[name=reason]", "second half")
    browser.click(lambda: browser.button("Set the limits"))
    wait_until(lambda: "/control/" in browser.path, "the page of the command", 20)
    browser.see("second half")
    browser.open(site.url + "/budgets/forms")
    head = browser.one("#head").text
    assert "3.5" in head
    assert "2,000,000" in head


def test_a_state_is_cleared(site: Site, browser: Browser) -> None:
    """The page of a provider has a button that ends its state."""
    browser.open(site.url + "/limits/model:gpt")
    browser.see("throttled")
    browser.click(lambda: browser.button("Clear the state"))
    wait_until(lambda: "/control/" in browser.path, "the page of the command", 20)
    browser.open(site.url + "/limits/model:gpt")
    browser.see("open")
    assert not [each for each in browser.all("button") if each.text == "Clear the state"]
